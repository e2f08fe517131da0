from dataclasses import replace

import pytest

from charter.catalog import models
from charter.engines import capabilities
from charter.launch.machine import NodeFacts
from charter.plan.layout_space import SpaceRequest, families
from charter.run.preflight import check_layout
from charter.spec.architecture import Architecture
from charter.spec.execution import PLANNED_FIELDS, executable
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import ModelSpec, Project, Resources
from charter.spec.stage import DpoStage, EvalStage, JudgeStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import StageResources

SFT = SftStage(init="b", data=("d",), global_batch=12)
DPO = DpoStage(init="b", data=("d",), global_batch=12)
PPO = PpoStage(policy="b", reward="r", prompts=("d",), episodes=64, rollout_batch=32, minibatch=16)


def problems(stage, accelerators="cpu:4", **resources):
    project = Project(name="p", models={}, pipeline={"s": stage}, resources=Resources(accelerators=(accelerators,)))
    if resources:
        stage = replace(stage, resources=StageResources(**resources))
    return [str(problem) for problem in check_layout(project, "s", stage)]


def test_a_layout_that_fits_has_no_problems():
    assert problems(SFT) == problems(PPO) == []
    assert problems(SFT, "cpu:12", tensor=2, zero=3, replicas=3, offload="all", recompute="selective") == []


@pytest.mark.parametrize("knob", ["pipeline", "expert"])
def test_what_the_native_engine_cannot_run_is_refused_with_what_it_can(knob):
    (found,) = problems(SFT, **{knob: 2})
    assert f"pipeline.s.resources.{knob}: the native engine runs {knob}: 1 only; found 2" in found
    assert "zero: 3" in found or "tensor" in found
    assert problems(SFT, **{knob: 1}) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_layout_that_the_plan_tries_is_accepted(nodes):
    asked = SpaceRequest(
        engine=capabilities("native"),
        architecture=models.get("Llama-3.1-8B").architecture,
        num_accelerators=8 * nodes,
        per_node=8,
        batch=64,
        unit=1,
        longest=2048,
        fixed=None,
        together=False,
        shares=((64, 1),),
    )
    facts = NodeFacts(gpus=8, cpu_capability="AVX2", torch="2.13.0", transformers="5.0.0")
    for family in families(asked):
        layout = executable(family.layout)
        fields = {name: getattr(layout, name) for name in PLANNED_FIELDS}
        resources = StageResources(accelerators="H100:8", num_nodes=nodes, **fields)
        stage = replace(SFT, global_batch=64, resources=resources)
        project = Project(name="p", models={}, pipeline={"s": stage})
        assert [str(problem) for problem in check_layout(project, "s", stage, facts=facts)] == [], family.label


def test_offload_of_everything_needs_sharding(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 8)
    monkeypatch.setattr("charter.run.preflight.gpus_here", lambda: 8)
    asked = replace(SFT, global_batch=16)
    assert problems(asked, "H100:8", zero=3, offload="all") == []
    assert problems(asked, "H100:8", zero=3, offload="optimizer") == []
    assert problems(asked, "H100:8", zero=0, offload="optimizer") == []
    assert "goes with zero: 2 or 3" in problems(asked, "H100:8", zero=0, offload="all")[0]


def test_answers_are_drawn_in_parts_by_the_engine_itself():
    assert problems(PPO, decode_batch=8) == problems(PPO, decode_batch=0) == problems(SFT, decode_batch=0) == []
    for stage in (SFT, replace(PPO, generator="vllm")):
        (refused,) = problems(stage, decode_batch=8)
        assert "s.resources.decode_batch: no rollout is drawn in parts here" in refused


def test_inputs_on_the_host_need_full_recomputation():
    asked = replace(SFT, global_batch=16)
    assert problems(asked, recompute="full", offload_activations=True) == []
    assert problems(asked, recompute="none", offload_activations=False) == []
    for mode in ("none", "selective"):
        (refused,) = problems(asked, recompute=mode, offload_activations=True)
        assert "s.resources.offload_activations: it moves what recompute: full keeps" in refused
    assert "have never run" in problems(asked, recompute="full", offload_activations=True, compile=True)[0]


