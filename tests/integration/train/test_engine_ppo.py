"""Every setting of PPO reaches what it is meant for, on a very small real model."""

import multiprocessing
import os
import signal
from dataclasses import replace
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from engine_bench import SECONDS, metrics, stage
from engine_bench import weights as published

from charter.artifacts.checkpoints import Position
from charter.artifacts.stage_dir import StageDir
from charter.errors import StageError
from charter.inference.generate import generate
from charter.inference.generator import NativeGenerator
from charter.models.ranks import Ranks
from charter.train import ppo
from charter.train import ppo_rollout as rollouts
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.pretraining_mix import counted_tokens
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
GROUPS = {"estimator": "rloo", "samples_per_prompt": 2}


@pytest.fixture
def task(engine_inputs, tmp_path):
    """(changes of the spec) -> a PPO task, ready to be run part by part."""
    count = iter(range(100))

    def make(frozen=None, **changes):
        found = stage(engine_inputs, tmp_path / f"ppo-{next(count)}", "ppo", frozen=frozen, **changes)
        made, _ = ppo_task(set_up(found))
        Loop(made.setup, made)
        return made

    return make


def rollout_of(task, step=0, *, kl_coefficient=0.5):
    return task.sampler.sample(step, step, kl_coefficient=kl_coefficient)


def whole_step(task, step=0):
    """Run a whole step; its report."""
    found = [task.run_part(Position(step, part)) for part in range(task.parts)]
    assert found[:-1] == [None] * (task.parts - 1)
    return found[-1]


def weights(module):
    return torch.cat([value.flatten() for value in module.state_dict().values()])


def moved(task, step=0):
    """How far a step moves the policy, and the value model where there is one."""
    modules = [item.module for item in (task.models.trained, task.models.value) if item is not None]
    before = [weights(item).clone() for item in modules]
    whole_step(task, step)
    return [(weights(item) - old).abs().max().item() for item, old in zip(modules, before, strict=True)]


def test_frozen_models_stay_and_trained_ones_move(task):
    found = task()
    frozen = [weights(item).clone() for item in found.frozen]
    assert all(distance > 1e-4 for distance in moved(found))
    assert all(torch.equal(weights(item), old) for item, old in zip(found.frozen, frozen, strict=True))
    assert not any(p.requires_grad for item in found.frozen for p in item.parameters())


def test_value_warm_up_freezes_the_policy(task):
    found = task(value_warmup_rollouts=1)
    policy, value = moved(found)
    assert policy == 0.0
    assert value > 1e-4
    assert moved(found, step=1)[0] > 1e-4


def test_estimators_without_a_value_model_have_none(task):
    for estimator in ("rloo", "grpo"):
        found = task(estimator=estimator, samples_per_prompt=2)
        assert found.models.value is None
        assert set(found.state.modules) == {"policy"}
        report = whole_step(found)
        assert "value_loss" not in report.metrics
        assert moved(found, 1)[0] > 1e-5


def test_the_answers_of_a_group_are_to_the_same_prompt_and_drawn_anew(task):
    found = task(samples_per_prompt=4)
    rollout = rollout_of(found)
    prompts = [
        tuple(ids[:count].tolist())
        for ids, count in zip(rollout.sequences.ids_BT, rollout.sequences.prompt_tokens_B, strict=True)
    ]
    assert [len(set(prompts[start : start + 4])) for start in (0, 4)] == [1, 1]
    assert prompts[0] != prompts[4]
    assert len({tuple(row.tolist()) for row in rollout.sequences.ids_BT}) > 2


def test_rollouts_draw_anew_at_every_step_and_the_same_again(task):
    """The prompts belong to the data step, the draws to the step."""
    found = task(samples_per_prompt=8, min_new_tokens=6)

    def drawn(step, data_step):
        sequences = found.sampler.sample(step, data_step, kl_coefficient=0.5).sequences
        start = int(sequences.prompt_tokens_B[0])
        return sequences.ids_BT[0, :start].tolist(), sequences.ids_BT[:, start : start + 6].tolist()

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(1, 0)[0] == drawn(0, 0)[0]
    assert drawn(1, 0)[1] != drawn(0, 0)[1]
    assert drawn(0, 1)[0] != drawn(0, 0)[0]


def shifted(task, by=0.05):
    """The task after its policy has moved away from the reference."""
    with torch.no_grad():
        for index, value in enumerate(task.models.trained.module.parameters()):
            value.add_(by * torch.randn(value.shape, generator=torch.Generator().manual_seed(index)))
    return task


