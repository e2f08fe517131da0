"""The training loop and PPO on a very small real model."""

import copy
import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny  # noqa: E402

from charter.errors import StageError  # noqa: E402
from charter.models.preference import PreferenceModel, ScalarModel  # noqa: E402
from charter.spec.dataset import Prompt, Turn  # noqa: E402
from charter.spec.stage import PpoStage, PreferenceModelStage  # noqa: E402
from charter.train.ppo import PpoRun  # noqa: E402
from charter.train.preference_model import pair_loss, shuffled  # noqa: E402
from charter.train.supervised import BatchLoss, SupervisedRun, make_optimizer  # noqa: E402

pytestmark = pytest.mark.torch
SETTINGS = {"pooling": "mean", "context": "full", "seq_len": 64, "score_mean": 0.0, "score_deviation": 1.0}


def preference_run(path, *, micro_batch=0, steps=12, dropout=0.0, gradient_clip=1.0):
    spec = PreferenceModelStage(
        init="m",
        data=("d",),
        learning_rate=1e-3,
        steps=steps,
        global_batch=8,
        dropout=dropout,
        dtype="fp32",
        schedule="constant",
        gradient_clip=gradient_clip,
    )
    model = tiny.language_model()
    scalar = ScalarModel(model, dropout=dropout)
    reward = PreferenceModel(scalar, model, dict(SETTINGS))
    data = tiny.pairs()
    frozen = {"threads": 1, "device": "cpu", "micro_batch": micro_batch}
    stage = tiny.stage_dir(path, spec, frozen=frozen)
    optimizer = make_optimizer([(list(scalar.parameters()), spec.learning_rate)], spec)
    return SupervisedRun(
        stage,
        scalar,
        optimizer,
        spec,
        len(data),
        steps,
        lambda rows, step: pair_loss(reward, [data[row] for row in rows], dtype="fp32"),
    )


def weights(module):
    return torch.cat([value.flatten() for value in module.state_dict().values()])


def test_the_loop_learns_an_easy_preference(tmp_path):
    run = preference_run(tmp_path, steps=30)
    run.train()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert '"accuracy": 1.0' in lines[-1] or '"accuracy":1.0' in lines[-1]


def test_accumulated_micro_batches_give_the_whole_batch_gradient(tmp_path):
    def gradient(run):
        run.module.head.weight.data.normal_(generator=torch.Generator().manual_seed(1))
        run.optimizer.step = lambda: found.append([p.grad.clone() for p in run.module.parameters()])
        found = []
        run._step(0)
        return torch.cat([item.flatten() for item in found[0]])

    whole = gradient(preference_run(tmp_path / "a"))
    parts = gradient(preference_run(tmp_path / "b", micro_batch=2))
    assert whole.norm() > 0.01
    assert torch.allclose(whole, parts, atol=1e-6)
    mean_loss = preference_run(tmp_path / "c", gradient_clip=1e9)
    unclipped = gradient(mean_loss)
    mean_loss.optimizer.zero_grad()
    result = mean_loss.loss_of(range(8), 0)
    (result.loss_sum / result.terms).backward()
    wanted = torch.cat([p.grad.flatten() for p in mean_loss.module.parameters()])
    assert torch.allclose(unclipped, wanted, atol=1e-6)


def test_the_work_done_is_counted_exactly(tmp_path):
    run = preference_run(tmp_path, steps=5)
    run.train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["pairs"] for line in lines) == 5 * 8


def test_a_loss_that_is_not_finite_stops_the_stage_before_the_weights_change(tmp_path):
    run = preference_run(tmp_path)
    before = weights(run.module).clone()
    run.loss_of = lambda rows, step: BatchLoss(
        sum(p.sum() for p in run.module.parameters()) * float("nan"), 1.0, {}, {}
    )
    with pytest.raises(StageError, match="not finite"):
        run.train()
    assert torch.equal(before, weights(run.module))


@pytest.mark.parametrize("stop_at", [1, 5, 11])
def test_a_stopped_loop_with_dropout_continues_bit_for_bit(tmp_path, stop_at):
    undisturbed = preference_run(tmp_path / "a", dropout=0.3)
    undisturbed.train()
    first = preference_run(tmp_path / "b", dropout=0.3)
    done = []
    report = first.stage.report
    first.stage.report = lambda *arguments: (done.append(1), report(*arguments))
    first.stage._should_stop = lambda: len(done) >= stop_at
    with pytest.raises(Exception, match=f"stopped at step {stop_at} of 12"):
        first.train()
    torch.manual_seed(999)
    second = preference_run(tmp_path / "b", dropout=0.3)
    second.train()
    assert torch.equal(weights(undisturbed.module), weights(second.module))


def test_shuffled_labels_keep_texts_and_label_values_but_lose_the_link():
    data = [replace(pair, chosen_probability=0.5 + i / 20) for i, pair in enumerate(tiny.pairs())]
    mixed = shuffled(data, seed=3)

    def label_of_first(pair):
        return round(pair.chosen_probability if pair.chosen < pair.rejected else 1 - pair.chosen_probability, 6)

    assert [{pair.chosen, pair.rejected} for pair in mixed] == [{pair.chosen, pair.rejected} for pair in data]
    before, after = [label_of_first(pair) for pair in data], [label_of_first(pair) for pair in mixed]
    assert sorted(before) == sorted(after)
    assert sum(a == b for a, b in zip(before, after, strict=True)) < len(data) / 2


