"""The protocols of tracking: what a stage says while it runs, and where a run is told of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from charter.artifacts.stage_state import TrackerState


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