def test_the_kl_penalty_is_of_the_estimator_asked_for(task):
    """With no discounting, lambda 1 and values of 0, the first token's advantage is score less all penalties."""
    for name in ("k1", "k3"):
        found = shifted(
            task(kl_estimator=name, gae_lambda=1.0, whiten_advantages=False, dtype="fp32", bootstrap_truncated=False)
        )
        for value in (found.models.value.module.head.weight, found.models.value.module.head.bias):
            torch.nn.init.zeros_(value)
        rollout = rollout_of(found, kl_coefficient=0.5)
        difference = (rollout.reference_BR - rollout.log_probability_BR) * rollout.mask_BR
        each = -difference if name == "k1" else (difference.exp() - 1 - difference) * rollout.mask_BR
        expected = rollout.score_B - 0.5 * each.sum(1)
        assert torch.allclose(rollout.advantage_BR[:, 0], expected, atol=1e-4)
        assert each.sum() > 0.1


def test_the_kl_coefficient_moves_towards_its_target_and_only_with_one(task):
    fixed, held = task(), task(kl_target=1e-3, kl_horizon=8)
    for found in (fixed, held):
        before = found.controller.coefficient
        first = whole_step(found)
        assert first.metrics["kl"] == 0.0, "the first rollout is sampled by the reference itself"
        assert first.metrics["kl_coefficient"] == before == found.spec.kl_coefficient
        found.first = found.controller.coefficient
        found.second = whole_step(found, 1)
    assert fixed.controller.coefficient == 0.05
    assert held.first == pytest.approx(0.05 * 0.8), "KL 0 is far below the target: 8 answers of a horizon of 8"
    kl = held.second.metrics["kl"]
    assert held.controller.coefficient == pytest.approx(held.first * (1 + min(max(kl / 1e-3 - 1, -0.2), 0.2)))


def test_grpo_has_its_kl_in_the_loss_with_the_present_coefficient(task):
    """The gradient of the KL term is the only one where all scores of a group are the same."""
    settings = {"estimator": "grpo", "samples_per_prompt": 8, "minibatch": 8, "ppo_epochs": 1}
    still, pulled = shifted(task(**settings, kl_coefficient=0.0)), shifted(task(**settings, kl_coefficient=0.5))
    adapted = shifted(task(**settings, kl_coefficient=0.5, kl_target=1.0, kl_horizon=8))
    norms = []
    for found, coefficient in ((still, 0.0), (pulled, 0.5), (adapted, 1.0)):
        found.models.reward.normalise = lambda score: torch.zeros_like(score)
        found.controller.coefficient = coefficient
        norms.append(whole_step(found).metrics["gradient_norm"])
    assert norms[0] == 0.0
    assert norms[1] > 1e-3
    assert norms[2] == pytest.approx(2 * norms[1], rel=1e-3)


def test_a_gae_penalty_is_not_in_the_loss(task):
    found = shifted(task(reward_clip=0.0, gae_lambda=1.0, whiten_advantages=False, minibatch=8, ppo_epochs=1))
    for value in (found.models.value.module.head.weight, found.models.value.module.head.bias):
        torch.nn.init.zeros_(value)
    found.controller.coefficient = 0.0
    found.run_part(Position(0, 0))
    found.controller.coefficient = 0.5
    assert found.run_part(Position(0, 1)).metrics["gradient_norm"] == 0.0


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_losses_are_averaged_over_tokens_or_answers(task, aggregation):
    found = task(loss_aggregation=aggregation, minibatch=8, ppo_epochs=1, whiten_advantages=False)
    rollout = rollout_of(found)
    found.sampler = FixedSampler(found.sampler, rollout)
    reported = whole_step(found).metrics["policy_loss"]
    loss, mask = -rollout.advantage_BR * rollout.mask_BR, rollout.mask_BR.float()
    each = loss.sum() / mask.sum() if aggregation == "token" else (loss.sum(1) / mask.sum(1)).mean()
    other = (loss.sum(1) / mask.sum(1)).mean() if aggregation == "token" else loss.sum() / mask.sum()
    assert reported == pytest.approx(each.item(), rel=1e-4)
    assert abs(each - other) > 1e-4


class FixedSampler:
    """A sampler that gives one rollout, and all else as the one it stands for."""

    def __init__(self, sampler, rollout):
        self._sampler, self._rollout = sampler, rollout

    def sample(self, step, data_step, *, kl_coefficient):
        return self._rollout

    def __getattr__(self, name):
        return getattr(self._sampler, name)


