"""Parts of the pages of a run: its events, its files, its machines, the time that is left. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from charter.artifacts.job import JOB_FILE
from charter.artifacts.record import OUTPUTS, RECORD_FILE
from charter.cost.forecast import Forecast, StageSoFar, forecast, paced, planned_start_seconds
from charter.dashboard.snapshot import Snapshot, StageNow
from charter.metering.row import MeterRow, MeterSummary, summarise
from charter.physics.terms import Interval
from charter.units import MICRO_USD_PER_USD, format_seconds

MOST = 60
_SILENT = frozenset({"stage_pending", "stage_skipped", "stage_progress"})


@dataclass(frozen=True, kw_only=True)
class EventLine:
    """One event."""

    time: float
    stage: str
    tone: str
    """`info`, `good`, `warn` or `bad`."""
    icon: str
    text: str
    by: str = ""
    """Who caused it, where a person did."""


def event_lines(events: Sequence[Mapping[str, Any]], *, most: int = MOST) -> tuple[EventLine, ...]:
    """The last events, newest first."""
    shown = [event for event in events if event.get("event") not in _SILENT]
    return tuple(_line(event) for event in reversed(shown[-most:]))


def _line(event: Mapping[str, Any]) -> EventLine:
    name = str(event.get("event", ""))
    tone, icon, text = _words(name, event)
    return EventLine(
        time=float(event["time"]),
        stage=str(event.get("stage", "")),
        tone=tone,
        icon=icon,
        text=text,
        by=str(event.get("by", "")),
    )


def _words(name: str, event: Mapping[str, Any]) -> tuple[str, str, str]:
    message = str(event.get("message", ""))
    match name:
        case "run_started":
            return "info", "running", f"run started, {_count(event.get('todo'))} to do"
        case "run_done":
            return "good", "done", "run finished"
        case "run_stopped":
            return ("bad" if event.get("label") in ("budget", "stage") else "warn"), "interrupted", message
        case "stage_started":
            step = event.get("first_step") or 0
            go_on = f" from step {step}" if step else ""
            return "info", "running", f"started{go_on} (attempt {event.get('number', 1)})"
        case "stage_done":
            return "good", "done", f"done in {format_seconds(_number(event.get('seconds')))}"
        case "stage_interrupted":
            return "warn", "interrupted", f"stopped at step {event.get('step', 0)}"
        case "stage_restart":
            return "warn", "interrupted", f"{message}; starts again ({event.get('reason', '')})"
        case "stage_failed":
            return "bad", "failed", f"{message} ({event.get('reason', '')})"
        case "attempt_abandoned":
            return "warn", "interrupted", f"attempt {event.get('number')} had ended with its supervisor"
        case "stopping":
            return "warn", "interrupted", "asked to stop at a safe point"
    tone = "warn" if "warning" in name or "failed" in name or "budget" in name else "info"
    return tone, "note", message or name.replace("_", " ")


def _count(names: Any) -> str:
    number = len(names) if isinstance(names, list) else 0
    return f"{number} stage{'' if number == 1 else 's'}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


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


MOST_POINTS = 240


@dataclass(frozen=True, kw_only=True)
class MeterView:
    """Metered figures of a stage."""

    summary: MeterSummary
    charts: tuple[dict[str, Any], ...]

    @property
    def idle_share(self) -> float | None:
        """Share of the accelerators' time without work; None where nobody can say."""
        summary = self.summary
        if summary.gpu_idle_seconds is None or not summary.gpu_seconds:
            return None
        return summary.gpu_idle_seconds / summary.gpu_seconds


def meter_view(rows: Sequence[MeterRow]) -> MeterView | None:
    """Figures and curves of the samples; None where no node has two with a process of the job.

    The first sample of a node covers no time: shares of it would be 0 % of nothing, and a curve of it a point. One that
    came when the processes had ended saw nothing of what they used.
    """
    if max(Counter(row.node for row in rows if row.processes).values(), default=0) < 2:
        return None
    start = rows[0].time
    charts = [
        _chart("Accelerators: share at work", "share", rows, start, _activity),
        _chart("Accelerator memory in use", "bytes", rows, start, _memory),
        _chart("Accelerator power", "W", rows, start, _power),
        _chart("Processors: share that the job used", "share", rows, start, _cpu),
        _chart("Memory of its processes", "bytes", rows, start, lambda row: float(row.resident_bytes)),
        _chart("Read and written per second", "bytes", rows, start, _disk),
    ]
    return MeterView(summary=summarise(rows), charts=tuple(chart for chart in charts if chart is not None))


def _chart(
    title: str, unit: str, rows: Sequence[MeterRow], start: float, of: Callable[[MeterRow], float | None]
) -> dict[str, Any] | None:
    """One figure over time, a line for each node; None where no sample has it."""
    lines = []
    for node in sorted({row.node for row in rows}):
        points = [(row.time - start, value) for row in rows if row.node == node and (value := of(row)) is not None]
        if points:
            lines.append({"label": node, "points": _thinned(points)})
    if not lines:
        return None
    return {"title": title, "unit": unit, "x": "seconds", "lines": lines[:12]}


