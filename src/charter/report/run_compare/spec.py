"""Settings of two runs, and where they differ: one row per value. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.report.read import StageFiles
from charter.report.run_compare.read import Side

COMPUTED = ("models", "data", "constitution", "pipeline", "seed")
"""Sections that say what is computed; the others say where and how."""
LEFT_OUT = ("name",)
Values = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SpecRow:
    """One value that is not the same in all runs; None where a run does not have it."""

    path: str
    values: tuple[str | None, ...]

    @property
    def is_computed(self) -> bool:
        """Return True if it is about what is computed, and not about where and how."""
        return self.path.partition(".")[0] in COMPUTED


def spec_rows(sides: Sequence[Side]) -> tuple[SpecRow, ...]:
    """Differences of the files, and of stages as they were run where every run that has the stage has started it.

    What is computed comes first. A stage that not all runs have is one row.
    """
    tables = [dict(flat({key: value for key, value in side.file.items() if key != "pipeline"})) for side in sides]
    for name in _stage_names(sides):
        for table, values in zip(tables, _stage_values(name, sides), strict=True):
            table.update(values)
    paths = dict.fromkeys(path for table in tables for path in table)
    rows = [SpecRow(path=path, values=tuple(table.get(path) for table in tables)) for path in paths]
    differing = [row for row in rows if len(set(row.values)) > 1 and row.path not in LEFT_OUT]
    return tuple(sorted(differing, key=lambda row: not row.is_computed))


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested values by dotted paths, as text; a list of plain values is one value.

    >>> flat({"budget": {"limit": 20.0}, "clouds": ["aws", "gcp"]})
    [('budget.limit', '20'), ('clouds', 'aws, gcp')]
    """
    if isinstance(value, Mapping):
        return [pair for name, item in value.items() for pair in flat(item, f"{path}.{name}" if path else str(name))]
    if isinstance(value, list | tuple):
        if all(not isinstance(item, Mapping | list | tuple) for item in value):
            return [(path, ", ".join(map(_text, value)))]
        return [pair for index, item in enumerate(value) for pair in flat(item, f"{path}.{index}")]
    return [(path, _text(value))]


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case float():
            return f"{value:g}"
    return str(value)


def _stage_names(sides: Sequence[Side]) -> list[str]:
    """Every stage once: of the files, and of the runs."""
    return list(dict.fromkeys(name for side in sides for name in (*_pipeline(side), *side.run.stages)))


def _pipeline(side: Side) -> Mapping[str, Any]:
    stages = side.file.get("pipeline")
    return stages if isinstance(stages, Mapping) else {}


def _stage_values(name: str, sides: Sequence[Side]) -> list[dict[str, str]]:
    path = f"pipeline.{name}"
    files = [side.run.stages.get(name) for side in sides]
    written = [_pipeline(side).get(name) for side in sides]
    readable = [job is not None or text is not None for job, text in zip(files, written, strict=True)]
    if not all(readable):
        kinds = [_kind(stage, text) for stage, text in zip(files, written, strict=True)]
        return [{path: f"a stage of kind {kind}"} if there else {} for kind, there in zip(kinds, readable, strict=True)]
    if all(stage is not None and stage.job for stage in files):
        return [dict(flat(_as_run(stage), path)) for stage in files if stage is not None]
    return [dict(flat(text or {}, path)) for text in written]


def _kind(stage: StageFiles | None, written: Any) -> str:
    if isinstance(written, Mapping) and "kind" in written:
        return str(written["kind"])
    return str(_identity(stage).get("kind", "")) if stage else ""


def _as_run(stage: StageFiles) -> dict[str, Any]:
    """Return the values with which a stage was started: settings, inputs by name, the constitution and the seed."""
    identity, inputs = _identity(stage), (stage.job or {}).get("inputs") or {}
    names = {
        role: [str(item.get("name")) for item in items if isinstance(item, Mapping)]
        for role, items in inputs.items()
        if isinstance(items, list)
    }
    constitution = {"constitution": str(identity["constitution"])[:12]} if identity.get("constitution") else {}
    return {"kind": identity.get("kind"), **names, **(identity.get("spec") or {}), **constitution}


def _identity(stage: StageFiles) -> Mapping[str, Any]:
    identity = (stage.job or {}).get("identity")
    return identity if isinstance(identity, Mapping) else {}
