"""Data of a project: the data sets of its file, and the records of its stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.data.formats import find_files
from charter.errors import DataError
from charter.spec.project import DataSpec, Project
from charter.spec.stage import references
from charter.spec.stage_base import Stage

RECORDS, SET_ASIDE = "records.jsonl", "set_aside.jsonl"


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One data set, or the records of one stage."""

    key: str
    """Names it in addresses: `data.pairs`, `stage.label`."""
    name: str
    kind: str
    """`data set`, or the kind of the stage."""
    path: Path
    spec: DataSpec | None
    readers: tuple[str, ...]
    """Stages that read it."""
    aside: Path | None = None
    """What the stage has set aside."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """What the stage says of its own work: `summary.json`."""
    problem: str = ""
    """Why it cannot be read."""
    note: str = ""

    @property
    def can_be_browsed(self) -> bool:
        """Return True if its records can be shown a page at a time."""
        return not self.problem and self.path.is_file() and self.path.suffix in (".jsonl", ".ndjson", "")


def data_sources(
    project: Project | None, root: Path, stages: Sequence[tuple[str, str, Path | None]], summaries: Mapping[str, Any]
) -> tuple[DataSource, ...]:
    """Data sets of the file in its order, then records of stages: (name, kind, directory) in the order of the run."""
    sources = [] if project is None else list(_data_sets(project, root))
    sources += [
        source for name, kind, path in stages if path for source in _records(name, kind, path, project, summaries)
    ]
    return tuple(sources)


def _data_sets(project: Project, root: Path) -> Iterator[DataSource]:
    for name, spec in project.data.items():
        path = root / spec.path
        readers = tuple(stage for stage, kind in project.pipeline.items() if name in _references(kind))
        yield DataSource(
            key=f"data.{name}",
            name=name,
            kind="data set",
            path=path,
            spec=spec,
            readers=readers,
            problem=_problem(path, spec),
            note=_note(spec),
        )


def _records(
    name: str, kind: str, directory: Path, project: Project | None, summaries: Mapping[str, Any]
) -> Iterator[DataSource]:
    outputs = directory / "outputs"
    path, aside = outputs / RECORDS, outputs / SET_ASIDE
    if not path.is_file():
        return
    readers = (
        () if project is None else tuple(stage for stage, spec in project.pipeline.items() if name in _references(spec))
    )
    yield DataSource(
        key=f"stage.{name}",
        name=name,
        kind=kind,
        path=path,
        spec=None,
        readers=readers,
        aside=aside if aside.is_file() else None,
        summary=summaries.get(name) or {},
        note="records of a stage",
    )


def _references(stage: Stage) -> set[str]:
    """The names of data sets and stages that a stage reads."""
    return {name for names in references(stage).values() for name in names}


def _problem(path: Path, spec: DataSpec) -> str:
    try:
        find_files(path, spec.format)
    except DataError as error:
        return str(error)
    return ""


def _note(spec: DataSpec) -> str:
    parts = [spec.path]
    if spec.part is not None:
        parts.append(f"part {spec.part}")
    if spec.limit is not None:
        parts.append(f"the first {spec.limit:,} rows")
    if spec.column is not None:
        parts.append(f"column {spec.column}")
    return ", ".join(parts)
