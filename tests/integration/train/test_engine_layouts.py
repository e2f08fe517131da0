"""Whole stages of several processes, of every kind of model: what they publish is what one process does."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import farthest, metrics, run, stage, weights

from charter.artifacts.checkpoints import RESHARDED
from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import InterruptedRunError
from charter.models.preference import load_preference_model
from charter.spec.layout import Adapter
from charter.train import (
    dpo,
    judge,
    ppo,
    preference_model,
    sft,
)

pytestmark = pytest.mark.torch
MODULES = {"sft": sft, "preference_model": preference_model, "dpo": dpo, "judge": judge, "ppo": ppo}
DDP, SHARDED = {"world_size": 2}, {"world_size": 2, "zero": 3}
HYBRID = {"world_size": 4, "zero": 3, "replicas": 2}
TENSOR = {"world_size": 2, "tensor": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": 1}
CONTEXT = {**SHARDED, "context": 2}
THOROUGH = pytest.mark.thorough
CASES = [
    ("sft", HYBRID),
    pytest.param("sft", TENSOR, marks=THOROUGH),
    ("dpo", DDP),
    pytest.param("dpo", SHARDED, marks=THOROUGH),
    ("dpo", CONTEXT),
    pytest.param("dpo", {"world_size": 4, "context": 2}, marks=THOROUGH),
    pytest.param("judge", DDP, marks=THOROUGH),
    ("judge", SHARDED),
    pytest.param("preference_model", DDP, marks=THOROUGH),
    pytest.param("preference_model", SHARDED, marks=THOROUGH),
    ("preference_model", TENSOR),
    ("preference_model", CONTEXT),
    pytest.param("preference_model", {"world_size": 4, "context": 2}, marks=THOROUGH),
    pytest.param("preference_model", {**HYBRID, "context": 2, "recompute": "full"}, marks=THOROUGH),
    ("sft", SEQUENCE),
    ("sft", CONTEXT),
    pytest.param("sft", {"world_size": 4, "context": 2}, marks=THOROUGH),
    pytest.param("sft", {**HYBRID, "context": 2, "recompute": "full", "offload_activations": 1}, marks=THOROUGH),
    pytest.param("dpo", SEQUENCE, marks=THOROUGH),
    pytest.param("judge", SEQUENCE, marks=THOROUGH),
    pytest.param("preference_model", SEQUENCE, marks=THOROUGH),
    pytest.param("ppo", DDP, marks=THOROUGH),
    ("ppo", SHARDED),
    pytest.param("ppo", TENSOR, marks=THOROUGH),
]
NEAR = 2e-3
"""Of weights after 2 steps of Adam at 1e-3: where a gradient is 0 but for rounding, its sign is a coin's."""


def label(value):
    return value if isinstance(value, str) else "-".join(f"{name}{size}" for name, size in value.items())


@pytest.fixture(scope="module")
def alone(engine_inputs, tmp_path_factory):
    """(kind) -> the stage as one process runs it; each is run once."""
    known = {}

    def make(kind):
        if kind not in known:
            known[kind] = run(short(engine_inputs, tmp_path_factory.mktemp(kind) / "stage", kind), MODULES[kind])
        return known[kind]

    return make


def short(inputs, path, kind, **settings):
    """A stage of two steps; a rollout of PPO is one minibatch."""
    steps = {"episodes": 8, "minibatch": 8} if kind == "ppo" else {"steps": 2}
    return stage(inputs, path, kind, **(steps | settings))