def test_an_answer_cut_at_its_longest_goes_on_in_the_value_model(task):
    plain, going_on = task(), task(bootstrap_truncated=True)
    first, second = rollout_of(plain), rollout_of(going_on)
    assert 0 < first.ended_B.sum() < 8
    last_B = first.mask_BR.long().sum(1) - 1
    differs_B = ~torch.isclose(first.return_BR, second.return_BR, atol=1e-5).gather(1, last_B[:, None]).squeeze(1)
    assert differs_B.tolist() == (~first.ended_B).tolist()


def test_an_answer_without_its_end_pays_and_scores_are_clipped_before(task):
    free, paying, clipped = task(), task(missing_end_penalty=2.0), task(missing_end_penalty=2.0, reward_clip=0.01)
    first, second, third = rollout_of(free), rollout_of(paying), rollout_of(clipped)
    missing_B = (~first.ended_B).float()
    assert 0 < missing_B.sum() < 8
    assert torch.allclose(first.score_B - second.score_B, 2.0 * missing_B)
    assert torch.allclose(third.score_B, first.score_B.clamp(-0.01, 0.01) - 2.0 * missing_B)
    assert first.score_B.abs().max() > 0.01


def test_the_end_is_banned_before_the_fewest_tokens(task):
    assert rollout_of(task(min_new_tokens=6)).mask_BR.long().sum(1).tolist() == [6] * 8
    found = task(min_new_tokens=3, max_new_tokens=24, temperature=3.0)
    rollout = rollout_of(found)
    end = found.models.policy.end_id
    answers = [
        ids[int(start) : int(start) + int(count)].tolist()
        for ids, start, count in zip(
            rollout.sequences.ids_BT, rollout.sequences.prompt_tokens_B, rollout.mask_BR.sum(1), strict=True
        )
    ]
    assert all(end not in answer[:3] for answer in answers)


def test_log_probabilities_of_both_models_are_at_the_sampling_temperature(task):
    rollout = rollout_of(task(temperature=0.5))
    found = task(temperature=0.5)
    sequences = rollout.sequences
    for name, module in (("log_probability_BR", found.models.trained.module), ("reference_BR", found.frozen[0])):
        with torch.no_grad():
            logits = module(input_ids=sequences.ids_BT).logits / 0.5
        column = int(sequences.prompt_tokens_B[0])
        expected = logits[0, column - 1].log_softmax(-1)[sequences.ids_BT[0, column]]
        assert getattr(rollout, name)[0, 0].item() == pytest.approx(expected.item(), abs=1e-4)


def test_advantages_are_whitened_over_the_rollout_where_asked(task):
    def spread(rollout):
        values = rollout.advantage_BR[rollout.mask_BR]
        return values.mean().item(), values.std(unbiased=False).item()

    assert spread(rollout_of(task())) == (pytest.approx(0.0, abs=1e-5), pytest.approx(1.0, abs=1e-4))
    assert spread(rollout_of(task(whiten_advantages=False)))[1] != pytest.approx(1.0, abs=1e-2)


def test_epochs_end_when_the_policy_has_moved_too_far(task):
    free, held = task(ppo_epochs=3), task(ppo_epochs=3, stop_update_kl=1e-9)
    assert moved(free)[0] > moved(held)[0]
    first = task(ppo_epochs=1)
    assert moved(first)[0] == pytest.approx(moved(task(ppo_epochs=3, stop_update_kl=1e-9))[0], rel=1e-6)
    again = task(ppo_epochs=3, stop_update_kl=1e9)
    assert moved(again)[0] == pytest.approx(moved(task(ppo_epochs=3))[0], rel=1e-6)


def test_an_entropy_bonus_keeps_the_policy_more_random(task):
    found = []
    for weight in (0.0, 5.0):
        made = task(entropy_weight=weight, learning_rate=5e-3)
        found.append([whole_step(made, step).metrics["entropy"] for step in range(2)][-1])
    assert found[1] > found[0]


