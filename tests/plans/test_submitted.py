"""What a launcher really gets is what was planned: templates, recipes and examples, by each launcher's own words.

Commands of the launchers are replaced on PATH by scripts that keep what they are given; a small parser for each reads
that, knowing nothing of how it was written.
"""

import json
import math
import re
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import engines_over_nodes
import pytest
import ray_trainer
import yaml

from charter.cli.main import entry
from charter.engines import render
from charter.engines.common.request import HandoverPaths
from charter.engines.project import load_project
from charter.launch.handing_over import handover_of, model_roles, placement_of
from charter.launch.job import module_of
from charter.launch.kubernetes.scheduler import KubernetesScheduler
from charter.launch.machine import NodeFacts, frozen_values
from charter.launch.ray.request import request_of
from charter.launch.slurm.scheduler import SlurmScheduler
from charter.launch.submission import preview_job
from charter.run.graph import build_pipeline, job_of, with_project
from charter.run.planned import plan_of_run, resolved_project
from charter.run.served import stage_pools
from charter.templates.shipped import find_template, write_template

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ("cai-8b", "cai-70b", "rlaif-8b", "constitution-rl-8b", "grpo-7b")
MIB, GIB = 2**20, 2**30
RECIPES = tuple(sorted(path.name for path in (ROOT / "recipes").iterdir() if path.is_dir()))
NOT_FITTING = "ppo-72b.yaml"
"""An example of what its nodes cannot hold: `submit` refuses it, as `plan` does."""
EXAMPLES = tuple(sorted({path.name for path in (ROOT / "docs" / "examples").glob("*.yaml")} - {NOT_FITTING}))
SHIM = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word" >> {log}.words; done
cat > {log}
echo {answer}
"""


def project_at(name, root):
    if name in TEMPLATES:
        write_template(find_template(name), root)
    elif name in RECIPES:
        shutil.copytree(ROOT / "recipes" / name, root, ignore=shutil.ignore_patterns("run"))
    else:
        root.mkdir()
        shutil.copy(ROOT / "docs" / "examples" / name, root / "charter.yaml")
        for path in (ROOT / "docs" / "examples").glob("*"):
            if path.suffix != ".yaml":
                shutil.copy(path, root)
    return load_project(root / "charter.yaml")


@pytest.fixture(scope="module", params=[*TEMPLATES, *RECIPES, *EXAMPLES])
def planned(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("planned") / "project"
    project = project_at(request.param, root)
    pipeline = build_pipeline(project, root)
    found = plan_of_run(pipeline)
    assert found.plan is not None, found.problem
    return pipeline, found


def jobs(planned, launcher):
    """Stage, its job, its entry in the JSON of the plan."""
    pipeline, found = planned
    project, _ = resolved_project(pipeline, found, launcher)
    pipeline = with_project(pipeline, project)
    entries = {stage["name"]: stage for stage in found.plan.to_json()["stages"]}
    for name, stage in pipeline.stages.items():
        if not entries[name]["count"]:
            continue
        module = module_of(stage.spec)
        pools = stage_pools(project, stage)
        yield entries[name], preview_job(project, name, stage.directory, scheduler=launcher, module=module, pools=pools)


def asked_of(command):
    """What an agent's command says: the ranks of a node and the layout, or the servers."""
    options = dict(pairwise(command))
    layout = dict(word.split("=") for word in options.get("--layout", "").split(",") if word)
    return {
        "processes": int(options.get("--processes", 1)),
        "nodes": int(options.get("--nodes", 1)),
        "engine_nodes": int(options.get("--engine-nodes", 0)),
        "layout": layout,
        "pools": {item["model"]: item for item in json.loads(options.get("--pools", "[]"))},
    }