def _thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    size = -(-len(points) // MOST_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [[round(group[-1][0], 3), fmean(value for _, value in group)] for group in groups]


def _activity(row: MeterRow) -> float | None:
    return _mean([gpu.activity for gpu in row.gpus or ()])


def _memory(row: MeterRow) -> float | None:
    return _mean([gpu.memory_used_bytes for gpu in row.gpus or ()])


def _power(row: MeterRow) -> float | None:
    return _mean([gpu.power_watts for gpu in row.gpus or ()])


def _cpu(row: MeterRow) -> float | None:
    available = row.interval_seconds * row.node_cpus
    return row.cpu_seconds / available if available > 0 else None


def _disk(row: MeterRow) -> float | None:
    return (row.read_bytes + row.written_bytes) / row.interval_seconds if row.interval_seconds > 0 else None


def _mean(values: Sequence[float | int | None]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return fmean(numbers) if numbers else None


_WORDS = {"measured": "measured pace", "scaled": "plan scaled by it", "planned": "plan"}


@dataclass(frozen=True, kw_only=True)
class Eta:
    """Remaining seconds and money of a run."""

    left: Forecast
    run_seconds: float | None
    """Until the last stage ends; None where nobody can say."""
    ends_in: Mapping[str, float | None]
    """When each stage ends, with what it waits for."""
    source: str
    """What it rests on, in words."""

    def stage_seconds(self, name: str) -> float | None:
        """Return the seconds that a stage itself still takes."""
        rest = self.left.stages[name]
        return None if rest.basis == "unplanned" else rest.seconds.p50


def eta_of(snapshot: Snapshot) -> Eta:
    """The forecast of a run as `charter cost` makes it, with stages as early as inputs and slots allow."""
    left = forecast([so_far(snapshot, stage) for stage in snapshot.stages])
    ends = _schedule(snapshot, left)
    known_ends = [end for end in ends.values() if end is not None]
    bases = dict.fromkeys(stage.basis for stage in left.stages.values())
    return Eta(
        left=left,
        run_seconds=max(known_ends, default=0.0) if len(known_ends) == len(ends) else None,
        ends_in=ends,
        source=", ".join(_WORDS[basis] for basis in ("measured", "scaled", "planned") if basis in bases) or "nothing",
    )


def so_far(snapshot: Snapshot, stage: StageNow) -> StageSoFar:
    """Return the progress of one stage, as the forecast takes it."""
    sums = snapshot.ledger.stage(stage.name)
    paced_steps, paced_seconds = paced(stage.progress)
    lasting = sums.totals.micro_usd - sums.totals.lost_to_kills_micro_usd - sums.totals.lost_to_failures_micro_usd
    return StageSoFar(
        name=stage.name,
        kind=stage.kind,
        planned_seconds=planned_interval(stage, "seconds"),
        planned_usd=planned_interval(stage, "usd"),
        planned_start_seconds=planned_start_seconds(stage.planned),
        done=stage.state == "done",
        step=stage.step,
        target_step=stage.target_step,
        kept_seconds=sums.totals.useful_milliseconds / 1000,
        calls_usd=sums.calls.settled_micro_usd / MICRO_USD_PER_USD,
        paced_steps=paced_steps,
        paced_seconds=paced_seconds,
        kept_usd=(lasting + sums.calls.settled_micro_usd) / MICRO_USD_PER_USD if sums.is_priced else None,
    )


def planned_interval(stage: StageNow, what: str) -> Interval | None:
    """`seconds` or `usd` of a stage as the plan has it; None where it has none."""
    interval = stage.planned.get(what)
    if not isinstance(interval, Mapping) or not isinstance(interval.get("p50"), int | float):
        return None
    middle = float(interval["p50"])
    ends = [float(interval[name]) if isinstance(interval.get(name), int | float) else middle for name in ("p10", "p90")]
    return Interval(p10=ends[0], p50=middle, p90=ends[1])


def _schedule(snapshot: Snapshot, left: Forecast) -> dict[str, float | None]:
    """Each stage as early as its inputs and a free slot allow; what runs already keeps its slot."""
    free = [0.0] * snapshot.max_parallel_stages
    ends: dict[str, float | None] = {}
    running = [stage for stage in snapshot.stages if stage.state == "running"]
    for stage in [*running, *(stage for stage in snapshot.stages if stage.state != "running")]:
        took = left.stages[stage.name]
        inputs = [ends.get(name, 0.0) for name in stage.inputs]
        known_ends = [end for end in inputs if end is not None]
        if took.basis == "unplanned" or stage.state == "failed" or len(known_ends) < len(inputs):
            ends[stage.name] = None  # what failed, and what reads it, goes on when somebody has mended it
        elif took.basis == "done":
            ends[stage.name] = 0.0
        else:
            slot = free.index(min(free))
            free[slot] = max(free[slot], *known_ends, 0.0) + took.seconds.p50
            ends[stage.name] = free[slot]
    return ends