def test_the_loss_on_ptx_data_moves_the_policy_towards_it(task):
    """Values and scores that are constant give no gradient of PPO: what is left is the mix, and it learns the chats."""
    settings = {"estimator": "grpo", "samples_per_prompt": 8, "kl_coefficient": 0.0, "learning_rate": 5e-3}
    mixed, plain = task(**settings, ptx_weight=1.0, ptx_batch=4, seq_len=48), task(**settings)
    for found in (mixed, plain):
        found.models.reward.normalise = lambda score: torch.zeros_like(score)
    assert moved(plain) == [0.0]
    losses = [whole_step(mixed, step).metrics["ptx_loss"] for step in range(2)]
    assert losses[1] < losses[0] - 0.05
    assert mixed.update.mix.parts(0) != mixed.update.mix.parts(1)


def test_the_mix_goes_through_the_policy_by_micro_batches_and_adds_up(task):
    """A policy that only fits one row at a time must fit the mix, too."""
    settings = {"ptx_weight": 1.0, "ptx_batch": 6, "seq_len": 48, "minibatch": 8, "ppo_epochs": 1}
    norms = []
    for frozen in ({}, {"micro_batch": 2}):
        made = task(**settings, frozen=frozen)
        made.models.reward.normalise = lambda score: torch.zeros_like(score)
        assert [len(part) for part in made.update.mix.parts(0)] == ([2, 2, 2] if frozen else [6])
        norms.append(whole_step(made).metrics)
    for name in ("ptx_loss", "gradient_norm"):
        assert norms[1][name] == pytest.approx(norms[0][name], rel=1e-4), name


def test_the_weight_of_the_mix_scales_its_gradient(task):
    settings = {"estimator": "grpo", "samples_per_prompt": 8, "kl_coefficient": 0.0, "minibatch": 8, "ppo_epochs": 1}
    norms = []
    for weight in (1.0, 3.0):
        found = task(**settings, ptx_weight=weight, ptx_batch=8, seq_len=48)
        found.models.reward.normalise = lambda score: torch.zeros_like(score)
        mix, model = found.update.mix, found.models.trained.module
        (rows,) = mix.parts(0)
        data = mix.loss(rows)
        assert counted_tokens(rows) == data.terms > 0
        (data.loss_sum / data.terms).backward()
        alone = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()
        model.zero_grad()
        norms.append(whole_step(found).metrics["gradient_norm"] / (weight * alone))
    assert norms == [pytest.approx(1.0, rel=1e-4)] * 2


class OtherProgram(NativeGenerator):
    """Says that its log-probabilities are other than the trainer's, as another program's are."""

    def __init__(self, policy, by):
        super().__init__(policy)
        self._by = by

    def sample(self, prompts, *, seeds, settings, prompt_width=None, version=None):
        answers = generate(self._policy, prompts, seeds=seeds, settings=settings, prompt_width=prompt_width)
        return replace(answers, log_probability_BR=torch.full(answers.answer_BR.shape, self._by))


def test_importance_weights_between_generator_and_trainer_are_cut_and_weigh_the_loss(task):
    settings = {"minibatch": 8, "ppo_epochs": 1, "whiten_advantages": False}
    plain, clipped = task(**settings), task(mismatch_clip=2.0, **settings)
    reports = {}
    for name, by in (("half", -4.5), ("cut", -100.0)):
        found = task(mismatch_clip=2.0, **settings)
        found.sampler = replace(found.sampler, generator=OtherProgram(found.models.policy, by))
        rollout = rollout_of(found)
        expected = (rollout.log_probability_BR - by).exp().clamp(max=2.0)
        assert torch.allclose(rollout.weight_BR[rollout.mask_BR], expected[rollout.mask_BR])
        reports[name] = whole_step(found).metrics["policy_loss"]
    assert rollout_of(clipped).weight_BR is None, "the trainer samples itself: nothing to weigh"
    assert reports["cut"] == pytest.approx(2 * whole_step(plain).metrics["policy_loss"], rel=1e-4)
    assert reports["half"] != pytest.approx(reports["cut"], rel=1e-2)


class Twins(Ranks):
    """Two processes that hold parts of the same tensors: what one says the other says too."""

    def gather(self, value):
        return [value, value]

    def from_first(self, value):
        return value


def test_processes_that_share_tensors_ask_another_program_once(task):
    found, asked = task(), []
    generator = OtherProgram(found.models.policy, -1.0)
    generator.is_exact = False
    sample = generator.sample
    generator.sample = lambda prompts, **settings: (asked.append(len(prompts)), sample(prompts, **settings))[1]
    found.sampler = replace(found.sampler, generator=generator)
    found.setup.ranks = Twins(world_size=2)
    rollout_of(found)
    assert asked == [8]