def differences(stage, got):
    """Fields of the plan that the launcher was not given."""
    made = stage["execution"]
    wrong = []

    def same(what, planned, found):
        if planned != found:
            wrong.append(f"{stage['name']}.{what}: planned {planned}, given {found}")

    same("nodes", made["nodes"], got["nodes"])
    # An application of Ray takes the accelerators itself, so that its job is one process and reserves none of them.
    same("agents", 1 if got.get("drives") else made["nodes"], got["command"]["nodes"])
    same("engine_nodes", made["nodes"] if got.get("drives") else 0, got["command"]["engine_nodes"])
    same("accelerators_per_node", made["accelerators_per_node"], got["per_node"])
    same("accelerator", made["accelerator"].split("-")[0].lower(), got["kind"].split("-")[0].lower())
    same("memory", math.ceil(stage["node"]["system_memory_bytes"] / GIB), got["memory"] / GIB)
    same("count", stage["count"], got["nodes"] * got["per_node"])
    if got["spot"] is not None:
        same("market", made["market"] == "spot", got["spot"])
    trainer = made["roles"].get("trainer")
    if trainer is not None and set(made["roles"]) == {"trainer"}:
        layout, given = trainer["layout"], got["command"]["layout"]
        ranks = layout["data"] * layout["tensor"] * layout["pipeline"] * layout["context"]
        same("ranks", ranks, int(given["world_size"]))
        # Of another engine's processes the agents start none themselves: one of Charter's on each node does.
        own = ranks if made["engine"] == "native" else 1 if got.get("drives") else made["nodes"]
        same("processes", own, got["command"]["nodes"] * got["command"]["processes"])
        for name in ("tensor", "zero", "replicas", "micro_batch"):
            same(name, layout[name], int(given[name]))
        for name in ("recompute", "offload"):
            same(name, layout[name], given[name])
    for name, role in made["roles"].items():
        if role["use"] == "serve" and role["models"]:
            pool = got["command"]["pools"].get(role["models"][0], {})
            same(f"{name}.replicas", role["layout"]["data"], pool.get("replicas"))
            same(f"{name}.tensor", role["layout"]["tensor"], pool.get("tensor"))
            same(f"{name}.max_num_seqs", role["layout"]["micro_batch"], pool.get("max_num_seqs"))
            same(f"{name}.memory_share", round(role["memory_share"], 4), pool.get("memory_share"))
    return wrong


def shim(directory, command, answer):
    directory.mkdir(exist_ok=True)
    path, log = directory / command, directory / f"{command}.log"
    path.write_text(SHIM.format(log=log, answer=answer))
    path.chmod(0o755)
    return log


def by_slurm(job, directory, project):
    log = shim(directory, "sbatch", "17")
    environ = {"PATH": f"{directory}:/usr/bin:/bin"}
    SlurmScheduler(project.launch.slurm, environ=environ).submit(job)
    script = log.read_text()
    says = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script, re.MULTILINE))
    _, kind, each = says["gres"].split(":")
    (line,) = [line for line in script.splitlines() if "charter.launch.agent" in line]
    command = asked_of(shlex.split(line))
    memory = int(says["mem"].removesuffix("M")) * MIB
    given = {"nodes": int(says["nodes"]), "per_node": int(each), "memory": memory}
    return {**given, "kind": kind, "spot": None, "command": command}


