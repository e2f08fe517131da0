"""What the plan decided is what stages are started as: in the resources of the stage, and so in all that reads them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from charter.artifacts import durable
from charter.artifacts.job import EXECUTION_FILE
from charter.engines.project import load_project
from charter.errors import InfeasibleError
from charter.launch.kubernetes.pod import resources as pod_resources
from charter.launch.machine import NodeFacts, frozen_values
from charter.launch.submission import preview_job, supervisor_job
from charter.models.engine_layout import StageLayout, engine_layout
from charter.run.graph import build_pipeline
from charter.run.planned import (
    PLAN_FILE,
    PlanNow,
    executions_for,
    keep_plan,
    plan_of_run,
    resolved_project,
)
from charter.run.submit import preview
from charter.spec.execution import (
    ExecutableLayout,
    Execution,
    RoleExecution,
    execution_from_json,
    resolved,
)
from charter.spec.launching import KubernetesSettings
from charter.spec.project import Project, Resources
from charter.spec.stage import EvalStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import StageResources
from charter.units import GIB

SFT = SftStage(init="b", data=("d",))
LAYOUT = ExecutableLayout(
    data=4, tensor=2, zero=3, micro_batch=8, replicas=2, recompute="full", offload="optimizer", decode_batch=24
)
EIGHT_GPUS = NodeFacts(gpus=8, cpu_capability="avx2", torch="2.13.0", transformers="5.0")


def execution(layout=LAYOUT, **more):
    role = RoleExecution(
        use="train", nodes=1, accelerators_per_node=8, layout=layout, engine="native", accelerator="H100-SXM-80GB"
    )
    given = {"engine": "native", "nodes": 1, "accelerators_per_node": 8, "roles": {"trainer": role}}
    return Execution(**{**given, "accelerator": "H100-SXM-80GB", "market": "spot", "infra": "aws", **more})


def frozen(stage=SFT, made=None):
    project = Project(name="p", models={}, pipeline={"s": stage}, resources=Resources(accelerators=("H100:8",)))
    project = resolved(project, {"s": made or execution()})
    return frozen_values(project, project.pipeline["s"], EIGHT_GPUS)


def test_the_engine_reads_back_the_layout_that_was_planned():
    assert engine_layout(frozen()) == StageLayout(
        world_size=8,
        zero=3,
        replicas=2,
        tensor=2,
        micro_batch=8,
        recompute="full",
        offload="optimizer",
        decode_batch=24,
    )


def test_a_row_of_pairs_is_a_row_on_both_sides():
    pairs = PreferenceModelStage(init="b", data=("d",))
    assert engine_layout(frozen(pairs)).micro_batch == 8


def test_the_file_comes_before_the_plan():
    pinned = replace(SFT, resources=StageResources(recompute="none", tensor=1))
    assert (engine_layout(frozen(pinned)).recompute, engine_layout(frozen(pinned)).tensor) == ("none", 1)


@pytest.mark.parametrize(
    ("own", "node", "asked", "limit"),
    [(None, None, 300 * GIB, None), (200 * GIB, None, 200 * GIB, None), (None, 512 * GIB, 512 * GIB, 512 * GIB)],
)
def test_a_job_asks_for_the_memory_that_is_planned(own, node, asked, limit):
    """Unless the file says another: of the stage, or what a node has, which alone is a limit too."""
    stage = replace(SFT, resources=StageResources(memory=own))
    resources = Resources(accelerators=("H100:8",), memory=node)
    project = Project(name="p", models={}, pipeline={"s": stage}, resources=resources)
    project = resolved(project, {"s": execution(memory_bytes_per_node=300 * GIB)})
    job = preview_job(project, "s", Path("/runs/s"), scheduler="kubernetes", module="charter.train.sft")
    assert (job.memory_bytes_per_node, job.memory_limit_bytes_per_node) == (asked, limit)
    given = pod_resources(job, KubernetesSettings())
    assert (given["requests"]["memory"], given["limits"].get("memory")) == (str(asked), limit and str(limit))
    sent = supervisor_job(project, Path("/p"), root=Path("/p"), scheduler="slurm", only=(), token="0")
    assert sent.memory_bytes_per_node is None


def test_an_evaluation_gets_the_machine_that_is_paid_for():
    """One process uses one accelerator; who says no more gets one, and a planned one gets the machine of its plan."""
    stage = EvalStage(policy="b", suites=("perplexity",))
    resources = Resources(accelerators=("H100:8",))
    project = Project(name="p", models={}, pipeline={"s": stage}, resources=resources)
    client = RoleExecution(
        use="client", nodes=1, accelerators_per_node=8, layout=ExecutableLayout(), engine="native", accelerator="H100"
    )
    planned = resolved(project, {"s": execution(roles={"client": client})})
    counts = [
        preview_job(one, "s", Path("/s"), scheduler="slurm", module="charter.evaluate.run").accelerators_per_node
        for one in (project, planned)
    ]
    assert counts == [1, 8]


def test_an_execution_survives_its_json():
    made = execution()
    assert execution_from_json(json.loads(json.dumps(made.to_json()))) == made


def test_this_machine_takes_only_what_was_planned_for_it(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.gpus_here", lambda: 8)
    project = Project(name="p", models={}, pipeline={"s": SFT}, resources=Resources(accelerators=("H100:8",)))
    here, rented = execution(infra="local"), execution()
    assert executions_for({"s": here}, project, "local") == {"s": here}
    assert executions_for({"s": rented}, project, "local") == {}
    assert executions_for({"s": rented}, project, "slurm") == {"s": rented}
    assert executions_for({"s": execution(accelerator="", infra="local")}, project, "slurm") == {}, "on processors"
    alone = replace(here, nodes=2)
    twice = replace(alone, roles={"trainer": replace(here.roles["trainer"], nodes=2)})
    assert executions_for({"s": twice}, project, "local") == {}, "planned for another number of processes"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "charter.yaml").write_text(
        """