def test_a_policy_changed_between_rollout_and_update_is_noticed(task):
    found = task()
    found.run_part(Position(0, 0))
    with torch.no_grad():
        next(found.models.trained.module.parameters()).add_(0.01)
    with pytest.raises(StageError, match="ratio is not 1"):
        found.run_part(Position(0, 1))


@pytest.mark.parametrize(("minibatch", "before"), [(8, 0), (4, 2)])
def test_a_first_pass_that_says_what_was_drawn_moves_no_bit(task, monkeypatch, minibatch, before):
    """Passes of the policy before its first update: those of the other minibatches, and the same weights after it."""
    passes, ends = [], []
    evaluate = rollouts.answer_log_probabilities
    monkeypatch.setattr(
        rollouts, "answer_log_probabilities", lambda call, *a, **k: (passes.append(call), evaluate(call, *a, **k))[1]
    )
    settings = {"estimator": "grpo", "samples_per_prompt": 2, "ppo_epochs": 1, "minibatch": minibatch}
    for is_spared in (True, False):
        if not is_spared:
            monkeypatch.setattr(ppo.PpoStage, "old_from_update", False)
        made = task(frozen={"micro_batch": 2}, **settings)
        reports = [whole_step(made, step).metrics for step in range(2)]
        own = passes.count(made.models.trained.module)
        assert own == 2 * (before if is_spared else 4)
        ends.append((weights(made.models.trained.module), reports))
    (spared, its_reports), (plain, reports) = ends
    assert torch.equal(spared, plain)
    assert its_reports == reports
    assert reports[0]["answer_entropy"] > 0


def test_micro_batches_add_up_to_the_minibatch(task):
    """The rounding of matrix products of another shape is all that differs; learning is slow, so that Adam's first
    steps, which have the sign of a gradient that may be 0 but for rounding, cannot show more."""
    found = {}
    for size in (0, 1, 3):
        made = task(frozen={"micro_batch": size}, entropy_weight=0.1)
        found[size] = whole_step(made).metrics
    for size in (1, 3):
        for name in ("policy_loss", "value_loss", "gradient_norm", "value_gradient_norm", "entropy", "clip_fraction"):
            assert found[size][name] == pytest.approx(found[0][name], rel=2e-2, abs=1e-4), (size, name)


def test_first_gradients_do_not_depend_on_the_micro_batch(task):
    norms = []
    for size in (0, 1, 3):
        made = task(frozen={"micro_batch": size}, minibatch=8, ppo_epochs=1, entropy_weight=0.1)
        report = whole_step(made).metrics
        norms.append([report[name] for name in ("gradient_norm", "value_gradient_norm", "policy_loss", "value_loss")])
    assert norms[1] == pytest.approx(norms[0], rel=1e-3, abs=1e-6)
    assert norms[2] == pytest.approx(norms[0], rel=1e-3, abs=1e-6)


def test_the_value_loss_is_weighted(task):
    norms = []
    for weight in (0.5, 1.0):
        found = task(value_loss_weight=weight, minibatch=8, ppo_epochs=1)
        norms.append(whole_step(found).metrics["value_gradient_norm"])
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-4)


def test_learning_rates_are_each_models_own_and_follow_the_schedule(task):
    found = task(learning_rate=1e-3, value_learning_rate=2e-3, schedule="linear", min_learning_rate_ratio=0.0)
    whole_step(found)
    assert [item.param_groups[0]["lr"] for item in optimizers(found)] == [1e-3, 2e-3]
    report = whole_step(found, 1)
    assert [item.param_groups[0]["lr"] for item in optimizers(found)] == [5e-4, 1e-3]
    assert report.metrics["learning_rate"] == 5e-4


def optimizers(task):
    return task.update.policy_optimizer, task.update.value_optimizer


def test_gradients_of_both_models_are_clipped(task):
    free = task(minibatch=8, ppo_epochs=1)
    report = whole_step(free).metrics
    held = task(minibatch=8, ppo_epochs=1, gradient_clip=1e-9, learning_rate=1.0)
    assert report["gradient_norm"] > 1e-6
    assert whole_step(held).metrics["gradient_norm"] == pytest.approx(report["gradient_norm"], rel=1e-4)
    for optimizer in optimizers(held):
        assert 0 < max(item["exp_avg"].abs().max().item() for item in optimizer.state.values()) <= 1e-9


