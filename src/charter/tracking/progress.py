"""State of a run and its stages, folded from `events.jsonl`; and their progress, from `progress.json`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts.durable import object_in
from charter.artifacts.lease import LEASE, read_holder
from charter.artifacts.stage_state import TRACKER_STATES, State, TrackerState, read_stage, stage_state
from charter.artifacts.whole_dir import wrong_name
from charter.tracking.run_facts import SweptPoint, point_of, sweep_key

EVENTS_FILE = "events.jsonl"
ENDS: Mapping[str, State] = {
    "stage_done": "done",
    "stage_failed": "failed",
    "stage_interrupted": "interrupted",
    "stage_restart": "interrupted",
    "attempt_abandoned": "interrupted",
}
"""States that events put the stage in that they name."""
WORST_FIRST: tuple[TrackerState, ...] = ("running", "failed", "killed", "finished")
STOPS: Mapping[str, State] = {"interrupted": "interrupted", "budget": "interrupted"}
"""States that a run is in by the label with which it stopped; any other label is a failure."""


@dataclass(kw_only=True)
class Standing:
    """State of a run or a stage."""

    state: TrackerState = "running"
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0
    """Starts; of a run, calls of `charter run`."""
    interruptions: int = 0

    def start(self, at: float) -> None:
        """It began, perhaps again."""
        self.state, self.ended_at = "running", None
        self.started_at = at if self.started_at is None else self.started_at
        self.attempts += 1

    def end(self, state: State, at: float) -> None:
        """End in a state."""
        self.state, self.ended_at = TRACKER_STATES[state] or "running", at
        self.interruptions += state == "interrupted"

    def tags(self) -> dict[str, str]:
        """Return the tags that trackers get of it."""
        return {"charter.attempts": str(self.attempts), "charter.interruptions": str(self.interruptions)}


@dataclass(kw_only=True)
class RunProgress:
    """Follows the events of one run; every look reads only what is new."""

    run_dir: Path
    run: Standing = field(default_factory=Standing)
    stages: dict[Path, Standing] = field(default_factory=dict)
    """By stage directory, in the order of their first starts."""
    points: dict[str, tuple[SweptPoint, Standing]] = field(default_factory=dict)
    """Points of sweeps by their keys."""
    first_point: dict[Path, SweptPoint] = field(default_factory=dict)
    """By stage directory: the point that started it first; none where a run did that was no point."""
    by_name: dict[str, Path] = field(default_factory=dict)
    """Directory that each stage was started in last; one that was changed has several."""
    _point: SweptPoint | None = None
    """Point that the last run is."""
    _at_bytes: int = 0

    def look(self) -> None:
        """Take in new events, and the ends that nobody has lived to write down."""
        self._read_events()
        supervisor = read_holder(self.run_dir / LEASE)
        if supervisor is None or not supervisor.is_here or supervisor.is_alive:
            return
        now = time.time()
        for directory in self.running():
            state = stage_state(read_stage(directory, proof="sizes", now=now), now=now).state
            if TRACKER_STATES[state] not in (None, "running"):
                self.stages[directory].end(state, now)

    def _read_events(self) -> None:
        try:
            with (self.run_dir / EVENTS_FILE).open("rb") as file:
                file.seek(self._at_bytes)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._at_bytes += len(line)
                    self._take(line)
        except FileNotFoundError:
            return

    def sweeps(self) -> dict[str, Standing]:
        """Return the state of every sweep: that it runs, or the worst end of a point."""
        own: dict[str, list[Standing]] = {}
        for point, standing in self.points.values():
            own.setdefault(point.sweep, []).append(standing)
        return {name: _folded(standings) for name, standings in own.items()}

    def swept(self) -> dict[str, Standing]:
        """Return the states of sweeps and points by their keys."""
        sweeps = {sweep_key(name): standing for name, standing in self.sweeps().items()}
        return sweeps | {key: standing for key, (_, standing) in self.points.items()}

    def running(self) -> list[Path]:
        """Directories of the stages that run."""
        return [path for path, standing in self.stages.items() if standing.state == "running"]

    def recent(self, *, seconds: float = 60.0) -> list[Path]:
        """Directories of the stages that run, or ended a short time ago."""
        since = time.time() - seconds
        return [path for path, standing in self.stages.items() if (standing.ended_at or since) >= since]

    def _take(self, line: bytes) -> None:
        entry = object_in(line) or {}
        event = str(entry.get("event"))
        try:
            at = float(entry["time"])
        except (ValueError, KeyError, TypeError):
            return
        if event == "run_started":
            self._end_what_runs(at)
            self.run.start(at)
            self._point = point_of(entry.get("point"))
            if self._point is not None:
                self.points.setdefault(self._point.key, (self._point, Standing()))[1].start(at)
        elif event == "run_done":
            self._end_run("done", at)
        elif event == "run_stopped":
            self._end_run(STOPS.get(str(entry.get("label")), "failed"), at)
        elif event == "stage_started" and (directory := self._own(entry.get("directory"))) is not None:
            self.by_name[str(entry.get("stage"))] = directory
            if self._point is not None and directory not in self.stages:
                self.first_point[directory] = self._point
            self.stages.setdefault(directory, Standing()).start(at)
        elif event in ENDS and (named := self._running(str(entry.get("stage")))) is not None:
            named.end(ENDS[event], at)

    def _end_run(self, state: State, at: float) -> None:
        self.run.end(state, at)
        if self._point is not None:
            self.points[self._point.key][1].end(state, at)

    def _running(self, name: str) -> Standing | None:
        """The stage of a name, while it runs."""
        directory = self.by_name.get(name)
        standing = None if directory is None else self.stages[directory]
        return standing if standing is not None and standing.state == "running" else None

    def _end_what_runs(self, at: float) -> None:
        """A run that begins ends what a killed supervisor left running in the events."""
        for standing in (self.run, *(standing for _, standing in self.points.values()), *self.stages.values()):
            if standing.state == "running" and standing.attempts:
                standing.end("interrupted", at)

    def _own(self, directory: Any) -> Path | None:
        """The stage directory that an event names, looked up in this run, wherever the run has been moved to."""
        name = Path(str(directory)).name
        path = self.run_dir / "stages" / name
        return path if wrong_name(name) is None and path.is_dir() else None


def _folded(standings: Sequence[Standing]) -> Standing:
    state = next(state for state in WORST_FIRST if any(standing.state == state for standing in standings))
    return Standing(
        state=state,
        started_at=min((at for standing in standings if (at := standing.started_at) is not None), default=None),
        ended_at=None if state == "running" else max(standing.ended_at or 0.0 for standing in standings),
        attempts=sum(standing.attempts for standing in standings),
        interruptions=sum(standing.interruptions for standing in standings),
    )
