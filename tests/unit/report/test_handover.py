"""`charter artifacts export STAGE --engine E` with an engine that takes everything."""

import json
import subprocess
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace

import planner_case
import ppo_case
import pytest
import yaml
from handover_case import EVERY_KIND, PLAIN, REFUSED_RATE, alone
from typer.testing import CliRunner

from charter import engines
from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import SpecError, UsageError
from charter.plan.project_plan import plan_project
from charter.plan.rl_search import rl_options
from charter.report import handover_pages
from charter.report.handover import export_handover, exported, with_engine, write_export
from charter.report.handover_pages import placement_of, resume_words, shell_word
from charter.spec.project import Resources

PROJECT = """
name: tried
models: {base: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 4000, mean_tokens: 300}
  pairs: {path: pairs.jsonl, rows: 4000, mean_tokens: 300}
pipeline:
  sft: {kind: sft, init: base, data: [chat], steps: 50, learning_rate: 2e-5}
  pm: {kind: preference_model, init: sft, data: [pairs], epochs: 1}
  eval: {kind: eval, policy: sft, suites: [pm_accuracy], reward: pm, pairs: [pairs]}
resources: {infra: aws, accelerators: [H100:8], num_nodes: 2}
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", alone(PLAIN))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "charter.yaml").write_text(PROJECT)
    return tmp_path


def made_of(root, stage="sft"):
    return export_handover(load_project(root), root, stage, "trl")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_stage_is_handed_over_as_it_was_planned(root):
    made = made_of(root)
    planned = plan_project(with_engine(load_project(root), "sft", "trl"), root).stage("sft")
    asked = made.handover
    assert (asked.layout, asked.num_nodes, asked.per_node) == (planned.option.layout, 2, 8)
    assert asked.accelerator == "H100-SXM-80GB"
    assert asked.target_steps == 50
    assert asked.architectures["init"].hidden_size == 4096
    assert asked.paths.models == {"init": "meta-llama/Llama-3.1-8B"}
    assert asked.paths.data == {"data": "data/data.rows"}
    assert asked.rows == {"data": 4000}
    assert asked.placement is None
    assert planned.option.engine == "trl"


def test_a_model_that_a_stage_makes_lies_below_the_export(root):
    made = made_of(root, "pm")
    assert made.handover.paths.models == {"init": "inputs/init"}
    assert made.handover.target_steps == 4000 // 64 + 1
    assert "made by stage sft: `charter artifacts export sft inputs/init -C PROJECT`" in made.files["README.md"]


def test_the_directory_says_where_everything_went(root, tmp_path):
    write_export(made_of(root), tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    names = {"run.sh", "resources.yaml", "slurm.sh", "mapping.md", "plan.json", "README.md"}
    assert found == {"plain.yaml", "deep/nothing.txt", *names}
    mapping = (tmp_path / "out" / "mapping.md").read_text()
    assert "| `stage.learning_rate` | 2e-05 | `plain.yaml: stage.learning_rate` |" in mapping
    assert "| `stage.timeout` |  | done by Charter | the supervisor ends the stage |" in mapping
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["count"] == 16
    assert plan["peak_bytes"] < plan["capacity_bytes"]
    assert plan["target_steps"] == 50
    readme = (tmp_path / "out" / "README.md").read_text()
    for text in (
        "Plain 1.2.3",
        "same data order: it counts rows (plain/loop.py)",
        "bring water",
        "charter artifacts import",
    ):
        assert text in readme


def test_an_existing_directory_is_never_written_into(root, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        write_export(made_of(root), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_the_script_runs_the_command_of_the_engine_as_it_is(root, tmp_path):
    made = made_of(root)
    write_export(made, tmp_path / "out")
    (tmp_path / "fake").write_text('#!/bin/bash\nprintf "%s\\n" "$PWD" "$PLAIN_MODE" "$@"\n')
    (tmp_path / "fake").chmod(0o755)
    around = {"PYTHON": str(tmp_path / "fake"), "NODE_RANK": "1", "MASTER_ADDR": "here", "PATH": "/usr/bin:/bin"}
    script = tmp_path / "out" / "run.sh"
    done = subprocess.run(["bash", script], env=around, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines() == [str(tmp_path / "out"), "on", "-m", "plain", "--rank=1", "it's $HOME"]
    alone = {name: value for name, value in around.items() if name != "MASTER_ADDR"}
    failed = subprocess.run(["bash", script], env=alone, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "MASTER_ADDR" in failed.stderr


def test_a_node_alone_needs_no_address(root, tmp_path):
    (root / "charter.yaml").write_text(PROJECT.replace("num_nodes: 2", "num_nodes: 1"))
    made = made_of(root)
    assert 'NODE_RANK="${NODE_RANK:-0}"' in made.files["run.sh"]
    assert "on each of" not in made.files["README.md"]
    assert yaml.safe_load(made.files["resources.yaml"])["num_nodes"] == 1


@pytest.mark.parametrize("word", ["a b", "$HOME", "`x`", 'say "hi"', "back\\slash", "new\nline", "it's", "", "${NO"])
def test_a_word_reaches_the_command_unchanged(word):
    done = subprocess.run(["bash", "-c", f"printf %s {shell_word(word)}"], capture_output=True, text=True, check=True)
    assert done.stdout == word


def test_variables_of_a_word_are_filled_in_on_the_node():
    script = f"export RANK=3; printf %s {shell_word('--r=${RANK} $(no) ${OTHER:-x y}')}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "--r=3 $(no) x y"


def test_the_jobs_ask_for_what_was_planned(root):
    made = made_of(root)
    sky = yaml.safe_load(made.files["resources.yaml"])
    assert sky["num_nodes"] == 2
    assert sky["resources"]["accelerators"] == "H100:8"
    assert sky["resources"]["infra"].startswith("aws/")
    assert sky["resources"]["use_spot"] is False
    slurm = made.files["slurm.sh"]
    assert "#SBATCH --nodes=2" in slurm
    assert "#SBATCH --gres=gpu:h100:8" in slurm
    assert "--ntasks 2 --ntasks-per-node 1" in slurm
    for name in ("run.sh", "slurm.sh"):
        subprocess.run(["bash", "-n", "/dev/stdin"], input=made.files[name], text=True, check=True)


def test_everything_refused_is_told_at_once_and_nothing_is_written(root):
    (root / "charter.yaml").write_text(PROJECT.replace("2e-5", str(REFUSED_RATE)))
    with pytest.raises(SpecError) as caught:
        made_of(root)
    (problem,) = caught.value.problems
    assert problem.path == "pipeline.sft.learning_rate"
    assert "an eighth is too fast" in problem.message
    told = run("artifacts", "export", "sft", "--engine", "trl", "-C", root)
    assert isinstance(told.exception, SpecError)
    assert caught.value.exit_code == 2
    assert not (root / "exports").exists()


def test_what_cannot_be_handed_over_is_refused_before_anything_is_planned(root, monkeypatch):
    monkeypatch.setattr("charter.report.handover.plan_project", lambda *_, **__: pytest.fail("planned"))
    project = load_project(root)
    with pytest.raises(SpecError, match="does not train stages of kind eval"):
        export_handover(project, root, "eval", "trl")
    with pytest.raises(UsageError, match="the engines are trl"):
        export_handover(project, root, "sft", "fsdp")
    with pytest.raises(UsageError, match="the stages are sft, pm, eval"):
        export_handover(project, root, "nobody", "trl")


def test_the_command_writes_prints_and_speaks_json(root):
    done = run("artifacts", "export", "sft", "--engine", "trl", "-C", root)
    assert done.exit_code == 0, done.output
    assert f"Wrote sft for Plain 1.2.3 to {root}/exports/sft-trl\n" in done.output, "a path that opens from anywhere"
    assert "0 fields  dropped" in done.output
    assert "done by Charter" in done.output
    assert (root / "exports" / "sft-trl" / "plain.yaml").is_file()
    printed = run("artifacts", "export", "pm", "--engine", "trl", "-C", root, "--print")
    assert printed.output.startswith("# plain.yaml\n")
    assert not (root / "exports" / "pm-trl").exists()
    spoken = json.loads(run("artifacts", "export", "pm", root / "here", "--engine", "trl", "-C", root, "--json").stdout)
    assert (root / "here" / "run.sh").is_file()
    assert spoken["target"] == str(root / "here")
    assert spoken["resume"]["guarantee"] == "same_data_order"
    assert sum(spoken["counts"].values()) == len(spoken["mapping"])
    assert {"field": "seed", "how": "as_is", "to": ["plain.yaml: seed"], "note": ""} in spoken["mapping"]


def test_the_command_without_an_engine_needs_a_directory(root):
    assert "did you mean 'sft'?" in str(run("artifacts", "export", "sftt", "-C", root).exception)
    assert "give the directory" in str(run("artifacts", "export", "sft", "-C", root).exception)
    assert "go with --engine" in str(run("artifacts", "export", "sft", "x", "--print", "-C", root).exception)


def test_the_roles_of_ppo_are_placed_as_planned(monkeypatch):
    project = with_engine(planner_case.project(), "ppo", "openrlhf")
    monkeypatch.setattr(engines, "ENGINES", alone(PLAIN_PPO))
    plan = planner_case.planned(project)
    option = plan.stage("ppo").option
    made = exported(project, plan, Path(), "ppo", rows={})
    placed = made.handover.placement
    assert placed.arrangement == option.placement
    assert placed.generator_tensor == option.generator_tensor
    assert f"generate tp{placed.generator_tensor}" in option.layout_label
    if len(option.groups) > 1:
        assert sum(group.num_accelerators for group in placed.groups) == option.num_accelerators
    assert set(made.handover.architectures) == {"policy", "reward"}
    assert set(made.handover.paths.models) == {"policy", "reward"}
    assert made.handover.target_steps == 65_536 // 512
    assert resume_words(made.rendered.resume).startswith("same data order")


OPENRLHF = next(engine for engine in engines.ENGINES if engine.name == "openrlhf")
PLAIN_PPO = replace(
    PLAIN, capabilities=replace(OPENRLHF.capabilities, kinds=EVERY_KIND), placements=OPENRLHF.placements
)


def test_exported_jobs_on_one_node_meet_at_ports_of_their_own(root):
    """Two jobs of Slurm that share a node, by the lines that their scripts run before anything else."""
    made = made_of(root)
    script = made.files["slurm.sh"]
    assert f"#SBATCH --mem={ceil(made.planned.node.memory.total / 2**20)}M" in script.splitlines()
    (line,) = [line for line in script.splitlines() if line.startswith("export MASTER_PORT=")]
    ports = [
        subprocess.check_output(["bash", "-c", f'{line}; echo "$MASTER_PORT $RAY_PORT"'], env={"SLURM_JOB_ID": number})
        for number in ("4711", "4712")
    ]
    assert [list(map(int, item.split())) for item in ports] == [[24711, 29711], [24712, 29712]]


def test_two_kinds_of_accelerators_at_once_are_refused(monkeypatch):
    monkeypatch.setattr(engines, "ENGINES", alone(PLAIN_PPO))
    places = Resources(infra="aws", accelerators=("H100:8", "A100-80GB:8"), max_nodes=4)
    project = with_engine(planner_case.project(places), "ppo", "openrlhf")
    plan = planner_case.planned(project)
    stage = plan.stage("ppo")
    beside = replace(stage.option, beside=(SimpleNamespace(place=places_of(plan)),))
    mixed = replace(
        plan, stages=tuple(replace(item, option=beside) if item.name == "ppo" else item for item in plan.stages)
    )
    with pytest.raises(SpecError, match="two kinds of accelerators at once") as caught:
        exported(project, mixed, Path(), "ppo", rows={})
    assert caught.value.problems[0].path == "pipeline.ppo.resources"


def places_of(plan):
    return SimpleNamespace(accelerator=SimpleNamespace(name="A100-SXM-80GB"))


def test_a_stage_on_processors_asks_for_processes_and_no_accelerators(root):
    (root / "charter.yaml").write_text(
        PROJECT.replace(
            "resources: {infra: aws, accelerators: [H100:8], num_nodes: 2}",
            "resources: {infra: local, accelerators: [cpu:4]}",
        ).replace("models: {base: meta-llama/Llama-3.1-8B}", TINY)
    )
    project = with_engine(load_project(root), "sft", "trl")
    plan = plan_project(project, root, machine=planner_case.MACHINE)
    made = exported(project, plan, Path(), "sft", rows={})
    assert (made.handover.accelerator, made.handover.is_cpu) == ("cpu", True)
    assert made.handover.per_node == made.handover.layout.num_accelerators
    assert made.handover.paths.models == {"init": "inputs/init"}
    assert "gres" not in made.files["slurm.sh"]
    assert "accelerators" not in yaml.safe_load(made.files["resources.yaml"])["resources"]


TINY = """models:
  base: {architecture: {hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128, vocab_size: 512}}"""


def test_cores_and_spot_reach_the_jobs(root):
    (root / "charter.yaml").write_text(PROJECT.replace("num_nodes: 2}", "num_nodes: 2, use_spot: true}"))
    made = made_of(root)
    assert yaml.safe_load(made.files["resources.yaml"])["resources"]["use_spot"] is True
    assert f"#SBATCH --cpus-per-task={8 * handover_pages.CORES_PER_ACCELERATOR}" in made.files["slurm.sh"]


def test_seed_and_kept_checkpoints_are_those_of_the_project(root):
    (root / "charter.yaml").write_text(PROJECT + "seed: 11\nstorage: {keep_last: 5}\n")
    asked = made_of(root).handover
    assert (asked.seed, asked.keep_last) == (11, 5)


def test_only_what_became_of_a_field_is_counted(root):
    assert set(made_of(root).counts) == {"as_is", "charter", "same"}


def test_groups_and_waiting_roles_are_placed_as_planned():
    place = ppo_case.place("H100", 8, nodes=(4,))
    found = rl_options(ppo_case.question(ppo_case.workload(), "openrlhf"), place, 4)[0]
    split = placement_of(next(option for option in found if option.placement == "split"))
    assert [group.roles for group in split.groups] == [("policy", "reference"), ("value", "reward"), ("generate",)]
    assert split.arrangement == "split"
    together = rl_options(ppo_case.question(ppo_case.workload(), "verl"), place, 4)[0]
    assert {placement_of(option).arrangement for option in together} == {"colocated", "offloaded"}
    assert {placement_of(option).groups for option in together} == {()}
