"""What is offered to other engines: batches that divide, even pipelines; models that no node holds on two."""

from dataclasses import replace

import planner_case
import ppo_case
import pytest

from charter.catalog import models
from charter.engines import capabilities, engine_names, rl_engines
from charter.engines.common.capabilities import unsupported
from charter.plan.layout_space import SpaceRequest, space
from charter.plan.plan import InfeasiblePlanError
from charter.plan.rl_groups import mode_of, role_groups
from charter.plan.rl_search import rl_options
from charter.plan.rl_work import rl_work
from charter.spec.execution import ExecutableLayout, executable
from charter.spec.project import Resources
from charter.spec.stage import DpoStage, GenerateStage, SftStage
from charter.spec.stage_base import StageResources

LLAMA_405B = models.get("Llama-3.1-405B").architecture


def layouts(
    engine, *, batch=96, accelerators=16, unit=1, architecture=planner_case.LLAMA_8B, fixed=None, undivided=False
):
    made = space(
        SpaceRequest(
            engine=capabilities(engine),
            architecture=architecture,
            num_accelerators=accelerators,
            per_node=8,
            batch=batch,
            unit=unit,
            longest=2048,
            together=False,
            fixed=fixed,
            undivided=undivided,
        )
    )
    return [made.layout(row) for row in range(made.size)]


@pytest.mark.parametrize("engine", sorted(set(engine_names()) - {"native"}))
@pytest.mark.parametrize(("batch", "unit"), [(96, 1), (96, 2), (60, 2)])
def test_other_engines_are_offered_batches_that_divide(engine, batch, unit):
    made = layouts(engine, batch=batch, unit=unit)
    assert all(layout.data * layout.micro_batch * layout.accumulation == batch for layout in made)
    assert all(layout.micro_batch % unit == 0 for layout in made)
    if capabilities(engine).tensor or batch % 16 == 0:
        assert made


@pytest.mark.parametrize("batch", [96, 3072])
def test_a_batch_that_is_not_divided_has_one_micro_batch(batch):
    made = layouts("trl", batch=batch, unit=2, undivided=True)
    assert made
    assert all(layout.accumulation == 1 and layout.data * layout.micro_batch == batch for layout in made)
    assert not layouts("trl", unit=2, undivided=True, fixed=StageResources(micro_batch=2))


@pytest.mark.parametrize(
    ("loss", "engine", "whole"), [("kto", "trl", True), ("kto", "native", False), ("dpo", "trl", False)]
)
def test_trl_gets_a_whole_batch_of_kto(loss, engine, whole):
    """Its reference point is of a micro-batch; the native engine's is of the batch."""
    stage = DpoStage(init="base", data=("pairs",), steps=10, global_batch=256, seq_len=1024, loss=loss, engine=engine)
    (planned,) = planner_case.one(stage).stages
    assert (planned.option.layout.accumulation == 1) == whole


@pytest.mark.parametrize("engine", sorted(engine_names()))
def test_every_layout_that_is_tried_is_supported(engine):
    tried = layouts(engine, accelerators=32, batch=64, architecture=LLAMA_405B)
    assert tried
    assert {reason for layout in tried for reason in unsupported(executable(layout), capabilities(engine))} == set()


@pytest.mark.parametrize(
    ("engine", "field", "value"),
    [
        ("native", "pipeline", 2),
        ("native", "interleave", 2),
        ("deepspeed", "context", 2),
        ("native", "expert", 2),
        ("deepspeed", "sequence_parallel", True),
        ("native", "zero", 1),
        ("accelerate", "offload", "optimizer"),
        ("deepspeed", "tensor", 2),
        ("megatron", "zero", 3),
        ("megatron", "replicas", 2),
        ("verl", "offload", "optimizer"),
        ("fsdp", "offload_activations", True),
        ("trl", "decode_batch", 8),
    ],
)
def test_a_layout_that_an_engine_lacks_is_refused_by_field(engine, field, value):
    fits = ExecutableLayout(data=8, zero=int(capabilities(engine).zero[0]))
    assert list(unsupported(fits, capabilities(engine))) == []
    ((named, reason),) = unsupported(replace(fits, **{field: value}), capabilities(engine))
    assert (named, engine in reason) == (field, True)


def test_offload_goes_with_the_zero_stages_that_have_it():
    ((field, reason),) = unsupported(ExecutableLayout(data=8, zero=0, offload="all"), capabilities("native"))
    assert (field, reason) == ("offload", "offload: all goes with zero: 2 or 3 in the native engine; found 0")
    beside = ExecutableLayout(data=8, pipeline=2, zero=3)
    megatron = capabilities("megatron")
    ((field, reason),) = unsupported(beside, replace(megatron, zero=(*megatron.zero, 3)))
    assert (field, reason) == ("zero", "beside a pipeline the megatron engine runs zero: 0 or 1; found 3")


