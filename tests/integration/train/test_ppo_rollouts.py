"""Settings of PPO that a rollout, its rewards and its advantages follow, on a very small real model."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ppo_bench import FixedSampler, rollout_of, shifted, whole_step

from charter.artifacts.checkpoints import Position
from charter.errors import StageError
from charter.inference.generate import generate
from charter.inference.generator import NativeGenerator
from charter.models.ranks import Ranks

pytestmark = pytest.mark.torch


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
