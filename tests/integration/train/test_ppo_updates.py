"""Settings of PPO that an update follows, on a very small real model: losses, gradients, epochs, the mix."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ppo_bench import moved, weights, whole_step

from charter.artifacts.checkpoints import Position
from charter.models.ranks import Ranks
from charter.spec.ppo_stage import PpoStage
from charter.train import ppo
from charter.train import ppo_rollout as rollouts
from charter.train import ppo_step as updates
from charter.train.pretraining_mix import counted_tokens

pytestmark = pytest.mark.torch


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


@pytest.mark.parametrize(
    "reads_before",
    [
        {"ppo_epochs": 2},
        {"kl_coefficient": 0.1, "kl_in": "reward"},
        {"teacher": "t"},
        {"mismatch_clip": 2.0},
        {"asynchrony": "one_step_off"},
    ],
)
def test_what_reads_old_figures_before_an_update_needs_them(reads_before):
    spec = PpoStage(
        policy="p", reward="r", prompts=("q",), episodes=64, estimator="grpo", kl_coefficient=0, ppo_epochs=1
    )
    assert spec.old_from_update
    assert replace(spec, kl_coefficient=0.1, kl_in="loss").old_from_update
    assert not replace(spec, **reads_before).old_from_update


@pytest.mark.parametrize(("minibatch", "spared"), [(8, 2), (4, 2)])
def test_a_pass_that_waits_for_its_update_moves_no_bit(task, monkeypatch, minibatch, spared):
    """The first minibatch is read once by each trained model, in scoring: the update takes what its backward needs."""
    passes, ends = [], []
    for place in (rollouts, updates):
        for name in ("answer_log_probabilities", "answer_values"):
            run = getattr(place, name)
            monkeypatch.setattr(place, name, lambda *a, run=run, **k: (passes.append(1), run(*a, **k))[1])
    for waits in (True, False):
        if not waits:
            monkeypatch.setattr(rollouts.Sampler, "_keeps_first", lambda *asked: False)
        passes.clear()
        made = task(minibatch=minibatch, entropy_weight=0.1)
        reports = [whole_step(made, step).metrics for step in range(2)]
        trained = [made.models.trained.module, made.models.value.module]
        ends.append((torch.cat([weights(item) for item in trained]), reports, len(passes)))
    (kept, its_reports, fewer), (plain, reports, every) = ends
    assert torch.equal(kept, plain)
    assert its_reports == reports
    assert every - fewer == 2 * spared


def test_a_waiting_pass_is_of_its_step_and_weights_alone(task):
    made = task()
    made.run_part(Position(0, 0))
    first = made.models.value.first_pass
    assert first.take(1) == ()
    made.run_part(Position(0, 0))
    with torch.no_grad():
        next(made.models.value.module.parameters()).mul_(1.0)
    assert first.take(0) == ()
    made.run_part(Position(0, 0))
    assert first.take(0)[0].requires_grad
    assert first.take(0) == ()


@pytest.mark.parametrize(
    ("frozen", "changes"),
    [
        ({"micro_batch": 2}, {}),
        ({"recompute": "full"}, {}),
        ({}, {"value_warmup_rollouts": 1}),
        ({}, {"asynchrony": "one_step_off"}),
    ],
)
def test_no_pass_waits_where_it_would_be_another(task, frozen, changes):
    made = task(frozen=frozen, **changes)
    made.run_part(Position(0, 0))
    assert made.models.value.first_pass.take(0) == ()


def test_no_pass_waits_on_an_accelerator(task, monkeypatch):
    """Its memory is short: what backward passes need of a scored batch is let go."""
    monkeypatch.setattr(rollouts, "is_queued", lambda device: True)
    made = task()
    made.run_part(Position(0, 0))
    assert made.models.value.first_pass.take(0) == ()