def plan_on(accelerator, *, engine):
    resources = Resources(accelerators=(accelerator,), infra="on_prem", num_nodes=2, price=4.0)
    return planner_case.one(SftStage(init="base", data=("chat",), engine=engine), resources)


@pytest.mark.parametrize(
    ("accelerator", "engine", "reason"),
    [
        ("TPU-v5p:4", "native", r"engine native does not run on TPU-v5p \(Google\); engine: maxtext does"),
        ("TPU-v5p:4", "megatron", "engine megatron does not run on TPU-v5p"),
        ("Trainium2:16", "native", "nor does any other engine"),
        ("MI300X:8", "megatron", "engine: native, trl, accelerate, deepspeed, verl or fsdp does"),
    ],
)
def test_an_engine_is_refused_on_accelerators_that_it_lacks(accelerator, engine, reason):
    with pytest.raises(InfeasiblePlanError, match=reason):
        plan_on(accelerator, engine=engine)


def test_an_untried_accelerator_is_an_assumption():
    named = {item.name: item.value for item in plan_on("MI300X:8", engine="native").assumptions}
    assert named["engine native on AMD"] == "never run"
    assert not [item for item in plan_on("H100:8", engine="native").assumptions if item.value == "never run"]


def test_the_native_engine_takes_a_batch_that_does_not():
    assert any(layout.data * layout.micro_batch * layout.accumulation > 60 for layout in layouts("native", batch=60))


def test_stages_of_a_pipeline_hold_as_many_layers_with_or_without_embedding_and_output():
    found = {made.pipeline for made in layouts("megatron", accelerators=256, batch=256, architecture=LLAMA_405B)}
    assert found == {1, 2, 4, 8, 16, 32, 64}
    uneven = {made.pipeline for made in layouts("megatron", accelerators=48, batch=96, architecture=LLAMA_405B)}
    assert uneven == {1, 2, 3, 4, 6, 8, 16}


@pytest.mark.parametrize("engine", ["verl", "openrlhf", "nemo_rl"])
def test_trainers_of_ppo_divide_the_minibatch(engine):
    work = ppo_case.workload()
    minibatch = next(phase for phase in work.phases if phase.work == "train").batch
    for option in rl_options(ppo_case.question(work, engine), ppo_case.place("H100", 8, nodes=(3,)), 3)[0]:
        groups = [group for group in option.groups if group.name != "generators"]
        assert groups
        for group in groups:
            assert group.layout.data * group.layout.micro_batch * group.layout.accumulation == minibatch


@pytest.mark.parametrize(("nodes", "label"), [(2, "serve tp16 x1"), (4, "serve tp16 x2")])
def test_a_model_that_no_node_holds_is_served_by_two(nodes, label):
    stage = GenerateStage(policy="base", prompts=("prompts",))
    where = Resources(infra="on_prem", accelerators=("H100:8",), num_nodes=nodes, max_nodes=nodes)
    option = planner_case.one(stage, where, architecture=LLAMA_405B).stages[0].option
    assert option.layout_label == label
    assert option.peak.total_bytes < option.capacity_bytes
    smaller = planner_case.one(stage, where, architecture=planner_case.LLAMA_70B).stages[0].option
    assert smaller.layout.tensor <= 8


@pytest.mark.parametrize("nodes", [1, 3])
def test_two_nodes_are_a_pair(nodes):
    stage = GenerateStage(policy="base", prompts=("prompts",))
    where = Resources(infra="on_prem", accelerators=("H100:8",), num_nodes=nodes, max_nodes=nodes)
    with pytest.raises(Exception, match="does not fit"):
        planner_case.one(stage, where, architecture=LLAMA_405B)


def test_the_generator_of_a_large_policy_reaches_over_two_nodes():
    found = rl_options(
        ppo_case.question(ppo_case.workload("Llama-3.1-405B"), "openrlhf"), ppo_case.place("H100", 8, nodes=(64,)), 64
    )[0]
    assert found
    assert {option.generator_tensor for option in found} == {16}
    small = rl_options(ppo_case.question(ppo_case.workload(), "openrlhf"), ppo_case.place("H100", 8, nodes=(4,)), 4)[0]
    assert all(option.generator_tensor <= 8 for option in small)
    assert {option.waits_on_host for option in small} == {False}


def test_roles_that_take_turns_wait_on_the_host_in_verl():
    found = rl_options(ppo_case.question(ppo_case.workload(), "verl"), ppo_case.place("H100", 8, nodes=(2,)), 2)[0]
    said = {option.layout_label.partition(":")[0]: option.waits_on_host for option in found}
    assert said["offloaded"] is True
    assert said["colocated"] is False