def test_gradients_of_an_update_that_was_given_up_do_not_reach_the_next(task):
    norms = []
    for left in (0.0, 1e3):
        found = task(minibatch=8, ppo_epochs=1)
        trained = [*found.models.trained.trained_parameters(), *found.models.value.trained_parameters()]
        for parameter in trained:
            parameter.grad = torch.full_like(parameter, left)
        norms.append(whole_step(found).metrics["gradient_norm"])
        assert all(parameter.grad is None for parameter in trained), "nor are they held while answers are sampled"
    assert norms[0] == norms[1]


def test_gradients_are_exchanged_once_for_each_update(task, monkeypatch):
    waited = []
    found = task(frozen={"micro_batch": 2}, minibatch=8, ppo_epochs=1)
    for parallel in (found.models.trained, found.models.value):
        monkeypatch.setattr(parallel, "accumulating", lambda real=parallel.accumulating: (waited.append(1), real())[1])
    whole_step(found)
    assert len(waited) == 2 * 3, "all but the last of four micro-batches, of two models"


def test_each_epoch_has_an_order_of_its_own(task):
    found = task(ppo_epochs=2)

    def order(step, epoch):
        parts = found.sampler.micro_batches(step, epoch)
        assert [sum(len(part) for part in minibatch) for minibatch in parts] == [4, 4]
        return [int(row) for minibatch in parts for part in minibatch for row in part]

    orders = [order(*place) for place in ((0, 0), (0, 1), (1, 0))]
    assert all(sorted(item) == list(range(8)) for item in orders)
    assert len({tuple(item) for item in orders}) == 3
    assert order(0, 0) == orders[0]


def test_the_distance_that_ends_the_epochs_is_the_last_epochs_own(task):
    found = task(ppo_epochs=4, stop_update_kl=0.5)
    told = iter([0.3, 0.3, 0.4, 0.4, 0.7, 0.7, 0.1, 0.1])
    found.update.minibatch = lambda *arguments, **more: {"update_kl": next(told), "minibatches": 1.0}
    report = whole_step(found)
    assert list(told) == [0.1, 0.1], "the third epoch is the last"
    assert report.metrics["update_kl"] == pytest.approx(2.8 / 6)


def test_each_process_reads_its_share_of_the_mix(task):
    found = task(ptx_weight=1.0, ptx_batch=6, seq_len=48)
    (whole,) = found.update.mix.parts(0)
    parts = []
    for rank in range(2):
        found.setup.ranks = Ranks(rank=rank, world_size=2, data_rank=rank, data_size=2)
        parts += found.update.mix.parts(0)
    assert sorted(row.ids for part in parts for row in part) == sorted(row.ids for row in whole)
    assert [len(part) for part in parts] == [3, 3]


def test_the_work_of_a_rollout_is_counted(task):
    found = task()
    found.run_part(Position(0, 0))
    tokens = int(found.state.buffers["sequences.mask_BT"].sum())
    answer_tokens = int(found.state.buffers["sequences.answer_mask_BR"].sum())
    for part in range(1, found.parts):
        report = found.run_part(Position(0, part))
    assert report.counters == {"episodes": 8, "tokens": tokens}
    assert report.metrics["response_tokens"] == answer_tokens / 8
    assert report.score == report.metrics["reward_mean"]
    assert found.state.buffers == {}
    assert found.progress.sums == {}


@pytest.mark.parametrize(
    ("changes", "reads"),
    [({}, 3), ({"estimator": "grpo", "samples_per_prompt": 2, "ppo_epochs": 1}, 2.5), ({"kl_coefficient": 0.0}, 2)],
)
def test_passes_that_a_rollout_does_without_are_not_counted(task, changes, reads):
    """Scoring by the policy of what its update computes, and by a reference that there is none of."""
    assert task(**changes).setup.meter.work.reads == reads


def test_what_cannot_be_sampled_again_is_kept_at_once(task):
    found = task()
    places = [Position(0, 1), Position(0, 2), Position(1, 0)]
    assert [found.must_save(at) for at in places] == [False] * 3
    other = NativeGenerator(found.models.policy)
    other.is_exact = False
    found.sampler = replace(found.sampler, generator=other)
    assert [found.must_save(at) for at in places] == [True, False, False]
    found.sampler = replace(found.sampler, generator=None)
    assert found.must_save(places[0])


