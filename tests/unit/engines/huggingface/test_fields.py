"""No field of a stage, of a layout or the seed is dropped: each changes the files, is refused, or is Charter's own."""

import dataclasses

import pytest
from huggingface_case import KINDS, handover, layout_of, stage_of

from charter.engines import render
from charter.engines.common.mapping import fields_of
from charter.errors import SpecError
from charter.spec.layout import Adapter, Recompute, ZeroStage
from charter.spec.rewards import Environment, Mismatch
from charter.spec.stage_base import Guard, StageResources

OTHER = {
    "kl_in": "loss",
    "loss_horizon": 8,
    "clip_ratio_high": 0.28,
    "dual_clip": 3.0,
    "off_policy_mask": 0.5,
    "mismatch": Mismatch(high=2.0),
    "environment": Environment(tools={"calc": "charter:calculator"}),
    "adapter": Adapter(rank=8),
    "guard": Guard(),
    "optimizer": "adamw_8bit",
    "schedule": "linear",
    "dtype": "fp32",
    "pooling": "mean",
    "generator": "vllm",
    "estimator": {"grpo": "rloo", "rloo": "grpo"},
    "reward_from": "judge",
    "kl_estimator": "k3",
    "loss_aggregation": "sequence",
    "kl_target": 6.0,
    "reward_clip": 5.0,
    "missing_end_penalty": 1.0,
    "stop_update_kl": 0.1,
    "asynchrony": "one_step_off",
    "max_age": 2,
    "teacher": "judge",
    "mismatch_clip": 2.0,
    "mean_new_tokens": 9,
    "epochs": 2.0,
    "steps": 40,
    "resources": StageResources(attention="eager"),
    "engine": "native",
    "kind": "other",
    "checkpoint_interval": 60.0,
    "hang_timeout": 60.0,
    "timeout": 60.0,
    "expected_fingerprint": "abc",
    "divergence": "reverse",
    "zero": ZeroStage.PARAMETERS,
    "recompute": Recompute.FULL,
}
LAYOUTS = ("one", "fsdp", "hsdp", "zero 2")


def other_than(name, value, kind):
    """Some other value that the field may have."""
    if name in OTHER:
        other = OTHER[name]
        return other[kind] if isinstance(other, dict) else other
    match value:
        case "full":
            return "last_turn"
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 0.5 + 0.125
        case str():
            return value + "x"
        case tuple():
            return (*value, "more")
    raise AssertionError(f"no other value for {name}")


def case_of(engine, kind, where):
    match where:
        case "one":
            return handover(engine, kind)
        case "fsdp":
            return handover(engine, kind, layout=layout_of(kind, data=8, zero=ZeroStage.PARAMETERS), nodes=2)
        case "hsdp":
            layout = layout_of(kind, data=8, zero=ZeroStage.PARAMETERS, replicas=2)
            return handover("accelerate", kind, layout=layout, nodes=2)
    return handover(engine, kind, layout=layout_of(kind, data=8, zero=ZeroStage.GRADIENTS), nodes=2)


def cases():
    for kind in KINDS:
        engines = ("trl",) if kind in ("grpo", "rloo") else ("trl", "accelerate", "deepspeed")
        for engine in engines:
            for where in LAYOUTS:
                if (engine, kind) == ("trl", "pretrain") or (engine == "accelerate" and where == "zero 2"):
                    continue
                if where == "hsdp" and engine != "accelerate":
                    continue
                yield engine, kind, where


def changed(asked, field):
    section, _, name = field.partition(".")
    kind = asked.stage.estimator if asked.stage.kind == "ppo" else asked.stage.kind
    if section == "seed":
        return dataclasses.replace(asked, seed=asked.seed + 1)
    part = asked.stage if section == "stage" else asked.layout
    other = ZeroStage.NONE if field == "layout.zero" and asked.layout.zero == 3 else None
    new = dataclasses.replace(part, **{name: other_than(name, getattr(part, name), kind) if other is None else other})
    asked = dataclasses.replace(asked, **{section: new})
    return dataclasses.replace(asked, target_steps=asked.target_steps + 1) if field == "stage.episodes" else asked


@pytest.mark.parametrize(("engine", "kind", "where"), list(cases()))
def test_no_field_is_dropped(engine, kind, where):
    asked = case_of(engine, kind, where)
    before = render(asked)
    told = {row.field: row for row in before.mapping}
    assert set(told) == set(fields_of(asked.stage))
    for field, row in told.items():
        if row.how == "charter":
            assert row.note, field
            continue
        name = field.partition(".")[2]
        after = rendered_or_refused(changed(asked, field))
        if isinstance(after, SpecError):
            said = [(problem.path, problem.message) for problem in after.problems]
            assert any(name in path or name in message for path, message in said), (field, said)
        else:
            assert (after.files, after.command) != (before.files, before.command), field


def rendered_or_refused(asked):
    try:
        return render(asked)
    except SpecError as error:
        return error


@pytest.mark.parametrize(("engine", "kind", "where"), list(cases()))
def test_every_place_that_is_named_is_there(engine, kind, where):
    run = render(case_of(engine, kind, where))
    for row in run.mapping:
        for place in row.to:
            file, _, key = place.partition(": ")
            if file == "command":
                assert any(word.startswith(key.removesuffix("-")) for word in run.command), place
                continue
            last = key.rpartition(".")[2]
            assert f"{last}:" in run.files[file] or f'"{last}":' in run.files[file], place


def test_stages_of_the_case_are_of_every_kind():
    assert {stage_of(kind).kind for kind in KINDS} == {"pretrain", "sft", "preference_model", "dpo", "ppo"}
