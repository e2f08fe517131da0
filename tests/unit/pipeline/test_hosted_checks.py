"""Stages that another engine is to compute: what is refused before anything starts, all at once."""

import json
import os
import sys
from dataclasses import replace

import pytest

from charter.engines import render
from charter.engines.common.request import HandoverPaths
from charter.engines.installed import commit_of, engines_at, interpreter_of, stage_versions, versions_at
from charter.engines.project import load_project
from charter.errors import DataError, MissingExtraError, SpecError
from charter.launch.handing_over import handover_of, layout_of, placement_of
from charter.launch.job import HOSTED_MODULE, STAGE_MODULES, module_of, preloaded_modules
from charter.launch.machine import NodeFacts, frozen_values, processes_of
from charter.run.attempt import drift, prepare
from charter.run.doctor import needed_extras
from charter.run.graph import build_pipeline, job_of
from charter.run.preflight import (
    check_before_start,
    check_hosted,
    check_hosted_packages,
    check_nodes,
    check_one_kind,
)
from charter.spec.execution import ExecutableLayout, Execution, RoleExecution, execution_from_json
from charter.spec.sections import EngineEnvironment
from charter.spec.stage import DpoStage

PROJECT = """\
name: p
models:
  base: {architecture: {hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, vocab_size: 300},
         tokenizer: {train_on: [chat], vocab_size: 300}}
data: {chat: chat.jsonl}
pipeline:
  sft: {kind: sft, engine: ENGINE, init: base, data: chat, steps: 6, global_batch: 8, dtype: fp32}
resources: {accelerators: cpu}
"""
ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
VERSIONS = {
    "peft": "0.21.2",
    "trl": "1.16.0",
    "accelerate": "1.15.0",
    "transformers": "5.23.0",
    "torch": "2.13.0",
    "verl": "0.9.1",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Every interpreter has all of it, but for what a test takes out."""
    found = dict(VERSIONS)
    monkeypatch.setattr(
        "charter.engines.installed.versions_at", lambda python, names: {n: found.get(n, "absent") for n in names}
    )
    return found


def pipeline_of(root, engine="trl", **changes):
    (root / "chat.jsonl").write_text(json.dumps(ROW) + "\n")
    text = PROJECT.replace("ENGINE", engine)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (root / "charter.yaml").write_text(text)
    return build_pipeline(load_project(root), root)


def problems(root, engine="trl", **changes):
    pipeline = pipeline_of(root, engine, **changes)
    return [str(item) for item in check_hosted(pipeline, pipeline.stages["sft"], facts=None)]


def test_a_stage_that_the_engine_can_express_has_no_problem(tmp_path):
    assert problems(tmp_path) == []


def test_fields_that_it_cannot_express_are_told_with_the_reason_all_at_once(tmp_path):
    found = problems(tmp_path, **{"dtype: fp32": "dtype: fp32, dropout: 0.1, guard: {on_divergence: skip}"})
    assert {line.partition(":")[0] for line in found} == {"pipeline.sft.dropout", "pipeline.sft.guard"}


def test_an_engine_that_nothing_is_handed_over_to_is_refused(tmp_path):
    (found,) = problems(tmp_path, "fsdp")
    assert found.startswith("pipeline.sft.engine: stages can be planned for the engine 'fsdp', not handed over to it")


@pytest.mark.parametrize("engine", ["trl", "accelerate"])
def test_several_nodes_are_started(tmp_path, engine):
    assert problems(tmp_path, engine, **{"accelerators: cpu": "accelerators: cpu:2, num_nodes: 2"}) == []


@pytest.mark.parametrize("engine", ["verl", "openrlhf"])
def test_nodes_of_accelerators_run_the_same_command_too(tmp_path, engine):
    project = pipeline_of(tmp_path, engine, **{"accelerators: cpu": 'accelerators: "H100:8", num_nodes: 2'}).project
    assert list(check_nodes(project, "sft", project.pipeline["sft"])) == []


def test_nodes_that_an_engine_has_no_way_for_are_for_export(tmp_path):
    stage = LISTED.replace("verl", "prime_rl").replace("CALL", '"charter:number"').replace('"H100:8"', NODES)
    project = pipeline_of(tmp_path, **{"resources: {acc": f"  {stage}resources: {{acc"}).project
    (told,) = check_nodes(project, "rl", project.pipeline["rl"])
    assert told.path == "pipeline.rl.resources.num_nodes"
    assert "starts this kind of stage by prime-rl on one node; found 2" in told.message


NODES = '"H100:8", num_nodes: 2'


@pytest.mark.parametrize("engine", ["verl", "openrlhf", "nemo_rl", "skyrl"])
def test_an_application_of_ray_is_started_on_several_nodes(tmp_path, engine):
    stage = LISTED.replace("verl", engine).replace("CALL", '"charter:number"').replace('"H100:8"', NODES)
    project = pipeline_of(tmp_path, **{"resources: {acc": f"  {stage}resources: {{acc"}).project
    assert list(check_nodes(project, "rl", project.pipeline["rl"])) == []


def test_each_of_several_nodes_runs_its_share_of_the_processes(tmp_path):
    pipeline = pipeline_of(tmp_path, **{"accelerators: cpu": "accelerators: cpu:2, num_nodes: 2"})
    stage = pipeline.stages["sft"]
    paths = HandoverPaths(work="/w", models={"init": "/m"}, data={"data": "/d"})
    job = job_of(stage, pipeline.project, frozen_values(pipeline.project, stage.spec))
    words = render(handover_of(job, paths=paths, architectures={}, target_steps=6, num_nodes=2)).command
    assert words[3:9] == ("--nnodes", "2", "--nproc-per-node", "2", "--node-rank", "${NODE_RANK}")


def test_an_engine_of_accelerators_is_refused_on_processors(tmp_path):
    found = problems(tmp_path, "verl")
    assert found[0].startswith("pipeline.sft.engine: verl needs accelerators, and this stage runs on processors")


LISTED = """rl: {kind: ppo, engine: verl, policy: base, prompts: chat, estimator: grpo, samples_per_prompt: 4,
       rewards: [{name: right, kind: function, call: "charter:number"}, {name: said, kind: function, call: CALL}],
       episodes: 64, rollout_batch: 32, minibatch: 32, kl_coefficient: 0, max_prompt_tokens: 64, max_new_tokens: 32,
       resources: {accelerators: "H100:8", zero: 3, micro_batch: 4}}
"""


@pytest.mark.parametrize(("asks", "refused"), [("answer, truth", ()), ("answer, seed", ("pipeline.rl.rewards",))])
def test_a_list_of_rewards_is_started_where_it_can_be_called(tmp_path, asks, refused):
    (tmp_path / "own.py").write_text(f"def said({asks}):\n    return 1.0\n")
    stage = LISTED.replace("CALL", '"own.py:said"')
    pipeline = pipeline_of(tmp_path, **{"resources: {acc": f"  {stage}resources: {{acc"})
    node = NodeFacts(gpus=8, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")
    told = list(check_hosted(pipeline, pipeline.stages["rl"], facts=node))
    assert tuple(problem.path for problem in told) == refused
    assert all("said: it asks for seed" in problem.message for problem in told)


SERVED = (
    "serving: {big: {endpoint: 'http://big/v1', usd_per_million_input_tokens: 1, usd_per_million_output_tokens: 1}}"
)
POOLED = "serving: {big: {pool: {replicas: 1}}}"


@pytest.mark.parametrize(
    ("serving", "nodes", "words"),
    [
        (SERVED, "", ()),
        ("", "", ("the judge 'big' is asked by requests beside the engine, and nothing serves it",)),
        (POOLED, "", ("the servers of the judge 'big' need accelerators, and the engine fills those",)),
        (SERVED, ", num_nodes: 2", ()),
    ],
)
def test_a_judge_is_asked_beside_an_engine(tmp_path, serving, nodes, words):
    stage = LISTED.replace("function, call: CALL", "judge, model: big").replace('"H100:8"', f'"H100:8"{nodes}')
    stage = stage.replace("batch: 32", "batch: 64")
    changes = {
        "resources: {acc": f"  {stage}{serving}\nresources: {{acc",
        "data: {": "  big: {model: Qwen/Qwen2.5-7B-Instruct}\ndata: {",
    }
    pipeline = pipeline_of(tmp_path, **changes)
    node = NodeFacts(gpus=8, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")
    told = list(check_hosted(pipeline, pipeline.stages["rl"], facts=node))
    assert {problem.path for problem in told} <= {"pipeline.rl.rewards"}
    assert len(told) == len(words)
    assert all(part in problem.message for part, problem in zip(words, told, strict=True))


def test_servers_of_a_judge_start_beside_an_engine_on_processors(tmp_path):
    stage = LISTED.replace("function, call: CALL", "judge, model: big").replace("engine: verl", "engine: trl")
    stage = stage.replace("""accelerators: "H100:8", zero: 3, micro_batch: 4""", "accelerators: cpu")
    changes = {
        "resources: {acc": f"  {stage}{POOLED}\nresources: {{acc",
        "data: {": "  big: {model: Qwen/Qwen2.5-7B-Instruct}\ndata: {",
    }
    pipeline = pipeline_of(tmp_path, **changes)
    node = NodeFacts(gpus=0, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")
    assert [
        problem for problem in check_hosted(pipeline, pipeline.stages["rl"], facts=node) if "rewards" in problem.path
    ] == []


def planned(placement, accelerator="", **parts):
    def role(names):
        layout = ExecutableLayout(data=4 if names else 8, zero=3, micro_batch=4, accumulation=2)
        return RoleExecution(
            use="train",
            nodes=1,
            accelerators_per_node=layout.data,
            engine="verl",
            layout=layout,
            parts=names,
            accelerator=accelerator if "generate" in names else "",
        )

    made = Execution(
        engine="verl",
        nodes=1,
        accelerators_per_node=8,
        accelerator="H100",
        placement=placement,
        roles={name: role(names) for name, names in parts.items()},
        generator_tensor=2,
    )
    return execution_from_json(json.loads(json.dumps(made.to_json())))


def test_generators_are_started_as_wide_as_planned(tmp_path):
    stage = LISTED.replace("CALL", '"charter:number"')
    pipeline = pipeline_of(tmp_path, **{"resources: {acc": f"  {stage}resources: {{acc"})
    node = NodeFacts(gpus=8, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")
    rl = pipeline.stages["rl"]
    job = job_of(rl, pipeline.project, frozen_values(pipeline.project, rl.spec, node))
    paths = HandoverPaths(work="/w", models={"policy": "/m"}, data={"prompts": "/d"})
    placement = placement_of(planned("colocated", trainer=()))
    made = render(handover_of(job, paths=paths, architectures={}, target_steps=2, placement=placement))
    assert "tensor_model_parallel_size: 2\n" in made.files["ppo.yaml"]


def test_roles_that_are_planned_apart_are_started_apart(tmp_path):
    more = {"verl": "openrlhf", "CALL": '"charter:number"', "episodes": "min_new_tokens: 1, episodes"}
    stage = LISTED
    for old, new in more.items():
        stage = stage.replace(old, new)
    pipeline = pipeline_of(tmp_path, **{"resources: {acc": f"  {stage}resources: {{acc"})
    node = NodeFacts(gpus=8, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")
    rl = pipeline.stages["rl"]
    job = job_of(rl, pipeline.project, frozen_values(pipeline.project, rl.spec, node))
    paths = HandoverPaths(work="/w", models={"policy": "/m"}, data={"prompts": "/d"})
    apart = planned("split", trainer=("policy", "reference"), generators=("generate",))
    made = handover_of(job, paths=paths, architectures={}, target_steps=2, placement=placement_of(apart))
    assert (made.layout.data, made.num_accelerators) == (4, 8)
    words = " ".join(render(made).command)
    assert "--actor.num_gpus_per_node 4" in words
    assert "--vllm.num_engines 2 --vllm.tensor_parallel_size 2" in words


def test_two_kinds_of_accelerators_are_not_for_one_configuration(tmp_path):
    rl = replace(pipeline_of(tmp_path).stages["sft"].spec, engine="openrlhf")
    mixed = planned("split", accelerator="A100", trainer=("policy",), generators=("generate",))
    (refused,) = check_one_kind("rl", rl, mixed)
    assert "two kinds of accelerators at once (A100, H100)" in refused.message
    assert list(check_one_kind("rl", rl, planned("colocated", trainer=()))) == []


ADAPTED = {"dtype: fp32": "dtype: fp32, adapter: {rank: 4}"}


@pytest.mark.parametrize("engine", ["trl", "accelerate", "deepspeed"])
def test_an_adapter_of_peft_is_taken_back(tmp_path, engine):
    assert not [line for line in problems(tmp_path, engine, **ADAPTED) if "adapter" in line]


def test_an_adapter_of_another_engine_is_refused_before_it_is_trained(tmp_path):
    found = [line for line in problems(tmp_path, "verl", **ADAPTED) if line.startswith("pipeline.sft.adapter")]
    assert found[0].startswith("pipeline.sft.adapter: verl leaves an adapter apart from its base model")
    assert "one of trl, accelerate, deepspeed too" in found[0]


@pytest.mark.parametrize("bits", [4, 8])
def test_an_adapter_over_a_quantised_base_is_refused_before_it_is_trained(tmp_path, bits):
    (found,) = problems(tmp_path, **{"dtype: fp32": f"dtype: fp32, adapter: {{rank: 4, base_bits: {bits}}}"})
    assert found.startswith("pipeline.sft.adapter.base_bits: ")
    assert f"over a base in 16 bits; found base_bits {bits}" in found
    assert "base_bits: 16, or `engine: native`" in found


def test_an_interpreter_without_peft_is_told_what_to_install_where_there_is_an_adapter(tmp_path, installed):
    del installed["peft"]
    plain = pipeline_of(tmp_path)
    check_hosted_packages(plain.project, plain.stages.values())
    adapted = pipeline_of(tmp_path, **ADAPTED)
    with pytest.raises(MissingExtraError, match=r"trl and an adapter, and .* does not have peft: .* install peft\n"):
        check_hosted_packages(adapted.project, adapted.stages.values())
    del installed["trl"]
    with pytest.raises(MissingExtraError, match=r"does not have trl and peft: .* install trl==1.16.0 peft\n"):
        check_hosted_packages(adapted.project, adapted.stages.values())


def test_peft_is_needed_where_the_engine_is_and_not_here(tmp_path, monkeypatch):
    monkeypatch.setattr("charter.run.preflight.find_spec", lambda name: None if name == "peft" else name)
    pipeline = pipeline_of(tmp_path, **ADAPTED)
    check_before_start(pipeline, list(pipeline.stages.values()), modules=STAGE_MODULES)
    assert dict(needed_extras(pipeline.project, tmp_path, "local")) == {}
    native = pipeline_of(tmp_path, "native", **ADAPTED)
    assert dict(needed_extras(native.project, tmp_path, "local")) == {"adapters": "a stage trains an adapter"}
    with pytest.raises(MissingExtraError, match="training the adapter of sft needs peft"):
        check_before_start(native, list(native.stages.values()), modules=STAGE_MODULES)


def test_the_version_of_peft_counts_only_where_there_is_an_adapter(tmp_path):
    plain, adapted = pipeline_of(tmp_path), pipeline_of(tmp_path, **ADAPTED)
    assert "peft" not in frozen_values(plain.project, plain.stages["sft"].spec)
    assert frozen_values(adapted.project, adapted.stages["sft"].spec)["peft"] == "0.21.2"
    assert "peft" not in stage_versions({}, replace(adapted.stages["sft"].spec, engine="verl"))


def test_accelerators_that_are_not_here_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("charter.run.preflight.gpus_here", lambda: 0)
    found = problems(tmp_path, **{"accelerators: cpu": "accelerators: [H100:8]"})
    assert found[0].startswith(
        "pipeline.sft.resources.accelerators: H100:8 asks for 8 accelerators, this machine has 0"
    )


def test_an_interpreter_without_the_package_is_told_what_to_install(tmp_path, installed):
    pipeline = pipeline_of(tmp_path, **{"resources:": "engines: {trl: {python: env/bin/python}}\nresources:"})
    check_hosted_packages(pipeline.project, pipeline.stages.values())
    del installed["trl"]
    with pytest.raises(MissingExtraError, match=rf"{tmp_path}/env/bin/python -m pip install trl==1.16.0"):
        check_hosted_packages(pipeline.project, pipeline.stages.values())


def test_an_engine_that_is_a_checkout_needs_its_directory(tmp_path):
    text = "engines: {nemo_rl: {directory: there}}\nresources:"
    pipeline = pipeline_of(tmp_path, "nemo_rl", **{"resources:": text})
    with pytest.raises(MissingExtraError, match=r"checkout that is not there\n  git clone .*NVIDIA-NeMo/RL"):
        check_hosted_packages(pipeline.project, pipeline.stages.values())
    commit_of.cache_clear()
    (tmp_path / "there").mkdir()
    check_hosted_packages(pipeline.project, pipeline.stages.values())
    spec = pipeline.stages["sft"].spec
    assert frozen_values(pipeline.project, spec)["github.com/NVIDIA-NeMo/RL"] == "unknown"


def test_an_interpreter_that_is_not_there_is_told():
    with pytest.raises(MissingExtraError, match=r"/nowhere/python cannot be asked for trl: .*No such file"):
        versions_at("/nowhere/python", ("trl",))


def test_a_real_interpreter_says_what_it_has():
    assert versions_at(sys.executable, ("pytest", "no-such-package"))["pytest"] == pytest.__version__
    assert versions_at(sys.executable, ("pytest", "no-such-package"))["no-such-package"] == "absent"


def test_paths_of_engines_are_those_of_the_project(tmp_path):
    found = engines_at({"megatron": EngineEnvironment(python="../py", directory="~/m")}, tmp_path / "p")
    assert found["megatron"].python == str(tmp_path / "py")
    assert found["megatron"].directory == os.path.expanduser("~/m")
    assert interpreter_of(found, "megatron") == str(tmp_path / "py")
    assert interpreter_of({}, "trl") == sys.executable


def test_a_stage_is_frozen_with_the_versions_of_its_engine(tmp_path):
    pipeline = pipeline_of(tmp_path, **{"dtype: fp32": "dtype: fp32, resources: {accelerators: 'cpu:4', context: 2}"})
    stage = pipeline.stages["sft"]
    frozen = frozen_values(pipeline.project, stage.spec)
    assert {key: frozen[key] for key in ("engine", "trl", "torch", "context", "world_size")} == {
        "engine": "trl",
        "trl": "1.16.0",
        "torch": "2.13.0",
        "context": 2,
        "world_size": 4,
    }
    assert processes_of(frozen) == 1
    assert processes_of({"world_size": 4}) == 4
    job = job_of(stage, pipeline.project, frozen)
    assert job.engines == {}


def test_a_stage_is_told_where_its_own_engine_is_and_nothing_of_the_others(tmp_path):
    text = "engines: {trl: {python: a}, verl: {python: b}}\nresources:"
    pipeline = pipeline_of(tmp_path, **{"resources:": text})
    job = job_of(pipeline.stages["sft"], pipeline.project, {})
    assert {name: item.python for name, item in job.engines.items()} == {"trl": str(tmp_path / "a")}
    from charter.artifacts.job import job_from_json, job_to_json

    assert job_from_json(json.loads(json.dumps(job_to_json(job)))).engines == job.engines


def test_the_engine_is_no_part_of_what_is_computed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = [pipeline_of(tmp_path / name, engine) for name, engine in (("a", "trl"), ("b", "native"))]
    assert len({item.stages["sft"].asked_fingerprint for item in found}) == 1


def started(pipeline, here):
    """A stage with a checkpoint that was made under these values."""
    stage = pipeline.stages["sft"]
    prepare(stage, pipeline.project, here, reshard=False)
    (stage.directory / "state" / "step-00000003").mkdir(parents=True)
    return stage


def test_a_stage_of_accelerators_goes_on_from_a_machine_without(tmp_path):
    """A supervisor on a login node: what the nodes have counts, and a node that has none of them is told."""
    pipeline = pipeline_of(tmp_path, **{"accelerators: cpu": "accelerators: [H100:8]"})
    node = NodeFacts(gpus=8, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")
    here = frozen_values(pipeline.project, pipeline.stages["sft"].spec, node)
    stage = started(pipeline, here)
    assert drift(stage, pipeline.project, here) == []
    bare = frozen_values(pipeline.project, stage.spec, replace(node, gpus=0))
    assert "world_size 8 -> 1" in drift(stage, pipeline.project, bare)


def test_another_version_or_engine_does_not_go_on(tmp_path, installed):
    pipeline = pipeline_of(tmp_path)
    here = frozen_values(pipeline.project, pipeline.stages["sft"].spec)
    stage = started(pipeline, here)
    assert drift(stage, pipeline.project, here) == []
    installed["trl"] = "1.17.0"
    other = frozen_values(pipeline.project, stage.spec)
    assert drift(stage, pipeline.project, other) == ["trl 1.16.0 -> 1.17.0"]
    native = replace(stage, spec=replace(stage.spec, engine="native"))
    values = frozen_values(pipeline.project, native.spec)
    assert "engine trl -> native" in drift(native, pipeline.project, values)
    with pytest.raises(DataError, match="started by the engine trl, whose checkpoints native cannot read"):
        prepare(native, pipeline.project, values, reshard=True)


def test_a_stage_that_began_natively_is_not_handed_over_in_the_middle(tmp_path):
    pipeline = pipeline_of(tmp_path, "native")
    stage = started(pipeline, frozen_values(pipeline.project, pipeline.stages["sft"].spec))
    hosted = replace(stage, spec=replace(stage.spec, engine="trl"))
    assert "engine native -> trl" in drift(hosted, pipeline.project, frozen_values(pipeline.project, hosted.spec))


def test_a_stage_that_began_exactly_does_not_go_on_without(tmp_path):
    pipeline = pipeline_of(tmp_path, "native")
    stage = started(pipeline, frozen_values(pipeline.project, pipeline.stages["sft"].spec))
    loose = frozen_values(replace(pipeline.project, exact="record"), stage.spec)
    assert loose["exact"] == "record"
    assert drift(stage, pipeline.project, loose) == ["exact bits -> record"]


@pytest.mark.parametrize(
    ("name", "value"), [("cpu_attention", "fp32"), ("cpu_prompts", "once"), ("cpu_layers", "joint")]
)
def test_a_stage_begun_before_a_value_was_frozen_goes_on(tmp_path, name, value):
    pipeline = pipeline_of(tmp_path, "native")
    here = frozen_values(pipeline.project, pipeline.stages["sft"].spec)
    assert here[name] == value
    before = {one: frozen for one, frozen in here.items() if one != name}
    stage = started(pipeline, before)
    assert prepare(stage, pipeline.project, here, reshard=False).frozen == before


def test_one_module_runs_every_stage_of_another_engine(tmp_path):
    spec = pipeline_of(tmp_path).stages["sft"].spec
    assert module_of(spec) == HOSTED_MODULE
    assert module_of(replace(spec, engine="native"), {"sft": "mine"}) == "mine"
    assert preloaded_modules([HOSTED_MODULE]) == [HOSTED_MODULE, "charter.models.preload"]


def test_the_run_refuses_it_as_a_mistake_of_the_file(tmp_path):
    from charter.run.preflight import check_before_start

    pipeline = pipeline_of(tmp_path, **{"dtype: fp32": "dtype: fp32, dropout: 0.1"})
    with pytest.raises(SpecError, match=r"pipeline.sft.dropout: trl cannot express 0.1"):
        check_before_start(pipeline, list(pipeline.stages.values()), modules=STAGE_MODULES)


def test_a_job_is_handed_over_in_the_layout_that_it_was_started_with(tmp_path):
    pipeline = pipeline_of(tmp_path)
    stage = pipeline.stages["sft"]

    def layout(spec, **frozen):
        return layout_of(job_of(replace(stage, spec=spec), pipeline.project, frozen))

    found = layout(stage.spec, world_size=4, micro_batch=1, zero=3, tensor=2, offload="all", recompute="full")
    assert (found.data, found.tensor, found.micro_batch, found.accumulation) == (2, 2, 1, 4)
    assert (found.zero, found.offload_optimizer, found.offload_parameters) == (3, True, True)
    assert found.recompute == "full"
    whole = layout(stage.spec, world_size=2)
    assert (whole.data, whole.micro_batch, whole.accumulation) == (2, 4, 1)
    spread = layout(stage.spec, world_size=8, pipeline=2, context=2, sequence_parallel=1, offload="optimizer")
    assert (spread.data, spread.pipeline, spread.context, spread.sequence_parallel) == (2, 2, 2, True)
    assert (spread.offload_optimizer, spread.offload_parameters) == (True, False)
    pairs = layout(DpoStage(init="base", data=("d",), global_batch=8, engine="trl"), micro_batch=2)
    assert (pairs.micro_batch, pairs.accumulation) == (4, 4)