name: two
models:
  base: {model: meta-llama/Llama-3.1-8B}
  judge: {model: meta-llama/Llama-3.1-70B-Instruct}
constitution: constitution.yaml
data: {chats: {path: c.jsonl, rows: 20_000, mean_tokens: 300}, prompts: {path: p.jsonl, rows: 9_000, mean_tokens: 40}}
pipeline:
  sft: {kind: sft, init: base, data: chats, epochs: 1, global_batch: 128, seq_len: 2048}
  label: {kind: label, judge: judge, policy: sft, prompts: [prompts], pairs: 20_000, max_new_tokens: 256}
  pm: {kind: preference_model, init: base, data: [label], epochs: 1, global_batch: 128, seq_len: 1024}
resources: {infra: aws, accelerators: "H100:8", max_nodes: 4, use_spot: auto}
"""
    )
    (tmp_path / "constitution.yaml").write_text(
        "schema: charter.constitution/v1\nname: one\nprinciples:\n"
        '  - {id: kind, critique: Is it rude?, revision: Be kind., compare: "Which is kinder?"}\n'
    )
    return tmp_path


def jobs(root, **more):
    return {(job["stage"], job["role"]): job for job in preview(load_project(root), root, "slurm", (), **more).jobs}


def test_jobs_are_those_of_the_plan_role_by_role(root):
    planned = plan_of_run(build_pipeline(load_project(root), root)).executions
    found = jobs(root)
    assert found[(None, "supervisor")]["accelerators_per_node"] == 0
    for stage, made in planned.items():
        roles = {role: job for (of, role), job in found.items() if of == stage}
        assert set(roles) == set(made.roles)
        own = sum(job["nodes"] * job["accelerators_per_node"] for job in roles.values() if not job["shares"])
        assert own == made.accelerators > 0
        assert {job["market"] for job in roles.values()} == {made.market}
        assert {job["memory_bytes_per_node"] for job in roles.values()} == {made.memory_bytes_per_node}
        assert made.memory_bytes_per_node > 0


def test_what_a_run_would_refuse_is_said_beside_its_print(root):
    file = root / "charter.yaml"
    assert preview(load_project(root), root, "slurm", ()).refused == ()
    two = "sft: {kind: sft, engine: megatron, resources: {num_nodes: 2},"
    file.write_text(file.read_text().replace("sft: {kind: sft,", two))
    shown = preview(load_project(root), root, "slurm", ())
    (refused,) = shown.to_json()["refused"]
    assert refused.startswith("pipeline.sft.resources.num_nodes: ")
    assert "starts this kind of stage by Megatron" in refused
    assert preview(load_project(root), root, "slurm", ("pm",)).refused == ()


def test_servers_of_one_stage_share_its_accelerators_and_their_memory(root):
    made = plan_of_run(build_pipeline(load_project(root), root)).executions["label"]
    pools = made.pools
    assert {pool.models for pool in pools.values()} == {("sft",), ("judge",)}
    assert sorted(bool(pool.shares) for pool in pools.values()) == [False, True]
    assert 0.8 < sum(pool.memory_share for pool in pools.values()) < 0.95
    (command,) = {tuple(job["command"]) for (stage, _), job in jobs(root).items() if stage == "label"}
    servers = json.loads(command[command.index("--pools") + 1])
    assert {(item["model"], item["replicas"], item["tensor"]) for item in servers} == {
        (pool.models[0], pool.layout.data, pool.layout.tensor) for pool in pools.values()
    }


def test_a_layout_that_is_changed_in_the_kept_plan_is_what_is_sent(root):
    pipeline = build_pipeline(load_project(root), root)
    planned = plan_of_run(pipeline)
    (root / "run").mkdir(exist_ok=True)
    assert keep_plan(planned, root) == ""
    before = jobs(root)[("pm", "trainer")]
    kept = durable.read_json(root / "run" / PLAN_FILE)
    stage = next(item for item in kept["stages"] if item["name"] == "pm")
    stage["execution"]["nodes"] = stage["execution"]["roles"]["trainer"]["nodes"] = 3
    stage["execution"]["roles"]["trainer"]["layout"]["micro_batch"] = 1
    durable.write_json(root / "run" / PLAN_FILE, kept)
    after = jobs(root)[("pm", "trainer")]
    assert (before["nodes"], after["nodes"]) != (3, before["nodes"])
    assert after["layout"]["micro_batch"] == 1
    assert "micro_batch=1," in after["command"][after["command"].index("--layout") + 1]
    assert jobs(root, replan=True)[("pm", "trainer")] == before


def test_the_kept_plan_holds_until_the_file_changes(root):
    pipeline = build_pipeline(load_project(root), root)
    (root / "run").mkdir(exist_ok=True)
    keep_plan(plan_of_run(pipeline), root)
    assert plan_of_run(pipeline).plan is None, "nothing was planned anew"
    (root / "charter.yaml").write_text((root / "charter.yaml").read_text().replace("max_nodes: 4", "max_nodes: 2"))
    assert plan_of_run(build_pipeline(load_project(root), root)).plan is not None


def test_a_stage_with_a_checkpoint_goes_on_as_it_was_started(root):
    pipeline = build_pipeline(load_project(root), root)
    stage = pipeline.stages["pm"]
    (stage.directory / "state" / "step-00000010").mkdir(parents=True)
    durable.write_json(stage.directory / "state" / "step-00000010" / "manifest.json", {})
    durable.write_json(stage.directory / EXECUTION_FILE, execution().to_json())
    planned = PlanNow(executions={"pm": execution(LAYOUT, nodes=4)})
    project, chosen = resolved_project(pipeline, planned, "slurm")
    assert chosen["pm"] == execution()
    assert project.pipeline["pm"].resources.num_nodes == 1
    assert resolved_project(pipeline, planned, "slurm", reshard=True)[1]["pm"].nodes == 4


def test_what_cannot_fit_is_not_even_printed(root):
    file = root / "charter.yaml"
    file.write_text(file.read_text().replace('"H100:8", max_nodes: 4', '"A10G:1", max_nodes: 1'))
    with pytest.raises(InfeasibleError):
        jobs(root)
    assert jobs(root, anyway=True)[(None, "supervisor")]["command"][-1] == "--anyway"
