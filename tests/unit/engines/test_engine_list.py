"""An engine is a folder and an entry of the list: everything else reads them."""

import sys
from pathlib import Path

import planner_case
import pytest

import charter.engines
from charter.engines import ENGINES, capabilities, engine_names
from charter.engines.project import load_project, project_json_schema
from charter.errors import SpecError
from charter.launch.job import HOSTED_MODULE, module_of
from charter.plan.what_if import with_other_engines
from charter.report.handover import exported, with_engine
from charter.run.imports.logs import formats, read_engine_log

FOLDER = {
    "__init__.py": """
from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.loom.capabilities import CAPABILITIES


def _code():
    from charter.engines.loom.adapter import LoomAdapter
    from charter.engines.loom.log import LOG
    from charter.engines.loom.mapping import render

    return EngineCode(render=render, adapter=lambda job, python: LoomAdapter(), log=LOG)


LOOM = TrainingEngine(
    capabilities=CAPABILITIES,
    title="Loom",
    package="loom",
    version="3.1",
    checked_by="nobody",
    code=_code,
)
""",
    "capabilities.py": """
from charter.engines.common.capabilities import PARAMETERS, Capabilities
from charter.physics.precision import FSDP_MIXED

CAPABILITIES = Capabilities(
    name="loom",
    does="ZeRO-3",
    stack="fsdp",
    memory="fsdp",
    precision=FSDP_MIXED,
    zero=(PARAMETERS,),
    packs=True,
    kinds=("sft",),
    without_fp8="its threads are of 16 bits",
)
""",
    "mapping.py": """
from charter.engines.common.mapping import FieldMapper, fields_of
from charter.engines.common.rendered import RenderedRun, Resume


def render(handover):
    mapper = FieldMapper(handover)
    done = {row.field for row in mapper.rows}
    for field in fields_of(handover.stage):
        if field not in done:
            mapper.to(field, f"loom.yaml: {field}")
    mapper_rows = mapper.finish()
    return RenderedRun(
        files={"loom.yaml": f"rate: {handover.stage.learning_rate}\\n"},
        command=("python", "-m", "loom"),
        mapping=mapper_rows,
        resume=Resume(guarantee="same_data_order", reason="it counts rows", source="loom/warp.py"),
    )
""",
    "adapter.py": """
from charter.engines.common.adapter import EngineAdapter


class LoomAdapter(EngineAdapter):
    saves_on_sigterm = True
    adapter_output = None
""",
    "log.py": """
from charter.engines.common.adapter import LoggedStep, LogReader


def console_steps(lines):
    for line in lines:
        if line.startswith("pick "):
            yield LoggedStep(step=int(line.split()[1]), metrics={"loss": float(line.split()[2])})


LOG = LogReader(console=console_steps)
""",
}


@pytest.fixture
def loom(tmp_path, monkeypatch):
    """A made-up engine: one folder, one entry."""
    folder = tmp_path / "engines" / "loom"
    folder.mkdir(parents=True)
    for name, text in FOLDER.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(charter.engines, "__path__", [*charter.engines.__path__, str(folder.parent)])
    before = set(sys.modules)
    from charter.engines.loom import LOOM

    monkeypatch.setattr(charter.engines, "ENGINES", (*ENGINES, LOOM))
    yield LOOM
    for name in set(sys.modules) - before:
        if name.startswith("charter.engines.loom"):
            del sys.modules[name]
    delattr(charter.engines, "loom")


def written(tmp_path: Path, engine: str) -> Path:
    path = tmp_path / "charter.yaml"
    path.write_text(
        "name: cloth\nmodels: {base: Llama-3.1-8B}\ndata: {chats: chats.jsonl}\n"
        f"pipeline:\n  sft: {{kind: sft, init: base, data: chats, engine: {engine}}}\n"
    )
    return path


def test_a_new_engine_is_read_planned_and_exported(loom, tmp_path):
    project = load_project(written(tmp_path, "loom"))
    assert module_of(project.pipeline["sft"]) == HOSTED_MODULE
    case = with_engine(planner_case.project(), "sft", "loom")
    plan = planner_case.planned(case)
    assert plan.stage("sft").option.layout.zero == 3
    files = exported(case, plan, tmp_path, "sft", rows={}).rendered
    assert files.command == ("python", "-m", "loom")
    assert files.files["loom.yaml"].startswith("rate: ")


def test_a_new_engine_is_compared_with_the_others(loom):
    plan = with_other_engines(planner_case.planned(planner_case.project()))
    assert "loom" in {other.engine for other in plan.stage("sft").other_engines}


def test_a_new_engine_is_in_the_schema_and_in_messages(loom, tmp_path):
    stage = project_json_schema()["$defs"]["SftStage"]["properties"]["engine"]
    assert stage["enum"] == ["auto", *engine_names()]
    assert "loom" in stage["enum"]
    with pytest.raises(SpecError, match=r"expected 'native', .* or 'loom', found 'lom'") as error:
        load_project(written(tmp_path, "lom"))
    assert error.value.problems[0].hint == "did you mean 'loom'?"
    assert error.value.problems[0].line == 5


def test_logs_of_a_new_engine_are_read(loom, tmp_path):
    log = tmp_path / "out.log"
    log.write_text("pick 1 2.5\npick 2 2.25\n")
    assert "loom" in formats()
    run = read_engine_log(log)
    assert run.format == "loom"
    assert [step.metrics["loss"] for step in run.attempts[0].steps] == [2.5, 2.25]


def test_an_unknown_engine_is_refused_where_none_is_made_up(tmp_path):
    with pytest.raises(SpecError, match="found 'loom'"):
        load_project(written(tmp_path, "loom"))


def test_engines_have_names_of_their_own():
    assert len(set(engine_names())) == len(ENGINES)
    assert all(capabilities(engine.name) is engine.capabilities for engine in ENGINES)
