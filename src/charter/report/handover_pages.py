"""Pages of an export: the mapping line by line, the plan of the stage, and how to go on. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from charter.artifacts.durable import json_text
from charter.engines.common.engine import TrainingEngine
from charter.engines.common.mapping import MappedField, shown
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.plan.stage_plan import StagePlan
from charter.report.handover_jobs import SCRIPT, SKYPILOT, SLURM
from charter.report.handover_request import ModelInput

MAPPING, README, PLAN = "mapping.md", "README.md", "plan.json"
PROJECT = "PROJECT"
"""How a page names the directory of the project, which it cannot know: an export is copied elsewhere."""
PLAN_SCHEMA = "charter.handover_plan/1"
GUARANTEES: Mapping[str, str] = {
    "bit_exact": "bit-exact",
    "same_data_order": "same data order",
    "best_effort": "best effort",
}
HOW_WORDS: Mapping[str, str] = {
    "as_is": "written as it is",
    "computed": "computed",
    "same": "what the engine does anyway",
    "charter": "done by Charter",
}
_PLAN_KEYS = (
    "accelerator", "count", "num_nodes", "infra", "region", "market", "price", "layout", "placement", "groups",
    "peak_bytes", "peak_bytes_range", "capacity_bytes", "seconds", "gpu_hours", "usd", "node", "engine",
)  # fmt: skip


def mapping_page(handover: Handover, rendered: RenderedRun) -> str:
    """Our field, its value, and where it went."""
    lines = [
        f"# {handover.name}: from charter.yaml to {handover.engine}",
        "",
        "| field | value | where it is | note |",
        "| --- | --- | --- | --- |",
        *(_row(row) for row in rendered.mapping),
    ]
    if rendered.formulas:
        names = ", ".join(f"`{name}`" for name in rendered.formulas)
        lines += ["", f"Formulas, by the names of the hand-computed values of Charter's tests: {names}."]
    return "\n".join(lines) + "\n"


def counts(mapping: Sequence[MappedField]) -> Mapping[str, int]:
    """Fields by what became of them, in the order of `HOW_WORDS`."""
    by_treatment: Counter[str] = Counter(row.how for row in mapping)
    return {how: by_treatment[how] for how in HOW_WORDS if by_treatment[how]}


def plan_page(handover: Handover, planned: StagePlan) -> str:
    """The part of the plan that the configuration comes from: where, how much memory, how long, how much money."""
    content = planned.to_json()
    selected = {key: content[key] for key in _PLAN_KEYS}
    return json_text({"schema": PLAN_SCHEMA, "stage": handover.name, "target_steps": handover.target_steps, **selected})


def readme(
    handover: Handover,
    rendered: RenderedRun,
    engine: TrainingEngine,
    inputs: Sequence[ModelInput],
    planned: StagePlan,
    *,
    notes: Sequence[str] | None = None,
) -> str:
    """Versions, what has to be there, how it is started, what a resumed run can rely on, how it comes back.

    `notes` are what was said of the inputs when they were written; None where they were not.
    """
    there = _inputs_there(handover, notes) if notes is not None else _inputs_wanted(handover, inputs)
    return "\n".join(_readme(handover, rendered, engine, there, planned)) + "\n"


def resume_words(resume: Resume) -> str:
    """`same data order: ... (source)`."""
    return f"{GUARANTEES[resume.guarantee]}: {resume.reason} ({resume.source})"


def _inputs_wanted(handover: Handover, inputs: Sequence[ModelInput]) -> Iterator[str]:
    yield "## What has to be there"
    yield ""
    for item in inputs:
        yield f"- `{item.path}`: the model of the role {item.role}, {_origin(item)}."
    for role, path in handover.paths.data.items():
        yield f"- `{path}`: the rows of the role {role}, in the order in which they are read."
        again = f"charter artifacts export {handover.name} --engine {handover.engine} --data DIR -C {PROJECT}"
        yield f"  `{again}` writes them to DIR when what the stage reads is there; so does a run."


def _inputs_there(handover: Handover, notes: Sequence[str]) -> Iterator[str]:
    yield "## What it reads"
    yield ""
    for role, path in handover.paths.models.items():
        yield f"- `{path}`: the model of the role {role}."
    for role, path in handover.paths.data.items():
        rows = f", {handover.rows[role]:,} of them" if role in handover.rows else ""
        yield f"- `{path}`: the rows of the role {role}, in the order in which they are read{rows}."
    for note in notes:
        yield f"- {note}"


def _readme(
    handover: Handover,
    rendered: RenderedRun,
    engine: TrainingEngine,
    inputs: Iterator[str],
    planned: StagePlan,
) -> Iterator[str]:
    option, unit = planned.option, "rollouts" if handover.placement else "optimizer steps"
    yield f"# {handover.run}: stage {handover.name} in {engine.title}"
    yield ""
    yield f"A stage of kind {handover.stage.kind} for {engine.title} {engine.version} (`{engine.package}`)."
    yield f"`{MAPPING}` says where every field of the stage went. Checked by: {engine.checked_by}."
    yield ""
    yield f"Commands are for this directory; `{PROJECT}` is the one with charter.yaml."
    yield ""
    yield f"- planned on {option.label}: {option.layout_label}"
    yield f"- {handover.target_steps:,} {unit}; memory, time and cost are in `{PLAN}`"
    yield ""
    yield from inputs
    yield ""
    yield "## Start"
    yield ""
    address = "" if rendered.slices else ", with NODE_RANK and MASTER_ADDR set"
    yield f"- by hand: `PYTHON=/path/to/python bash {SCRIPT}`" + (
        f" on each of {handover.num_nodes} nodes{address}" if handover.num_nodes > 1 else ""
    )
    yield f"- SkyPilot: `sky launch {SKYPILOT}`"
    if not rendered.slices:
        yield f"- Slurm: `sbatch {SLURM}`, in this directory"
    for note in rendered.notes:
        yield f"- {note}"
    yield ""
    yield "## When it is interrupted"
    yield ""
    yield f"{resume_words(rendered.resume)}."
    yield ""
    yield "## Bring it back"
    yield ""
    if handover.num_nodes == 1:
        run = f"charter run -C {PROJECT}"
        yield f"With `engine: {engine.name}` in the stage `{run}` starts it, with its record and resume."
    else:
        yield f"`charter run -C {PROJECT}` starts engines on one node; on several they are started as above."
    yield f"What was started by hand is read with `charter artifacts import DIR --as {handover.name} -C {PROJECT}`."


def _origin(item: ModelInput) -> str:
    if item.made_by is not None:
        return f"made by stage {item.made_by}: `charter artifacts export {item.made_by} {item.path} -C {PROJECT}`"
    return "to be put there" if item.path.startswith("inputs/") else "from the hub, or a directory of that name"


def _row(row: MappedField) -> str:
    where = ", ".join(f"`{_cell(place)}`" for place in row.to) or HOW_WORDS[row.how]
    return f"| `{row.field}` | {_cell(_shown(row.value))} | {where} | {_cell(row.note)} |"


def _shown(value: Any) -> str:
    return "" if value is None else str(getattr(value, "value", shown(value)))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