@pytest.mark.parametrize("critic", [True, False])
def test_openrlhf_keeps_policy_and_reference_together_and_the_rest_beside_them(critic):
    work = ppo_case.workload(critic=critic)
    found = rl_options(ppo_case.question(work, "openrlhf"), ppo_case.place("H100", 8, nodes=(4,)), 4)[0]
    for option in found:
        trainers = [group for group in option.groups if group.name != "generators"]
        apart = {("policy", "reference"), ("value", "reward")}
        together = {("policy", "reference", "value", "reward")} if critic else {("policy", "reference")}
        split = critic and option.placement == "split"
        assert {group.roles for group in trainers} in ((apart,) if split else (apart, together))
        assert len({mode_of(group.layout) for group in trainers}) == 1
    assert {option.placement for option in found} >= {"colocated", "split"}


def test_nemo_rl_gives_the_reward_model_accelerators_of_its_own_and_trains_no_value_model():
    place, work = ppo_case.place("H100", 8, nodes=(2,)), ppo_case.workload()
    (found,), _ = rl_options(ppo_case.question(ppo_case.without_value(work), "nemo_rl"), place, 2)
    assert [set(group.roles) for group in found.groups] == [{"policy", "reference"}, {"reward"}]
    assert [group.num_accelerators for group in found.groups] == [8, 8]
    assert found.layout.num_accelerators == 8
    none, missed = rl_options(ppo_case.question(work, "nemo_rl"), place, 2)
    assert none == ()
    assert "trains no value model" in missed.rejected[0].reason


@pytest.mark.parametrize(
    ("role", "changes", "nodes", "reason"),
    [
        ("value", {}, 1, "trains no value model"),
        ("reward", {}, 1, "scores by no reward model"),
        ("reference", {}, 1, "keeps no reference model; set kl_coefficient: 0"),
        (None, {"ahead": False}, 1, "always draws ahead of training"),
        (None, {}, 2, "runs on one node; set max_nodes: 1"),
        (None, {}, 1, None),
    ],
)
def test_prime_rl_places_the_policy_beside_its_generator(role, changes, nodes, reason):
    whole = ppo_case.workload()
    work = replace(ppo_case.policy_alone(whole), **changes)
    if role is not None:
        work = replace(work, roles=(*work.roles, next(item for item in whole.roles if item.name == role)))
    place = ppo_case.place("H100", 8, nodes=(1, 2))
    options, missed = rl_options(ppo_case.question(work, "prime_rl"), place, nodes)
    if reason is None:
        (option,) = options
        assert [group.name == "generators" for group in option.groups] == [False, True]
        assert sum(group.num_accelerators for group in option.groups) == 8
        return
    assert options == ()
    assert reason in missed.rejected[0].reason


@pytest.mark.parametrize(("estimator", "roles"), [("gae", 4), ("reinforce", 4), ("rloo", 3), ("grpo", 3)])
def test_estimators_that_compare_answers_are_planned_without_a_value_model(estimator, roles):
    stage = replace(planner_case.ALL_KINDS["ppo"], policy="base", reward="base", estimator=estimator)
    stage = replace(stage, samples_per_prompt=1 if roles == 4 else 4)
    (planned,) = planner_case.one(stage, architecture=planner_case.LLAMA_8B).stages
    work = planned.searched.question.work
    assert len(work.roles) == roles
    assert {phase.role for phase in work.phases} == {role.name for role in work.roles}


@pytest.mark.parametrize(("reward", "nodes"), [(True, 1), (False, 1), (False, 2)])
def test_verl_draws_ahead_beside_policy_and_reference_alone(reward, nodes):
    whole = replace(ppo_case.without_value(ppo_case.workload()), ahead=True)
    work = whole if reward else ppo_case.scored_by_functions(whole, reference=True)
    place = ppo_case.place("H100", 8, nodes=(nodes,))
    options, missed = rl_options(ppo_case.question(work, "verl"), place, nodes)
    if reward:
        assert options == ()
        assert "scores by no reward model" in missed.rejected[0].reason
        return
    (option,) = options
    trainers, generators = option.groups
    assert (set(trainers.roles), generators.name) == ({"policy", "reference"}, "generators")
    assert sum(group.num_accelerators for group in option.groups) == 8 * nodes


def test_only_beside_an_asynchronous_generator_may_all_roles_of_openrlhf_share():
    work, engine = rl_work(ppo_case.workload()), rl_engines()["openrlhf"]
    apart = (("policy", "reference"), ("value", "reward"))
    assert role_groups(work, engine, "split") == (apart,)
    assert [tuple(map(set, way)) for way in role_groups(work, engine, "async")] == [
        (set(work.names),),
        (set(apart[0]), set(apart[1])),
    ]
    assert role_groups(work, rl_engines()["verl"], "colocated") == ((work.names,),)
