"""One line of a plan names the quickest other engine where the native one trains, and what it would save."""

from dataclasses import replace

import pytest
from planner_case import H100, one

from charter.plan import what_if
from charter.plan.what_if import with_other_engines, with_quickest_engines
from charter.report.plan_notes import engine_line, engine_lines
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Reward
from charter.spec.stage import SftStage
from charter.spec.stage_base import StageResources

SFT = SftStage(init="base", data=("chat",))


def test_a_native_stage_says_what_another_engine_would_save():
    plan = with_other_engines(one(SFT, H100))
    (stage,) = plan.stages
    quickest = stage.other_engines[0]
    line = engine_line(plan)
    assert f"{quickest.engine} for stage, {100 * (1 - quickest.ratio):.0f} % less time" in line
    assert line.startswith("Other engines would save about $")


def test_another_engine_is_compared_with_nothing():
    plan = with_other_engines(one(replace(SFT, engine="megatron"), H100))
    assert engine_line(plan) == ""


def test_nothing_is_said_on_processors_or_of_little():
    plan = with_other_engines(one(SFT, H100))
    (stage,) = plan.stages
    alike = tuple(replace(item, ratio=0.97) for item in stage.other_engines)
    assert engine_line(replace(plan, stages=(replace(stage, other_engines=alike),))) == ""


GRPO = PpoStage(
    policy="base",
    prompts=("prompts",),
    episodes=1024,
    rollout_batch=256,
    minibatch=256,
    rewards=(Reward(name="right", kind="function", call="charter:exact"),),
    estimator="grpo",
    samples_per_prompt=8,
    kl_coefficient=0.0,
)


@pytest.mark.parametrize("stage", [SFT, replace(SFT, packing=True), replace(SFT, engine="megatron"), GRPO])
def test_the_line_needs_the_quickest_engine_alone(stage, monkeypatch):
    plan = one(stage, H100)
    line = engine_line(with_other_engines(plan))
    written_out = []
    monkeypatch.setattr(what_if, "_engine_layout", lambda *args: written_out.append(made := LAYOUT(*args)) or made)
    assert engine_line(with_quickest_engines(plan)) == line
    assert not any(layout.refused for layout in written_out)
    assert stage is GRPO or len(written_out) == bool(line)


LAYOUT = what_if._engine_layout


def test_engines_are_named_that_call_the_rewards_of_a_list():
    (found,) = with_other_engines(one(GRPO, H100)).stages
    assert {other.engine for other in found.other_engines} == {"verl", "openrlhf", "nemo_rl", "skyrl"}
    judged = replace(GRPO, rewards=(*GRPO.rewards, Reward(name="kind", kind="judge", model="base")))
    for refused in (judged, replace(GRPO, equal_groups="refill")):
        (found,) = with_other_engines(one(refused, H100)).stages
        assert found.other_engines == ()


def test_an_engine_that_refuses_the_stage_saves_nothing():
    plan = with_other_engines(one(replace(SFT, packing=True), H100))
    (stage,) = plan.stages
    refused = {other.engine: other.refused for other in stage.other_engines}
    assert engine_line(plan) == "", "no engine packs as Charter does"
    assert refused["megatron"].startswith("packing: ")
    assert refused["fsdp"].startswith("Charter writes no files for it")
    assert any(line.endswith(refused["megatron"]) for line in engine_lines(plan))
    written = replace(SFT, packing=True, resources=StageResources(attention="flash_attention_2"))
    assert "trl for stage" in engine_line(with_other_engines(one(written, H100)))