@pytest.mark.parametrize(("kind", "layout"), CASES, ids=label)
def test_several_processes_do_what_one_does(engine_inputs, tmp_path, alone, kind, layout):
    found = run(short(engine_inputs, tmp_path / "stage", kind, frozen={**layout, "micro_batch": 2}), MODULES[kind])
    one = alone(kind)
    for first, second in zip(metrics(one), metrics(found), strict=True):
        for name in {"loss", "policy_loss", "value_loss", "accuracy", "reward_mean", "tokens", "pairs", "episodes"}:
            if name in first:
                assert second[name] == pytest.approx(first[name], rel=5e-3, abs=1e-4), name
        for name in {"gradient_norm", "value_gradient_norm"} & first.keys():
            assert second[name] == pytest.approx(first[name], rel=2e-2, abs=1e-5), name
    assert farthest(weights(one), weights(found)) < NEAR
    if kind == "preference_model":
        scalars = [load_preference_model(item.outputs / "model") for item in (one, found)]
        for name in ("score_mean", "score_deviation"):
            assert scalars[1].settings[name] == pytest.approx(scalars[0].settings[name], rel=0.05, abs=1e-3)
        assert (scalars[0].scalar.head.weight - scalars[1].scalar.head.weight).abs().max() < NEAR


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("sft", SHARDED),
        pytest.param("sft", {"world_size": 2, "zero": 2}, marks=THOROUGH),
        pytest.param("sft", SEQUENCE, marks=THOROUGH),
        pytest.param("preference_model", DDP, marks=THOROUGH),
        pytest.param("dpo", {}, marks=THOROUGH),
        pytest.param("ppo", {}, marks=THOROUGH),
        ("ppo", SHARDED),
    ],
    ids=label,
)
def test_inputs_on_the_host_change_no_bit_of_a_stage(engine_inputs, tmp_path, kind, layout):
    frozen = {**layout, "micro_batch": 2, "recompute": "full"}
    here, there = (
        run(
            short(engine_inputs, tmp_path / str(away), kind, frozen={**frozen, "offload_activations": away}),
            MODULES[kind],
        )
        for away in (0, 1)
    )
    assert farthest(weights(here), weights(there)) == 0


def test_ppo_is_refused_with_sequence_parallelism(engine_inputs, tmp_path):
    with pytest.raises(AssertionError, match="stages of kind ppo run without sequence_parallel"):
        run(short(engine_inputs, tmp_path / "stage", "ppo", frozen=SEQUENCE), ppo)


def test_kinds_that_have_not_run_with_shared_rows_are_refused(engine_inputs, tmp_path):
    with pytest.raises(AssertionError, match="runs context: 1 only; found 2, in a stage of kind judge"):
        run(short(engine_inputs, tmp_path / "stage", "judge", frozen=CONTEXT), judge)


def test_processes_sample_one_rollout_by_its_numbers(engine_inputs, tmp_path):
    """The prompts and seeds of answers belong to their places in the whole rollout, however many processes share it."""
    pytest.importorskip("torch.distributed")
    one = run(short(engine_inputs, tmp_path / "one", "ppo", samples_per_prompt=2, estimator="rloo"), ppo)
    two = run(short(engine_inputs, tmp_path / "two", "ppo", samples_per_prompt=2, estimator="rloo", frozen=DDP), ppo)
    for name in ("reward_mean", "response_tokens", "ended_share", "tokens"):
        assert metrics(two)[0][name] == pytest.approx(metrics(one)[0][name], rel=1e-4), name


@pytest.mark.parametrize(
    "layout", [pytest.param(DDP, marks=THOROUGH), pytest.param(SHARDED, marks=THOROUGH)], ids=label
)
def test_processes_share_the_answers_in_flight(engine_inputs, tmp_path, layout):
    """Each process draws its own answers on from a checkpoint that has those of all."""
    settings = {"asynchrony": "in_flight", "max_age": 2, "max_new_tokens": 6, "episodes": 24, "learning_rate": 1e-4}
    one = run(short(engine_inputs, tmp_path / "one", "ppo", **settings), ppo)
    two = run(short(engine_inputs, tmp_path / "two", "ppo", frozen=layout, **settings), ppo)
    assert [line["rollout_age"] > 0 for line in metrics(two)] == [False, True, True]
    for first, second in zip(metrics(one), metrics(two), strict=True):
        for name in ("reward_mean", "response_tokens", "rollout_age"):
            assert second[name] == pytest.approx(first[name], rel=0.1, abs=0.1), name
    assert len(list((two.path / "rollouts").iterdir())) == 2 * 3