def test_kernels_that_compute_wrongly_are_refused():
    assert "compile and PPO do not go together" in problems(PPO, compile=True)[0]
    assert problems(SFT, compile=True) == []
    assert "no dropout of attention weights" in problems(replace(SFT, dropout=0.1), attention="flex_attention")[0]
    assert any("16 bits only" in found for found in problems(replace(SFT, dtype="fp32"), attention="flash_attention_2"))


def test_zero_1_is_refused():
    assert "runs zero: 0, 2 or 3; found 1" in problems(SFT, zero=1)[0]


def test_sequence_parallelism_goes_without_answers_and_compile():
    assert problems(SFT, tensor=2, sequence_parallel=True) == []
    assert "without sequence parallelism" in problems(PPO, tensor=2, sequence_parallel=True)[0]
    assert "beside compile has never run" in problems(SFT, tensor=2, sequence_parallel=True, compile=True)[0]


def test_dropout_beside_tensor_parallelism_is_refused():
    dropping = replace(SFT, dropout=0.1)
    (found,) = problems(dropping, tensor=2)
    assert "tensor: the native engine runs tensor: 1 only; found 2\n  dropout: 0.0, beside which it runs" in found
    assert len(problems(dropping, tensor=2, sequence_parallel=True)) == 2
    assert problems(dropping, zero=3) == []


def test_context_parallelism_goes_where_it_has_run():
    assert problems(SFT, context=2) == problems(DPO, context=2, zero=3, recompute="full") == []
    assert "tensor: 1 only; found tensor: 2" in problems(SFT, tensor=2, context=2)[0]
    assert problems(PreferenceModelStage(init="b", data=("d",), global_batch=12), context=2) == []
    for stage in (PPO, JudgeStage(init="b", pairs=("d",), global_batch=12)):
        assert "the native engine runs context: 1 only; found 2" in problems(stage, context=2)[0]
    assert "beside compile has never run" in problems(SFT, context=2, compile=True)[0]


def test_sharers_of_rows_divide_processes_and_batches():
    assert "s.resources.context: 3 does not divide the 4 processes" in problems(SFT, context=3)[0]
    assert "replicas: 3 does not divide 4 data ranks" in problems(SFT, context=2, zero=3, replicas=3)[0]
    assert problems(replace(SFT, global_batch=2), context=2) == [], "two shares of a batch"
    assert "cannot be shared evenly by 2 processes" in problems(replace(SFT, global_batch=3), context=2)[0]


@pytest.mark.parametrize(("context", "is_shared"), [(2, True), (4, True), (3, False), (8, False)])
def test_heads_are_shared_or_those_of_keys_repeated(context, is_shared):
    shape = Architecture(
        hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=64, vocab_size=512
    )
    model = ModelSpec(architecture=shape)
    stage = replace(SFT, init="a", global_batch=24, resources=StageResources(context=context))
    asked = Resources(accelerators=("cpu:24",))
    project = Project(name="p", models={"a": model}, pipeline={"s": stage}, resources=asked)
    told = [str(problem) for problem in check_layout(project, "s", stage)]
    assert told == [] if is_shared else "4 attention heads (2 of keys) of a cannot be split over" in told[0]


def test_batches_must_be_shared_evenly_and_numbers_that_work_are_named():
    (found,) = problems(replace(SFT, global_batch=10))
    assert "pipeline.s.global_batch: 10 rows cannot be shared evenly by 4 processes" in found
    assert "global_batch: 8 or 12" in found
    assert "global_batch: 4;" in problems(replace(SFT, global_batch=3))[0]
    assert len(problems(replace(PPO, rollout_batch=30, minibatch=6))) == 2
    assert problems(replace(SFT, global_batch=10), tensor=2) == [], "two data ranks"