def test_ppo_goes_back_and_around_the_prompts_that_made_it_diverge(engine_inputs, tmp_path):
    """Divergence in the second epoch of rollout 2 (from 0): back to rollout 1, whose prompts are those of rollout 3."""
    from charter.spec.stage_base import Guard

    guard = Guard(on_divergence="roll_back", roll_back_steps=1, skip_steps=2)
    found = stage(
        engine_inputs, tmp_path / "back", "ppo", episodes=32, checkpoint_every=1, checkpoint_epochs=True, guard=guard
    )
    task, _ = ppo_task(set_up(found))
    read, clean, update = [], task.sampler.sample, task.update.minibatch

    class Watched(FixedSampler):
        def sample(self, step, data_step, *, kl_coefficient):
            read.append((step, data_step))
            return clean(step, data_step, kl_coefficient=kl_coefficient)

    def minibatch(rollout, parts, at, guard, *, kl_coefficient):
        if (at.step, at.epoch) == (2, 1) and read[-1] == (2, 2):
            guard.allows(at.step, float("nan"), 1.0)
        return update(rollout, parts, at, guard, kl_coefficient=kl_coefficient)

    task.sampler, task.update.minibatch = Watched(task.sampler, None), minibatch
    task.train()
    assert read == [(0, 0), (1, 1), (2, 2), (1, 3), (2, 4), (3, 5)]
    assert [line["step"] for line in metrics(found)] == [1, 2, 3, 4]
    again, _ = ppo_task(set_up(found))
    Loop(again.setup, again).run()
    assert torch.equal(weights(again.models.trained.module), weights(task.models.trained.module))


def test_a_diverging_update_is_left_out_or_stops_the_stage(task):
    from charter.spec.stage_base import Guard
    from charter.train.loop import DivergedError

    skipping, stopping = task(guard=Guard(on_divergence="skip", most=100)), task()
    for found in (skipping, stopping):
        found.models.reward.normalise = lambda score: score * float("nan")
    before = weights(skipping.models.trained.module).clone()
    whole_step(skipping)
    assert torch.equal(before, weights(skipping.models.trained.module))
    assert skipping.guard.skipped == 4
    with pytest.raises(DivergedError, match="not finite"):
        whole_step(stopping)


def test_one_step_off_draws_before_the_last_update(task):
    """Rollout k + 1 is the one that the weights before update k draw, with their log-probabilities and values."""
    apart, together = (task(asynchrony="one_step_off", episodes=24) for _ in range(2))
    for step in range(3):
        for part in range(apart.parts):
            apart.run_part(Position(step, part))
            if part == 0 and step < 2:
                drawn = rollout_of(together, step + 1, kl_coefficient=together.controller.coefficient)
                expected = drawn.to_buffers(together.setup.ranks)
                held = {name[6:]: value for name, value in apart.state.buffers.items() if name.startswith("ahead.")}
                assert held.keys() == expected.keys()
                assert all(torch.equal(held[name], value) for name, value in expected.items())
            together.run_part(Position(step, part))
    assert apart.state.buffers == {}, "behind the last of three none is drawn"


def test_one_step_off_counts_how_far_the_policy_moved_since(task):
    """The ratio is 1 where the policy drew its own rollout, and holds the update in between where it did not."""
    own, older = task(minibatch=8, ppo_epochs=1), task(minibatch=8, ppo_epochs=1, asynchrony="one_step_off")
    first, second = ([whole_step(item, step).metrics for step in range(2)] for item in (own, older))
    assert "rollout_age" not in first[1]
    assert [row["rollout_age"] for row in second] == [0.0, 1.0]
    assert first[1]["update_kl"] == 0.0
    assert second[1]["update_kl"] > 0.0
    assert second[0]["update_kl"] == 0.0


def test_one_step_off_goes_back_behind_what_it_read(engine_inputs, tmp_path):
    """Rollout 1 was drawn during rollout 0, by prompts that the roll-back leaves out: it is drawn anew from there."""
    from charter.spec.stage_base import Guard

    guard = Guard(on_divergence="roll_back", roll_back_steps=1, skip_steps=2)
    found = stage(
        engine_inputs, tmp_path / "back", "ppo", episodes=40, checkpoint_every=1, checkpoint_epochs=True,
        guard=guard, asynchrony="one_step_off",
    )  # fmt: skip
    task, _ = ppo_task(set_up(found))
    read, clean, update = [], task.sampler.sample, task.update.minibatch

    class Watched(FixedSampler):
        def sample(self, step, data_step, *, kl_coefficient):
            read.append((step, data_step))
            return clean(step, data_step, kl_coefficient=kl_coefficient)

    def minibatch(rollout, parts, at, guard, *, kl_coefficient):
        if (at.step, at.epoch) == (3, 1) and read[-1] == (4, 4):
            guard.allows(at.step, float("nan"), 1.0)
        return update(rollout, parts, at, guard, kl_coefficient=kl_coefficient)

    task.sampler, task.update.minibatch = Watched(task.sampler, None), minibatch
    task.train()
    assert read == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (2, 4), (3, 5), (4, 6)]
    again, _ = ppo_task(set_up(found))
    Loop(again.setup, again).run()
    assert torch.equal(weights(again.models.trained.module), weights(task.models.trained.module))


