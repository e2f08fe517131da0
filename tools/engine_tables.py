"""Write the generated part of docs/reference/engine-mapping.md: engines, and where each field goes in them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from charter.engines import handover_engines, render
from charter.engines.common.engine import NOTHING as NO_ROWS
from charter.engines.common.engine import TrainingEngine
from charter.engines.common.mapping import CHARTERS_OWN, STAGE, MappedField
from charter.engines.common.rendered import RenderedRun
from charter.errors import SpecError
from charter.report.handover_pages import GUARANTEES
from charter.spec.load import load_project
from charter.spec.stage import AnyStage
from charter.templates.shipped import find_template, write_template
from generated import write_part
from plain_stages import STAGES, accepted_stage, handover

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "engine-mapping.md"
LONGEST_KEY = 2
"""Parts of a dotted key that are shown: the end says most."""
NOTHING = ("decides nothing here", "means nothing here")


@cache
def rendered(engine: str, kind: str) -> RenderedRun:
    """The plain stage of a kind in an engine."""
    return render(handover(accepted_stage(engine, kind)))


def reference() -> str:
    """The support table, and one table per kind."""
    parts = ["", *_support(), ""]
    for kind in STAGES:
        parts += [f"## `kind: {kind}`", "", *_kind(kind), ""]
    parts += ["## The templates of reinforcement learning", "", *_templates(), ""]
    parts += ["## What Charter does itself", "", "Of every stage, whatever its engine:", ""]
    parts += [f"- `{name}`: {why}" for name, why in CHARTERS_OWN.items()]
    return "\n".join([*parts, ""])


def _support() -> Iterator[str]:
    yield "| engine | version | kinds | `charter run` on | the configuration is checked by | a killed run, resumed |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for engine in handover_engines():
        kinds = ", ".join(f"`{kind}`" for kind in engine.kinds)
        nodes = _nodes(engine)
        facts = f"{engine.title} (`{engine.name}`) | {engine.version} | {kinds} | {nodes} | {engine.checked_by}"
        yield f"| {facts} | {_resume(engine)} |"


def _nodes(engine: TrainingEngine) -> str:
    if engine.code is None or engine.reads == NO_ROWS:
        return "none: exported"
    several = [kind for kind in engine.kinds if engine.capabilities.runs_on_nodes(kind)]
    if len(several) == len(engine.kinds):
        return "one node or several"
    return f"one node; several ({', '.join(f'`{kind}`' for kind in several)})" if several else "one node"


def _resume(engine: TrainingEngine) -> str:
    by_guarantee: dict[str, list[str]] = {}
    for kind in engine.kinds:
        by_guarantee.setdefault(rendered(engine.name, kind).resume.guarantee, []).append(kind)
    if len(by_guarantee) == 1:
        return GUARANTEES[next(iter(by_guarantee))]
    return "; ".join(f"{GUARANTEES[name]} ({', '.join(kinds)})" for name, kinds in by_guarantee.items())


RL_TEMPLATES = ("rlvr-tiny", "constitution-rl-8b", "grpo-7b", "tools-tiny")


def _templates() -> Iterator[str]:
    """Answers of each engine to the stage `rl` of each template under `charter run`, on the other tables' machine."""
    engines = [engine for engine in handover_engines() if "ppo" in engine.kinds]
    notes: list[str] = []
    yield (
        "Their stage `rl` under `charter run`, on the same node of 8 accelerators: **yes**, or the fields that are "
        "refused, and why. An export refuses judges and `on_overoptimisation: stop` too: it has no process of "
        "Charter's beside the engine."
    )
    yield ""
    yield "| template | " + " | ".join(engine.title for engine in engines) + " |"
    yield "| --- " * (len(engines) + 1) + "|"
    for name in RL_TEMPLATES:
        with TemporaryDirectory() as directory:
            write_template(find_template(name), Path(directory), force=True)
            stage = load_project(Path(directory)).pipeline["rl"]
        cells = [_answer(replace(stage, engine=engine.name), notes) for engine in engines]
        yield f"| `{name}` | " + " | ".join(cells) + " |"
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, start=1))


def _answer(stage: AnyStage, notes: list[str]) -> str:
    try:
        render(replace(handover(stage), is_run=True))
    except SpecError as refusal:
        refused = [(item.path.rpartition(".")[2], item.message.partition(": ")[2]) for item in refusal.problems]
        return ", ".join(f"`{field}`{_mark(reason, notes)}" for field, reason in refused)
    return "**yes**"


def _kind(kind: str) -> Iterator[str]:
    engines = [engine for engine in handover_engines() if kind in engine.kinds]
    rows = {engine.name: {row.field: row for row in rendered(engine.name, kind).mapping} for engine in engines}
    notes: list[str] = []
    yield "| field | " + " | ".join(engine.title for engine in engines) + " |"
    yield "| --- " * (len(engines) + 1) + "|"
    for field in rows[engines[0].name]:
        if field not in {f"{STAGE}.{name}" for name in CHARTERS_OWN}:
            cells = [_cell(rows[engine.name][field], notes) for engine in engines]
            yield f"| `{field.removeprefix(f'{STAGE}.')}` | " + " | ".join(cells) + " |"
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, start=1))
    yield ""
    yield "When it is resumed:"
    yield ""
    for engine in engines:
        resume = rendered(engine.name, kind).resume
        yield f"- {engine.title}: {GUARANTEES[resume.guarantee]}; {resume.reason} ({resume.source})."


def _cell(row: MappedField, notes: list[str]) -> str:
    mark = _mark(row.note, notes)
    if row.note.startswith(NOTHING):
        return f"nothing{mark}"
    if row.how == "same":
        return f"= `{_shown(row.value)}`{mark}"
    if row.how == "charter":
        return f"Charter{mark}"
    return _keys(row.to) + mark


def _keys(places: Sequence[str]) -> str:
    """The last parts of the first key, and how many more there are."""
    first = places[0].rpartition(": ")[2]
    parts = first.split(".")
    short = first if first.startswith("--") or len(parts) <= LONGEST_KEY else "..." + ".".join(parts[-LONGEST_KEY:])
    more = f" +{len(places) - 1}" if len(places) > 1 else ""
    return f"`{short}`{more}"


def _mark(note: str, notes: list[str]) -> str:
    if not note:
        return ""
    text = note.replace("|", "\\|")
    if text not in notes:
        notes.append(text)
    return f" ({notes.index(text) + 1})"


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    return str(getattr(value, "value", value))


if __name__ == "__main__":
    write_part(PAGE, reference())
