"""The planner never chooses a layout or a placement that the engine's renderer refuses."""

import json
from dataclasses import replace
from types import SimpleNamespace

import handover_stages as cases
import ppo_case
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.catalog import models
from charter.engines import capabilities, engine_names, handover_engines, render, rl_engines
from charter.engines.common.capabilities import GOOGLE
from charter.errors import SpecError
from charter.launch import handing_over
from charter.plan.layout_space import SpaceRequest, space
from charter.plan.rl_search import rl_options
from charter.plan.stage_plan import execution_of
from charter.report.handover_pages import placement_of
from charter.spec.execution import execution_from_json
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage

SHAPES = {name: models.get(name).architecture for name in ("Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B")}
POLICY_ALONE = "prime_rl"
"""It places the policy beside its generator, on one node, and no other role."""
FUNCTIONS_ALONE = "skyrl"
"""It scores by functions, and trains no value model."""
PLACED = tuple(name for name in rl_engines() if any(engine.name == name for engine in handover_engines()))
BY_LAYOUT = [pair for pair in cases.pairs() if not (pair[1] == "ppo" and pair[0] in rl_engines())]
"""The rest places the roles of PPO itself."""


def refused(stage, layout, **more):
    """What the renderer says against a layout; empty where it takes it."""
    try:
        render(cases.handover(stage, layout, **more))
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


def started(stage, option, work):
    """What `charter run` makes of a placement, from the file in which a stage keeps what it is started as."""
    needs = SimpleNamespace(memory=SimpleNamespace(total=0.0))
    execution = execution_of(stage, option, work, needs, pools={})
    assert execution.accelerators == option.num_nodes * option.place.per_node
    placement = handing_over.placement_of(execution_from_json(json.loads(json.dumps(execution.to_json()))))
    trained = [group.layout for group in placement.groups if "policy" in group.roles]
    assert trained == ([option.layout] if placement.groups else [])
    return placement


def offered(stage, shape, accelerators):
    is_ppo = isinstance(stage, PpoStage)
    batch = stage.minibatch if is_ppo else stage.global_batch * stage.SEQUENCES_PER_ROW
    return space(
        SpaceRequest(
            engine=capabilities(stage.engine),
            architecture=shape,
            num_accelerators=accelerators,
            per_node=min(8, accelerators),
            batch=batch,
            unit=stage.SEQUENCES_PER_ROW,
            longest=stage.max_prompt_tokens + stage.max_new_tokens if is_ppo else stage.seq_len,
            fixed=None,
            together=isinstance(stage, PpoStage | DpoStage),
            undivided=getattr(stage, "loss", "") == "kto",
        )
    )


FORMATS = [(engine, kind, "bf16") for engine, kind in BY_LAYOUT] + [
    (engine, kind, "fp8") for engine in engine_names() for kind in capabilities(engine).fp8_kinds
]


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize(("engine", "kind", "dtype"), FORMATS)
def test_every_layout_that_is_offered_is_rendered(engine, kind, dtype, data):
    shape = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)))]
    # A TPU is offered in the sizes of its slices alone.
    counts = (1, 8, 16, 64) if capabilities(engine).makers == (GOOGLE,) else (1, 2, 8, 16, 24, 64)
    accelerators = data.draw(st.sampled_from(counts))
    changes = {} if kind == "ppo" else {"global_batch": data.draw(st.sampled_from((64, 96, 512)))}
    if kind == "dpo" and not capabilities(engine).compares_batches:
        changes["loss"] = data.draw(st.sampled_from(("dpo", "kto")))
    stage = cases.accepted_stage(engine, kind, dtype=dtype, **changes)
    found = offered(stage, shape, accelerators)
    if not found.size:
        return
    layout = found.layout(data.draw(st.integers(0, found.size - 1)))
    nodes = -(-accelerators // 8)
    told = refused(stage, layout, nodes=nodes, per_node=accelerators // nodes, shape=shape)
    assert not told, f"{engine} {kind} {layout.label} of {accelerators}: {told}"


@pytest.mark.parametrize("nodes", [1, 2, 4, 6])
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
@pytest.mark.parametrize("engine", [name for name in PLACED if name not in (POLICY_ALONE, FUNCTIONS_ALONE)])
def test_every_placement_that_is_offered_is_rendered(engine, estimator, nodes):
    changes = {"rollout_batch": 768, "minibatch": 384}
    if estimator == "grpo":
        changes |= cases.GROUPS
    stage = cases.accepted_stage(engine, "ppo", **changes)
    work = ppo_case.workload(samples=768, minibatch=384)
    work = work if estimator == "gae" else ppo_case.without_value(work)
    found = rl_options(ppo_case.question(work, engine), ppo_case.place("H100", 8, nodes=(nodes,)), nodes)[0]
    assert bool(found) is not (engine == "nemo_rl" and estimator == "gae")
    for option in found:
        told = refused(stage, option.layout, nodes=nodes, placement=placement_of(option))
        assert not told, f"{engine} {option.layout_label}: {told}"
        assert started(stage, option, work) == placement_of(option)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("reference", [True, False])
def test_every_placement_without_a_reward_model_is_rendered(reference, nodes):
    changes = {"rollout_batch": 768, "minibatch": 384}
    changes |= {"kl_coefficient": 0.01, "loss_aggregation": "sequence"} if reference else {}
    stage = cases.accepted_stage(FUNCTIONS_ALONE, "ppo", **changes)
    work = ppo_case.scored_by_functions(ppo_case.workload(samples=768, minibatch=384), reference=reference)
    found = rl_options(ppo_case.question(work, FUNCTIONS_ALONE), ppo_case.place("H100", 8, nodes=(nodes,)), nodes)[0]
    assert found
    for option in found:
        told = refused(stage, option.layout, nodes=nodes, placement=placement_of(option))
        assert not told, f"{option.layout_label}: {told}"
        assert started(stage, option, work) == placement_of(option)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_every_placement_one_step_off_is_rendered_for_verl(nodes):
    """What a stage that draws ahead is offered on verl, whose generator is then apart."""
    changes = {**cases.GROUPS, "rollout_batch": 768, "minibatch": 384, "asynchrony": "one_step_off", "reward": None}
    stage = cases.accepted_stage("verl", "ppo", **changes, rewards=cases.RIGHT)
    work = ppo_case.scored_by_functions(ppo_case.workload(samples=768, minibatch=384), reference=True)
    work = replace(work, ahead=True)
    found = rl_options(ppo_case.question(work, "verl"), ppo_case.place("H100", 8, nodes=(nodes,)), nodes)[0]
    assert {option.placement for option in found} == {"async"}
    for option in found:
        told = refused(stage, option.layout, nodes=nodes, placement=placement_of(option))
        assert not told, f"{option.layout_label}: {told}"
        assert started(stage, option, work) == placement_of(option)


@pytest.mark.parametrize("accelerators", [2, 4, 8])
def test_every_placement_beside_a_generator_is_rendered(accelerators):
    stage = cases.accepted_stage(POLICY_ALONE, "ppo", rollout_batch=384, minibatch=384)
    work = ppo_case.policy_alone(ppo_case.workload(samples=384, minibatch=384))
    found = rl_options(ppo_case.question(work, POLICY_ALONE), ppo_case.place("H100", accelerators), 1)[0]
    assert found or accelerators == 2
    for option in found:
        placement = placement_of(option)
        told = refused(stage, option.layout, per_node=accelerators, placement=placement)
        assert not told, f"{option.layout_label}: {told}"
        assert started(stage, option, work) == placement