def test_the_pretraining_mix_is_shared_among_processes(engine_inputs, tmp_path):
    """Where scores and KL teach nothing, all gradient is the mix's: the same however many processes share its rows."""
    settings = {"ptx_weight": 1.0, "ptx_batch": 6, "seq_len": 48, "reward_clip": 0.0, "kl_coefficient": 0.0}
    settings |= {"estimator": "grpo", "samples_per_prompt": 2}
    one = run(short(engine_inputs, tmp_path / "one", "ppo", **settings), ppo)
    two = run(short(engine_inputs, tmp_path / "two", "ppo", frozen=DDP, **settings), ppo)
    assert metrics(one)[0]["gradient_norm"] > 1e-3
    for name in ("ptx_loss", "gradient_norm"):
        assert metrics(two)[0][name] == pytest.approx(metrics(one)[0][name], rel=1e-3), name


@pytest.mark.parametrize(
    "layout", [DDP, pytest.param(SHARDED, marks=THOROUGH), pytest.param(CONTEXT, marks=THOROUGH)], ids=label
)
def test_processes_share_one_reference_point(engine_inputs, tmp_path, layout):
    """KTO compares with a figure of the whole batch, however many processes share its rows."""
    settings = {"loss": "kto", "steps": 3, "learning_rate": 1e-2}
    one = run(short(engine_inputs, tmp_path / "one", "dpo", **settings), dpo)
    two = run(short(engine_inputs, tmp_path / "two", "dpo", frozen={**layout, "micro_batch": 2}, **settings), dpo)
    # Of either sign: the point itself is 0 where policies give unrelated answers less than they did.
    assert max(abs(line["unrelated_log_ratio"]) for line in metrics(one)) > 0.01
    for first, second in zip(metrics(one), metrics(two), strict=True):
        assert first["reference_point"] == max(0.0, first["unrelated_log_ratio"])
        for name in ("unrelated_log_ratio", "reference_point", "loss", "gradient_norm"):
            assert second[name] == pytest.approx(first[name], rel=2e-2, abs=1e-3), name


@pytest.mark.thorough
def test_adapters_learn_the_same_where_rows_are_shared(engine_inputs, tmp_path):
    settings = {"adapter": Adapter(rank=4), "packing": True}
    one, two = (
        run(short(engine_inputs, tmp_path / name, "sft", frozen={"micro_batch": 2, **layout}, **settings), sft)
        for name, layout in (("one", {}), ("two", CONTEXT))
    )
    for name in ("loss", "gradient_norm", "tokens"):
        assert [line[name] for line in metrics(two)] == pytest.approx([line[name] for line in metrics(one)], rel=1e-3)
    assert farthest(weights(one), weights(two)) < NEAR


def test_another_number_of_processes_is_refused_and_works_when_the_record_says_so(engine_inputs, tmp_path):
    """What `charter run --reshard` writes into the job: the loss goes on as it would have."""
    whole = run(stage(engine_inputs, tmp_path / "whole", "sft", steps=4, frozen=DDP), sft)
    found = stage(engine_inputs, tmp_path / "stage", "sft", steps=4)
    asked = iter(range(9))
    with pytest.raises(InterruptedRunError, match="step 2"):
        sft.run(StageDir(found.path, should_stop=lambda: next(asked) >= 1))
    write_job(found.path, replace(found.job, frozen={**found.job.frozen, **DDP}))
    with pytest.raises(AssertionError, match="--reshard"):
        run(StageDir(found.path), sft)
    for item in found.path.glob("error-*.txt"):
        item.unlink()
    write_job(found.path, replace(found.job, frozen={**found.job.frozen, **DDP, RESHARDED: "at step 2: asked"}))
    run(StageDir(found.path), sft)
    assert [line["step"] for line in metrics(found)] == [1, 2, 3, 4]
    losses = [[line["loss"] for line in metrics(item)] for item in (found, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