def ppo_run(path, **changes):
    settings = {
        "episodes": 32,
        "rollout_batch": 8,
        "minibatch": 4,
        "ppo_epochs": 2,
        "max_new_tokens": 6,
        "max_prompt_tokens": 16,
        "learning_rate": 1e-3,
        "value_learning_rate": 1e-3,
        "kl_target": 1.0,
        "kl_horizon": 50,
        "checkpoint_every": 1,
        "dtype": "fp32",
    } | changes
    spec = PpoStage(policy="p", reward="r", prompts=("q",), **settings)
    reward_model = tiny.language_model(seed=1)
    scalar = ScalarModel(reward_model)
    torch.manual_seed(5)
    torch.nn.init.normal_(scalar.head.weight)
    value_model = tiny.language_model(seed=1)
    value = ScalarModel(value_model)
    value.load_state_dict(scalar.state_dict())
    return PpoRun(
        stage=tiny.stage_dir(path, spec),
        spec=spec,
        policy=tiny.language_model(),
        reference=tiny.language_model(),
        reward=PreferenceModel(scalar, reward_model, dict(SETTINGS)),
        value=value,
        prompts=tuple(Prompt(f"q{i}", (Turn("user", text),)) for i, text in enumerate(tiny.TEXTS[:8])),
    )


def policy_weights(run):
    return torch.cat([weights(run.policy.model), weights(run.value)])


def test_frozen_models_do_not_change_and_trained_ones_do(tmp_path):
    run = ppo_run(tmp_path)
    reference, reward = weights(run.reference.model).clone(), weights(run.reward.scalar).clone()
    before = policy_weights(run).clone()
    run.train()
    assert torch.equal(reference, weights(run.reference.model))
    assert torch.equal(reward, weights(run.reward.scalar))
    assert not torch.equal(before, policy_weights(run))


def test_value_warm_up_leaves_the_policy_alone(tmp_path):
    run = ppo_run(tmp_path, value_warmup_rollouts=4)
    policy, value = weights(run.policy.model).clone(), weights(run.value).clone()
    run.train()
    assert torch.equal(policy, weights(run.policy.model))
    assert not torch.equal(value, weights(run.value))


def test_rewards_are_clipped_at_the_limit(tmp_path):
    free, held = ppo_run(tmp_path / "a"), ppo_run(tmp_path / "b", reward_clip=0.01)
    assert free._rollout(0).score_B.abs().max() > 0.01
    assert held._rollout(0).score_B.abs().max() <= 0.01


def test_an_entropy_bonus_keeps_the_policy_more_random(tmp_path):
    plain, bonus = ppo_run(tmp_path / "a"), ppo_run(tmp_path / "b", entropy_weight=10.0)
    for run in (plain, bonus):
        for step in range(3):
            metrics, _ = run._step(step)
        run.last_entropy = metrics["entropy"]
    assert bonus.last_entropy > plain.last_entropy


def test_every_rollout_draws_anew(tmp_path):
    run = ppo_run(tmp_path)
    run.prompts = run.prompts[:1]
    first, again, second = run._rollout(0), run._rollout(0), run._rollout(1)
    assert torch.equal(first.sequences.ids_BT, again.sequences.ids_BT)
    assert not torch.equal(first.sequences.ids_BT, second.sequences.ids_BT)
    assert len({tuple(row) for row in first.sequences.ids_BT.tolist()}) > 1


def test_a_policy_changed_between_rollout_and_update_is_noticed(tmp_path):
    run = ppo_run(tmp_path)
    rollout = run._rollout(0)
    with torch.no_grad():
        next(run.policy.model.parameters()).add_(0.01)
    with pytest.raises(StageError, match="ratio is not 1"):
        run._update(rollout, 0)


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_ppo_continues_bit_for_bit_from_every_rollout(tmp_path, stop_at):
    undisturbed = ppo_run(tmp_path / "a")
    undisturbed.train()
    first = ppo_run(tmp_path / "b")
    first.load_state_dict(first.state_dict())
    seen = []
    first.stage._should_stop = lambda: len(seen) >= stop_at
    report = first.stage.report
    first.stage.report = lambda *a: (seen.append(1), report(*a))
    with pytest.raises(Exception, match=f"stopped at rollout {stop_at} of 4"):
        first.train()
    torch.manual_seed(12345)
    second = ppo_run(tmp_path / "b")
    second.train()
    assert torch.equal(policy_weights(undisturbed), policy_weights(second))
    assert undisturbed.controller.coefficient == second.controller.coefficient != 0.05


@pytest.mark.parametrize("forgotten", ["policy", "value", "policy_optimizer", "value_optimizer", "kl_controller"])
def test_every_part_of_the_checkpoint_is_needed(tmp_path, forgotten):
    """Each item that a resume restores matters: without it the weights differ."""
    undisturbed = ppo_run(tmp_path / "a")
    undisturbed.train()
    first = ppo_run(tmp_path / "b")
    first._step(0)
    first._step(1)
    state = copy.deepcopy(first.state_dict())
    second = ppo_run(tmp_path / "c")
    fresh = copy.deepcopy(second.state_dict())
    second.load_state_dict(state | {forgotten: fresh[forgotten]})
    second._step(2)
    second._step(3)
    assert not torch.equal(policy_weights(undisturbed), policy_weights(second))


def test_the_state_of_ppo_covers_all_that_training_changes(tmp_path):
    """A new attribute that training changes must enter `state_dict`, or this fails."""
    run = ppo_run(tmp_path)
    plain_before = {k: copy.deepcopy(v) for k, v in vars(run).items() if isinstance(v, int | float | str | tuple)}
    controller_before = copy.deepcopy(vars(run.controller))
    run._step(0)
    plain_after = {k: v for k, v in vars(run).items() if isinstance(v, int | float | str | tuple)}
    assert plain_before == plain_after
    changed = {k for k, v in vars(run.controller).items() if v != controller_before[k]}
    assert changed <= set(run.controller.state_dict())
    assert set(run.state_dict()) == {"policy", "value", "policy_optimizer", "value_optimizer", "kl_controller"}