def test_the_answers_to_one_prompt_go_to_one_process():
    grouped = replace(PPO, estimator="grpo", samples_per_prompt=4)
    assert problems(grouped, "cpu:8") == []
    (found,) = problems(replace(grouped, rollout_batch=48), "cpu:8")
    assert "s.rollout_batch: 48 rows cannot be shared evenly by 8 processes, 4 answers to a prompt together" in found
    assert "rollout_batch: 32 or 64; or a number of processes that divides 12 (rollout_batch / samples_per" in found


def test_the_pretraining_mix_is_shared_evenly_where_there_is_one():
    mixed = replace(PPO, ptx_batch=6)
    assert problems(mixed) == []
    (found,) = problems(replace(mixed, ptx_weight=0.5, ptx_data=("d",)))
    assert "pipeline.s.ptx_batch: 6 rows cannot be shared evenly by 4 processes" in found
    assert "ptx_batch: 4 or 8; or a number of processes that divides 6" in found


@pytest.mark.parametrize("kind", [PretrainStage, JudgeStage, PreferenceModelStage, DpoStage])
def test_every_kind_of_training_shares_its_batches_evenly(kind):
    role = {"pairs": ("d",)} if kind is JudgeStage else {"data": ("d",)}
    assert problems(kind(init="b", global_batch=12, **role)) == []
    assert "global_batch: 8 or 12" in problems(kind(init="b", global_batch=10, **role))[0]


def test_degrees_must_divide_the_processes():
    assert "3 does not divide the 4 processes" in problems(SFT, tensor=3)[0]
    assert "tensor must divide 4: 1, 2 or 4" in problems(SFT, tensor=3)[0]
    assert "3 does not divide 4 data ranks" in problems(SFT, replicas=3)[0]


def test_more_gpus_than_here_are_refused_with_how_many_there_are(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 4)
    monkeypatch.setattr("charter.run.preflight.gpus_here", lambda: 4)
    (found,) = problems(replace(SFT, global_batch=64), "H100:8")
    assert "H100:8 asks for 8 accelerators, this machine has 4" in found
    assert "accelerators: H100:4" in found
    assert problems(SFT, "H100:4") == []


def test_gpus_asked_for_where_there_are_none_are_refused_instead_of_training_on_processors(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 0)
    monkeypatch.setattr("charter.run.preflight.gpus_here", lambda: 0)
    (found,) = problems(SFT, "H100:2")
    assert "H100:2 asks for 2 accelerators, this machine has 0" in found
    assert "accelerators: cpu:2 for processes on its processors" in found
    assert problems(SFT, "cpu") == []


def test_kinds_that_do_not_train_have_one_process_and_no_layout():
    assert problems(EvalStage(policy="b", against="c"), "cpu:7") == []


def test_flash_attention_on_processors_is_refused_with_what_works():
    (found,) = problems(SFT, attention="flash_attention_2")
    assert "flash_attention_2 runs on CUDA devices only" in found
    assert "attention: sdpa or eager" in found
    assert problems(SFT, attention="eager") == []


@pytest.mark.parametrize(
    ("heads", "kv_heads", "wanted"), [(3, None, "tensor: 1 or 3"), (4, 1, "tensor: 1"), (4, 2, None)]
)
def test_heads_that_cannot_be_shared_are_found_through_the_stages_before(heads, kv_heads, wanted):
    sizes = Architecture(
        hidden_size=24, num_layers=1, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=8, vocab_size=9
    )
    first, second = replace(SFT, init="b"), replace(SFT, init="a", resources=StageResources(tensor=2))
    project = Project(
        name="p",
        models={"b": ModelSpec(architecture=sizes)},
        pipeline={"a": first, "s": second},
        resources=Resources(accelerators=("cpu:4",)),
    )
    found = [str(problem) for problem in check_layout(project, "s", second)]
    if wanted is None:
        assert found == []
    else:
        assert "cannot be split over 2 processes" in found[0]
        assert found[0].endswith(wanted)


def test_judge_with_its_weights_here_runs_in_one_process():
    stage = replace(PPO, reward_from="judge")
    assert problems(stage, "cpu:1") == []
    assert any("whose weights are loaded, runs in one process; found 4" in told for told in problems(stage))