def by_kubernetes(job, directory, project):
    log = shim(directory, "kubectl", "{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}:/usr/bin:/bin")
        settings = replace(
            project.launch.kubernetes, image="registry.lab/charter:1", volume_claim="runs", mount_path="/"
        )
        KubernetesScheduler(settings).submit(job)
    item = next(item for item in yaml.safe_load_all(log.read_text()) if "Job" in item["kind"])
    spec = item["spec"] if "template" in item["spec"] else item["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    limits = container["resources"]["limits"]
    terms = json.dumps(pod.get("affinity", {}))
    return {
        "nodes": int(spec.get("completions") or spec.get("parallelism") or 1),
        "per_node": int(limits["nvidia.com/gpu"]),
        "memory": int(container["resources"]["requests"]["memory"]),
        "kind": re.search(r"(?:NVIDIA-)?([ABHL]\d+)", terms).group(1),
        "spot": '"spot"' in terms.lower() or "cloud.google.com/gke-spot" in json.dumps(pod),
        "command": asked_of([*container.get("command", ()), *container.get("args", ())]),
    }


def by_ray(job, directory, project):
    asked = request_of(job, project.launch.ray)
    taken = asked["tasks"].get("engine_takes")
    nodes, resources = asked["tasks"]["nodes"], asked["resources_per_task"]
    if taken:
        assert (nodes, "GPU" in resources) == (1, False), "accelerators would be reserved twice"
        nodes, resources = taken["nodes"], taken["resources_per_node"]
    (kind,) = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type")]
    return {
        "nodes": nodes,
        "per_node": int(resources["GPU"]),
        "memory": int(resources["memory"]),
        "kind": kind,
        "drives": taken is not None,
        "spot": not asked["label_selector"],
        "command": asked_of(asked["entrypoint"]),
    }


@pytest.mark.parametrize("given", [by_slurm, by_kubernetes, by_ray])
def test_the_launcher_gets_what_was_planned(planned, given, tmp_path):
    launcher = given.__name__.removeprefix("by_")
    wrong = [
        difference
        for stage, job in jobs(planned, launcher)
        for difference in differences(stage, given(job, tmp_path / stage["name"], planned[0].project))
    ]
    assert not wrong, "\n".join(wrong)


SERVERS = "{judge: {replicas: 3, tensor: 4, max_num_seqs: 32}}"


@pytest.mark.parametrize("given", [by_slurm, by_kubernetes, by_ray])
@pytest.mark.parametrize(
    ("words", "count"),
    [
        (f"pipeline.label.resources={{pools: {SERVERS}}}", 3),
        ("pipeline.label.resources={shards: 4}", None),
        ("serving.judge={pool: {replicas: 1, tensor: 4, engine: charter}}", 1),
    ],
)
def test_servers_of_the_file_are_planned_and_sent(words, count, given, tmp_path):
    root = tmp_path / "project"
    write_template(find_template("cai-8b"), root)
    project = load_project(root / "charter.yaml", overrides=[words])
    pipeline = build_pipeline(project, root)
    found = plan_of_run(pipeline)
    assert found.plan is not None, found.problem
    sent = {entry["name"]: (entry, job) for entry, job in jobs((pipeline, found), given.__name__.removeprefix("by_"))}
    entry, job = sent["label"]
    asked = given(job, tmp_path / "label", project)
    assert differences(entry, asked) == []
    assert job.shards == 1
    pools = asked["command"]["pools"]
    assert set(pools) == {"judge", "sl_cai"}
    assert count in (None, pools["judge"]["replicas"])
    assert pools["judge"]["engine"] == ("charter" if "charter" in words else "vllm")
    assert entry["execution"]["nodes"] * 8 >= pools["judge"]["replicas"] * pools["judge"]["tensor"]


EDITS = {
    "on demand": ["resources.use_spot=false"],
    "two kinds": [
        "pipeline.sl_cai.resources={accelerators: 'A100-80GB:8'}",
        "pipeline.label.resources={accelerators: 'H200:8', use_spot: false}",
    ],
    "half boxes": ["resources={infra: on_prem, price: $2/h, accelerators: ['H100:4'], network: 400Gbit/s}"],
    "engines": ["pipeline.helpful.engine=deepspeed", "pipeline.sl_cai.engine=trl", "pipeline.ppo.engine=verl"],
    "exactness": ["exact=record", "engines={trl: {}, deepspeed: {}}"],
    "by hand": [
        "pipeline.pm.resources={tensor: 2, num_nodes: 2}",
        "serving.judge={pool: {replicas: 2, tensor: 4}}",
        "pipeline.eval.resources={pools: {judge: {replicas: 1, tensor: 4}}}",
    ],
}


@pytest.fixture(scope="module", params=EDITS)
def edited(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("edited") / "project"
    write_template(find_template("cai-8b"), root)
    pipeline = build_pipeline(load_project(root / "charter.yaml", overrides=EDITS[request.param]), root)
    found = plan_of_run(pipeline)
    assert found.plan is not None, found.problem
    return pipeline, found


@pytest.mark.parametrize("given", [by_slurm, by_kubernetes, by_ray])
def test_an_edit_of_the_file_reaches_the_launcher(edited, given, tmp_path):
    for stage, job in jobs(edited, given.__name__.removeprefix("by_")):
        assert differences(stage, given(job, tmp_path / stage["name"], edited[0].project)) == []


NODE = NodeFacts(gpus=4, cpu_capability="AVX2", torch="2.13.0", transformers="5.23.0")


def asked_of_ray(engine, stage, execution, project, launcher, work):
    """Accelerators that an engine asks its Ray for, by its configuration: of those that train, and of generators."""
    job = job_of(stage, project, frozen_values(project, stage.spec, NODE))
    paths = HandoverPaths(
        work=str(work), models={role: "/m" for role in model_roles(job)}, data={"prompts": "/d.jsonl"}
    )
    made = render(
        handover_of(
            job,
            paths=paths,
            architectures={},
            target_steps=6,
            num_nodes=2,
            on_ray=launcher == "ray",
            placement=placement_of(execution),
        )
    )
    assert ("bash" in made.command) == (launcher != "ray")
    for name, text in made.files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv("STEPS", "6")
        run = ray_trainer.run_of([word for word in made.command if word not in ("bash", "on_ray.sh", "python")])
    return run.nodes * run.per_node, run.generators * run.each


@pytest.mark.parametrize("given", [by_slurm, by_kubernetes, by_ray])
@pytest.mark.parametrize(
    ("engine", "more"),
    [("verl", ""), ("verl", engines_over_nodes.AHEAD), ("openrlhf", ""), ("nemo_rl", ""), ("skyrl", "")],
)
def test_an_engine_asks_its_ray_for_what_was_planned(engine, more, given, tmp_path):
    launcher = given.__name__.removeprefix("by_")
    root = engines_over_nodes.project(
        tmp_path / "project", engine, infra=launcher, settings=f"{launcher}: {{}}", more=more
    )
    path = root / "charter.yaml"
    path.write_text(path.read_text().replace("memory: 1GiB, ", ""))
    project = load_project(path)
    pipeline = build_pipeline(project, root)
    planned = pipeline, plan_of_run(pipeline)
    ((entry, job),) = jobs(planned, launcher)
    assert differences(entry, given(job, tmp_path / "rl", project)) == []
    _, executions = resolved_project(pipeline, planned[1], launcher)
    execution = executions["rl"]
    trains, generates = asked_of_ray(engine, pipeline.stages["rl"], execution, project, launcher, tmp_path)
    apart = execution.roles.get("generators")
    assert (apart is not None) == (engine == "openrlhf" or bool(more))
    assert trains == execution.roles["trainer"].accelerators
    assert generates == (0 if apart is None else apart.accelerators)
    assert trains + generates == entry["count"]


@pytest.mark.parametrize("template", TEMPLATES[:3])
def test_a_template_can_be_handed_to_a_fast_engine(template, tmp_path, capsys, monkeypatch):
    write_template(find_template(template), tmp_path, force=False)
    arguments = ["artifacts", "export", "ppo", "-C", str(tmp_path), "--engine", "verl", "--print"]
    monkeypatch.setattr("sys.argv", ["charter", *arguments])
    with pytest.raises(SystemExit) as ended:
        entry()
    said = capsys.readouterr()
    assert (ended.value.code or 0, said.err) == (0, "")
    assert "algorithm" in said.out


@pytest.mark.parametrize("given", [by_slurm, by_kubernetes, by_ray])
@pytest.mark.parametrize("engine", ["verl", "openrlhf"])
def test_each_node_starts_its_share_of_what_was_planned(engine, given, tmp_path):
    launcher = given.__name__.removeprefix("by_")
    path = tmp_path / "charter.yaml"
    path.write_text(TWO_NODES.format(engine=engine, launcher=launcher))
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    project = load_project(path)
    pipeline = build_pipeline(project, tmp_path)
    planned = pipeline, plan_of_run(pipeline)
    ((entry, job),) = jobs(planned, launcher)
    assert differences(entry, given(job, tmp_path / "given", project)) == []
    stage = pipeline.stages["sft"]
    paths = HandoverPaths(work="/w", models={"init": "/m"}, data={"data": "/d"})
    job = job_of(stage, project, frozen_values(project, stage.spec, NODE))
    words = render(handover_of(job, paths=paths, architectures={}, target_steps=6, num_nodes=2)).command
    options = dict(pairwise(words))
    assert int(options["--nnodes"]) == entry["execution"]["nodes"] == 2
    assert int(options["--nproc-per-node"]) == entry["execution"]["accelerators_per_node"] == 8
    meets = [options[f"--{name}"] for name in ("node-rank", "master-addr", "master-port")]
    assert meets == ["${NODE_RANK}", "${MASTER_ADDR}", "${MASTER_PORT}"]


TWO_NODES = """\
name: two-nodes
models:
  base: {{architecture: {{hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 176, vocab_size: 512}},
         tokenizer: {{train_on: [chat], vocab_size: 512}}}}
data: {{chat: chat.jsonl}}
pipeline:
  sft: {{kind: sft, engine: {engine}, init: base, data: chat, steps: 6, global_batch: 128, dtype: bf16,
        resources: {{accelerators: "H100:8", num_nodes: 2, zero: 3, micro_batch: 4}}}}
resources: {{infra: {launcher}, price: 3.6}}
"""
