"""Trackers: what all of them have in common, the file of lines that needs none, secrets kept out of their texts."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from charter.artifacts.durable import object_in
from charter.artifacts.stage_state import TrackerState
from charter.errors import DataError, UsageError
from charter.redaction import without_values


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing that a stage read."""

    name: str
    role: str
    source: str
    """`data`, `model` or `stage`."""
    fingerprint: str
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a run, or of a stage in it, beside its metrics."""

    key: str
    """Ours, and never another one's: under it a run is found again whose own number was lost."""
    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What it computes: never changes under one key."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """May change."""
    inputs: tuple[Input, ...] = ()
    note: str = ""
    started_at: float | None = None
    group: str = ""
    """Runs that are compared with each other: those of a sweep."""


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """Values of one step, at one place of the journal of a stage."""

    number: int
    """From 0; the same for ever, whoever reads it and however often."""
    step: int
    time: float
    """Unix time."""
    values: Mapping[str, float]
    machine: bool = False
    """Of the machines rather than of the training; its step is the number of the sample."""
    again: bool = False
    """The step was there before with another result: training went back and on again from an earlier one."""


class Destination(Protocol):
    """An experiment tracker: a pipeline is one parent run, its stages are nested runs.

    Of a sweep, stages are nested in the point that ran them first, points in the sweep, and the sweep in the pipeline.

    Every call may be made again with the same values after it failed or nobody knows whether it did; it then changes
    nothing. What goes wrong is raised, and tried again later.
    """

    def open_run(self, facts: RunFacts, *, parent: str | None, known: str | None) -> str:
        """The number of a run, which is made unless it is there; `known` is what this said before.

        `parent` is the number of the run that it is nested in.
        """
        ...

    def describe(self, run: str, facts: RunFacts) -> None:
        """Tell parameters, tags, inputs and note."""
        ...

    def log(self, run: str, rows: Sequence[MetricRow]) -> None:
        """Tell rows, in the order of their numbers."""
        ...

    def rows_lost_from(self, run: str, *, told: int, sure: int) -> int | None:
        """Asked when a run is taken up again: from which row on the tracker may lack what it was told; None: nothing.

        It was told `told` rows, and had `sure` of them when the run was last ended in good order.
        """
        ...

    def attach(self, run: str, name: str, path: Path) -> None:
        """Keep a file, or a directory, under a name."""
        ...

    def set_state(self, run: str, state: TrackerState, *, ended_at: float | None) -> None:
        """Say how the run is."""
        ...

    def close(self) -> None:
        """Deliver what is under way and let go."""
        ...


SHORTEST = 4
"""Characters; blotting out shorter ones would blot out words."""


def is_reference(text: str) -> bool:
    """Return True if a text is a reference: `env:NAME` or `file:PATH`."""
    return text.startswith(("env:", "file:")) and "://" not in text


def read_secret(reference: str, *, of: str) -> str:
    """Read the secret that a reference names; `of` says in messages what it is for."""
    kind, _, where = reference.partition(":")
    if kind == "env":
        value, missing = os.environ.get(where, ""), f"the environment variable {where} is not set"
    elif kind == "file":
        path = Path(where).expanduser()
        value = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        missing = f"the file {where} is not there, or empty"
    else:
        raise UsageError(f"{of} is not given as env:NAME or file:PATH")
    if not value.strip():
        raise UsageError(f"{of} is to be found at {reference}, but {missing}")
    return value.strip()


class Secrets:
    """The secrets that one process holds; none of them appears in a text that went through `blotted`."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def read(self, reference: str, *, of: str) -> str:
        """Look one up, and remember to blot it out."""
        value = read_secret(reference, of=of)
        self.hide((value, *_password_in(value)))
        return value

    def hide(self, values: Iterable[str]) -> None:
        """Blot these out from now on."""
        self._values |= {value for value in values if len(value) >= SHORTEST}

    def blotted(self, text: str) -> str:
        """A text without any of them."""
        return without_values(text, self._values)


def _password_in(address: str) -> tuple[str, ...]:
    """The password of an address, should that be the secret."""
    user = address.partition("://")[2].partition("/")[0].rpartition("@")[0]
    return (user.partition(":")[2],) if ":" in user else ()


STEP, TIME = "step", "time"
METRICS, IMPORTED_METRICS = "metrics.jsonl", "imported.jsonl"
"""What a stage itself has logged; what `charter artifacts import` has read from somebody else's log."""


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """The metrics of one step."""

    step: int
    time: float | None
    values: Mapping[str, float]
    """Finite values only: a loss that was not a number is left out."""


def metrics_file(stage_dir: Path) -> Path:
    """Return the path of a stage's curves: its own, or those of an imported run where it has none."""
    own, imported = stage_dir / METRICS, stage_dir / IMPORTED_METRICS
    return imported if imported.exists() and not own.exists() else own


def read_metrics(path: Path) -> tuple[MetricPoint, ...]:
    """The metrics of one stage in the order of steps; empty when there is no file.

    Steps that were done again after a kill count once, as they were done last. A torn last line (a kill while
    writing) is left out; any other broken line is a DataError.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    points: dict[int, MetricPoint] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        point = metric_point(line)
        if point is None and number == len(lines):
            break
        if point is None:
            raise DataError(f"{path}:{number}: not a line of metrics; remove the line to read the others")
        points[point.step] = point
    return tuple(points[step] for step in sorted(points))


def series(points: tuple[MetricPoint, ...], name: str) -> Iterator[tuple[int, float]]:
    """Step and value of one metric, where it was logged."""
    return ((point.step, point.values[name]) for point in points if name in point.values)


def metric_point(line: bytes) -> MetricPoint | None:
    """The metrics of one line; None where it is torn or something else.

    >>> metric_point(b'{"step": 40, "loss": 2.31}').values
    {'loss': 2.31}
    """
    content = object_in(line)
    if content is None or not isinstance(step := content.pop(STEP, None), int):
        return None
    numbers = {
        name: float(value) for name, value in content.items() if isinstance(value, int | float) and math.isfinite(value)
    }
    return MetricPoint(step=step, time=numbers.pop(TIME, None), values=numbers)
