"""Lineage of a run: which file came from which stage, what that read, and where it all began. Pure but for sizes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.job import JOB_FILE
from charter.artifacts.record import OUTPUTS, RECORD_FILE
from charter.dashboard.snapshot import Snapshot, StageNow


@dataclass(frozen=True, kw_only=True)
class ReadThing:
    """A stage, model or data set that a stage reads."""

    name: str
    role: str
    source: str
    """`stage`, `model` or `data`."""
    fingerprint: str
    """As it was when the stage started; empty before that."""
    is_now: bool = True
    """False where the stage of that name has another fingerprint by now."""


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """One file that a stage has published."""

    stage: str
    path: str
    size_bytes: int | None
    """None where the file is not here any more."""
    sha256: str

    def matches(self, text: str) -> bool:
        """Return True if a name holds a text, or its hash begins with it."""
        return text.casefold() in self.path.casefold() or self.sha256.startswith(text.casefold())


@dataclass(frozen=True, kw_only=True)
class StageOutputs:
    """Inputs and outputs of one stage."""

    name: str
    kind: str
    colour: int
    reads: tuple[ReadThing, ...]
    origins: tuple[ReadThing, ...]
    """Models and data sets from outside from which it descends, through all stages before it."""
    through: tuple[str, ...]
    """Those stages."""
    readers: tuple[str, ...]
    files: tuple[OutputFile, ...]


def stage_files(snapshot: Snapshot, read: Callable[[Path], Mapping[str, Any]]) -> tuple[StageOutputs, ...]:
    """Return the files of every stage, in the order of the pipeline; `read` gives the object in a JSON file."""
    fingerprints = {stage.name: stage.fingerprint for stage in snapshot.stages}
    origins: dict[str, tuple[ReadThing, ...]] = {}
    through: dict[str, tuple[str, ...]] = {}
    rows = []
    for number, stage in enumerate(snapshot.stages):
        reads = _reads(stage, read, fingerprints)
        before = [item.name for item in reads if item.source == "stage" and item.name in origins]
        own = [item for item in reads if item.source != "stage"]
        origins[stage.name] = _once(own + [item for name in before for item in origins[name]])
        through[stage.name] = tuple(dict.fromkeys(each for name in before for each in (*through[name], name)))
        rows.append(
            StageOutputs(
                name=stage.name,
                kind=stage.kind,
                colour=number % 12,
                reads=reads,
                origins=origins[stage.name],
                through=through[stage.name],
                readers=tuple(other.name for other in snapshot.stages if stage.name in other.inputs),
                files=_files(stage, read),
            )
        )
    return tuple(rows)


def _reads(
    stage: StageNow, read: Callable[[Path], Mapping[str, Any]], fingerprints: Mapping[str, str]
) -> tuple[ReadThing, ...]:
    inputs = read(stage.directory / JOB_FILE).get("inputs") if stage.directory is not None else None
    things = []
    for role, items in inputs.items() if isinstance(inputs, Mapping) else ():
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, Mapping):
                continue
            name, source = str(item.get("name", "")), str(item.get("source", ""))
            fingerprint = str(item.get("fingerprint") or "")
            is_now = source != "stage" or fingerprints.get(name, fingerprint) == fingerprint
            things.append(ReadThing(name=name, role=str(role), source=source, fingerprint=fingerprint, is_now=is_now))
    if things:
        return tuple(things)
    planned = [(name, "stage") for name in stage.inputs] + [(name, "outside") for name in stage.outside_inputs]
    return tuple(ReadThing(name=name, role="", source=source, fingerprint="") for name, source in planned)


def _once(items: Iterable[ReadThing]) -> tuple[ReadThing, ...]:
    by_key = {(item.source, item.name, item.fingerprint): item for item in items}
    return tuple(by_key.values())


def _files(stage: StageNow, read: Callable[[Path], Mapping[str, Any]]) -> tuple[OutputFile, ...]:
    outputs = read(stage.directory / RECORD_FILE).get("outputs") if stage.directory is not None else None
    if stage.directory is None or not isinstance(outputs, Mapping):
        return ()
    place = stage.directory / OUTPUTS
    return tuple(
        OutputFile(stage=stage.name, path=str(path), size_bytes=_size(place / str(path)), sha256=str(digest))
        for path, digest in sorted(outputs.items())
    )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