@pytest.fixture
def taught(engine_inputs, tmp_path):
    """(changes of the spec) -> a task whose teacher is the same architecture with other weights, without any reward."""
    import tiny

    teacher, count = tmp_path / "teacher", iter(range(100))
    tiny.language_model(seed=5).save(teacher / "model")

    def make(**changes):
        settings = {"reward": None, "estimator": "distill", "teacher": str(teacher), "learning_rate": 3e-3, **changes}
        found = stage(engine_inputs, tmp_path / f"taught-{next(count)}", "ppo", **settings)
        made, _ = ppo_task(set_up(found))
        return made

    return make


def test_distillation_learns_from_its_own_answers(taught):
    """A token's advantage is the teacher's log-probability less the policy's; the reverse KL falls."""
    found = taught(episodes=96, minibatch=8, ppo_epochs=1)
    Loop(found.setup, found)
    assert found.models.reward is None
    assert found.models.reference is None
    rollout = rollout_of(found)
    own, teacher = rollout.log_probability_BR, rollout.teacher_BR
    assert torch.equal(rollout.advantage_BR, torch.where(rollout.mask_BR, teacher - own, 0.0))
    before = weights(found.models.teacher.module).clone()
    reports = [whole_step(found, step) for step in range(12)]
    gaps = [report.metrics["teacher_kl"] for report in reports]
    assert sum(gaps[-3:]) < 0.8 * sum(gaps[:3])
    assert reports[0].score == -gaps[0]
    assert torch.equal(weights(found.models.teacher.module), before)


def test_a_stopped_distillation_ends_in_the_same_bits(taught):
    """Two rollouts at once, and one, a checkpoint and one in a new process's objects: the same weights."""
    whole, first = taught(episodes=16), taught(episodes=16)
    whole.train()
    loop = Loop(first.setup, first)
    whole_step(first, 0)
    loop.checkpoints.save(Position(1), None)
    loop.checkpoints.finish()
    again, _ = ppo_task(set_up(first.setup.stage))
    again.train()
    assert torch.equal(weights(again.models.trained.module), weights(whole.models.trained.module))


def test_a_teacher_with_other_tokens_is_refused(engine_inputs, tmp_path):
    import tiny

    from charter.errors import DataError
    from charter.models.chat import train_tokenizer
    from charter.models.language_model import new_language_model

    other = new_language_model(tiny.ARCHITECTURE, train_tokenizer(["other words entirely"] * 9, vocab_size=300), seed=1)
    other.save(tmp_path / "teacher" / "model")
    settings = {"reward": None, "estimator": "distill", "teacher": str(tmp_path / "teacher")}
    found = stage(engine_inputs, tmp_path / "taught", "ppo", **settings)
    with pytest.raises(DataError, match="another tokenizer"):
        ppo_task(set_up(found))


def kill_in_a_later_part(path):
    """Run a stage in this process until the second part of its third rollout, and end it there."""
    drawn, real = [], generate

    def killing(*arguments, **more):
        drawn.append(1)
        if len(drawn) == 3 * 3 - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **more)

    with mock.patch("charter.inference.generator.generate", killing):
        ppo.run(StageDir(path))


def test_a_stage_killed_between_parts_of_a_rollout_ends_the_same(engine_inputs, tmp_path):
    """Parts of 3, 3 and 2 answers: their size is among the frozen values, and so each part is drawn again as it was."""
    given = {"frozen": {"decode_batch": 3}, "episodes": 32, "checkpoint_every": 1}
    calm, killed = (stage(engine_inputs, tmp_path / name, "ppo", **given) for name in ("calm", "killed"))
    ppo.run(calm)
    process = multiprocessing.get_context("fork").Process(target=kill_in_a_later_part, args=(killed.path,))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert [line["step"] for line in metrics(killed)] == [1, 2]
    ppo.run(killed)
    assert published(killed).keys() == published(calm).keys()
    assert all(torch.equal(value, published(calm)[name]) for name, value in published(killed).items())
