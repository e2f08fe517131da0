"""Parts of the pages of a run: its events, files, machines, time that is left, and long series as few points. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.artifacts.job import JOB_FILE
from charter.artifacts.record import OUTPUTS, RECORD_FILE
from charter.cost.forecast import Forecast, StageSoFar, forecast, paced
from charter.dashboard.snapshot import Snapshot, StageNow
from charter.ledger.sums import Sums
from charter.metering.row import MeterRow, MeterSummary, summarise
from charter.report.html import thinned as mean_points
from charter.run.budget import StageStep, stage_so_far
from charter.units import format_seconds

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
    message = "; ".join(line.strip() for line in str(event.get("message", "")).splitlines())
    match name:
        case "run_started":
            return "info", "running", f"run started, {_count(event.get('todo'))} to do"
        case "run_done":
            return "good", "done", "run finished"
        case "run_stopped" if event.get("label") == "stage":
            # The event before it says which stage failed, and why.
            return "bad", "interrupted", "the run has stopped"
        case "run_stopped":
            return ("bad" if event.get("label") == "budget" else "warn"), "interrupted", message
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
    came when the processes had ended saw nothing of what they used, and is no point of their curves.
    """
    if max(Counter(row.node for row in rows if row.processes).values(), default=0) < 2:
        return None
    start, seen = rows[0].time, [row for row in rows if row.processes]
    charts = [
        _chart("Accelerators: share at work", "share", rows, start, _activity),
        _chart("Accelerator memory in use", "bytes", rows, start, _memory),
        _chart("Accelerator power", "W", rows, start, _power),
        _chart("Processors: share that the job used", "share", seen, start, _cpu),
        _chart("Memory of its processes", "bytes", seen, start, lambda row: float(row.resident_bytes)),
        _chart("Read and written per second", "bytes", seen, start, _disk),
    ]
    return MeterView(summary=summarise(rows), charts=tuple(chart for chart in charts if chart is not None))


def _chart(
    title: str, unit: str, rows: Sequence[MeterRow], start: float, of: Callable[[MeterRow], float | None]
) -> dict[str, Any] | None:
    """One figure over time, a line for each node; None where no sample has it."""
    lines = []
    for node in sorted({row.node for row in rows}):
        of_node = [(round(row.time - start, 3), of(row)) for row in rows if row.node == node]
        points = [(seconds, value) for seconds, value in of_node if value is not None]
        if points:
            lines.append({"label": node, "points": mean_points(points)["points"]})
    if not lines:
        return None
    return {"title": title, "unit": unit, "x": "seconds", "lines": lines[:12]}


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


_WORDS = {"measured": "measured pace", "scaled": "the plan scaled to it", "planned": "plan"}


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
    left = forecast([_so_far(snapshot, stage) for stage in snapshot.stages])
    ends = _schedule(snapshot, left)
    known_ends = [end for end in ends.values() if end is not None]
    bases = dict.fromkeys(stage.basis for stage in left.stages.values())
    return Eta(
        left=left,
        run_seconds=max(known_ends, default=0.0) if len(known_ends) == len(ends) else None,
        ends_in=ends,
        source=", ".join(_WORDS[basis] for basis in ("measured", "scaled", "planned") if basis in bases) or "nothing",
    )


def _so_far(snapshot: Snapshot, stage: StageNow) -> StageSoFar:
    paced_steps, paced_seconds = paced(stage.progress)
    progress = StageStep(
        name=stage.name,
        kind=stage.kind,
        fingerprint=stage.fingerprint,
        done=stage.state == "done",
        step=stage.step,
        target_step=stage.target_step,
        paced_steps=paced_steps,
        paced_seconds=paced_seconds,
    )
    part = snapshot.ledger.by_fingerprint.get((stage.name, stage.fingerprint), Sums())
    return stage_so_far(progress, stage.planned, part)


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


Numbers = NDArray[Any]

MOST_CURVE_POINTS = 500


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over steps."""

    metric: str
    title: str
    unit: str
    mean_of: int
    """How many steps each point is the mean of."""
    points: tuple[tuple[int, float], ...]
    band: tuple[tuple[float, float], ...]
    """Least and greatest value of the steps of each point; empty where points are single steps."""
    seconds: tuple[float, ...] = ()
    """From the stage's first line to each point, pauses between attempts included; empty where lines have no time."""
    tokens: tuple[float, ...] = ()
    """Trained or sampled up to each point; empty where nothing counts them."""

    @property
    def last(self) -> float:
        """The last point's value."""
        return self.points[-1][1]

    @property
    def values(self) -> tuple[float, ...]:
        """The values alone."""
        return tuple(value for _, value in self.points)

    def to_json(self, others: Iterable[tuple[str, "Curve"]] = ()) -> dict[str, object]:
        """Return the values that the script draws, with the same metric of other runs by their labels."""
        return {
            "metric": self.metric, "title": self.title, "unit": self.unit, "meanOf": self.mean_of,
            "band": [list(ends) for ends in self.band], **self._line(),
            "others": [{"label": label, **curve._line()} for label, curve in others],
        }  # fmt: skip

    def _line(self) -> dict[str, object]:
        points = [list(point) for point in self.points]
        return {"points": points, "seconds": list(self.seconds), "tokens": list(self.tokens)}


TITLES: Mapping[str, tuple[str, str]] = {
    "loss": ("Loss", ""),
    "reward_mean": ("Reward", ""),
    "total_reward": ("Reward minus KL penalty", ""),
    "kl": ("KL to the reference", "nats"),
    "kl_coefficient": ("KL coefficient", ""),
    "tokens_per_second": ("Tokens per second", "tokens/s"),
    "accuracy": ("Accuracy", ""),
    "token_accuracy": ("Token accuracy", ""),
    "margin": ("Margin", ""),
    "policy_loss": ("Policy loss", ""),
    "value_loss": ("Value loss", ""),
    "entropy": ("Entropy", "nats"),
    "clip_fraction": ("Clipped share", ""),
    "response_tokens": ("Answer length", "tokens"),
    "mean_chosen_probability": ("Certainty of the choice", ""),
    "longer_chosen_share": ("Longer answer chosen", ""),
    "position_bias": ("Choice by position", ""),
    "orders_agree": ("Same choice in both orders", ""),
    "invalid_share": ("Judgements that cannot be read", ""),
    "unchanged_revision_share": ("Revisions without a change", ""),
    "refused_revisions": ("Revisions that refuse", ""),
    "gradient_norm": ("Gradient norm", ""),
    "learning_rate": ("Learning rate", ""),
    "peak_bytes": ("Peak memory of tensors", "bytes"),
    "model_flops_per_second": ("Model flops per second", "flop/s"),
    "actual_over_planned_seconds": ("Step time over plan", "x"),
}
"""Metrics that are drawn, in this order, with their titles and units."""


TOKENS = "tokens"
"""Trained or sampled since the line before."""


def curves_of(steps: Mapping[int, Mapping[str, float]]) -> tuple[Curve, ...]:
    """The curves of a stage; a metric that never changes is left out."""
    logged = _logged(steps)
    numbers = np.fromiter(steps, dtype=np.int64, count=len(steps))
    drawn = []
    seconds, tokens = _elapsed(steps), _counted(steps)
    for metric, (title, unit) in TITLES.items():
        if metric not in logged:
            continue
        column = (values.get(metric, np.nan) for values in steps.values())
        series = np.fromiter(column, dtype=np.float64, count=len(steps))
        there = ~np.isnan(series)
        if there.sum() > 1 and np.ptp(series[there]) > 0:
            curve = thinned(metric, title, unit, numbers[there], series[there], most=MOST_CURVE_POINTS)
            at = np.searchsorted(numbers, [step for step, _ in curve.points])
            drawn.append(replace(curve, seconds=_at(seconds, at), tokens=_at(tokens, at)))
    return tuple(drawn)


Steady = tuple[tuple[str, str, float], ...]
"""Titles, units and values of metrics that never changed."""


def steady_of(steps: Mapping[int, Mapping[str, float]]) -> Steady:
    """Return the metrics that never changed, of which no curve is drawn.

    >>> steady_of({1: {"loss": 2.0, "orders_agree": 0.9}, 2: {"loss": 1.5, "orders_agree": 0.9}})
    (('Same choice in both orders', '', 0.9),)
    """
    steady = []
    logged = _logged(steps)
    for name in (name for name in TITLES if name in logged):
        values = (line[name] for line in steps.values() if name in line)
        first = next(values)
        if all(value == first for value in values):
            steady.append((*TITLES[name], first))
    return tuple(steady)


def _logged(steps: Mapping[int, Mapping[str, float]]) -> set[str]:
    return {name for values in steps.values() for name in values}


def _elapsed(steps: Mapping[int, Mapping[str, float]]) -> Numbers | None:
    """Return seconds since the first line at each step; None where a line has no time, or goes back in it."""
    times = np.fromiter((line.get("time", np.nan) for line in steps.values()), dtype=np.float64, count=len(steps))
    if len(times) < 2 or np.isnan(times).any() or (np.diff(times) < 0).any() or times[0] == times[-1]:
        return None
    seconds: Numbers = np.round(times - times[0], 3)
    return seconds


def _counted(steps: Mapping[int, Mapping[str, float]]) -> Numbers | None:
    """Return the tokens up to each step; None where no line counts them. A line has those since the line before it."""
    tokens = np.fromiter((line.get(TOKENS, 0.0) for line in steps.values()), dtype=np.float64, count=len(steps))
    return np.cumsum(tokens) if tokens.any() else None


def _at(values: Numbers | None, places: Numbers) -> tuple[float, ...]:
    return () if values is None else tuple(values[places].tolist())


def thinned(metric: str, title: str, unit: str, steps: Numbers, values: Numbers, *, most: int) -> Curve:
    """At most `most` points, each the mean of as many steps, with their range.

    >>> curve = thinned("loss", "Loss", "", np.array([1, 2, 3, 4]), np.array([4.0, 2.0, 3.0, 1.0]), most=2)
    >>> curve.points, curve.band
    (((2, 3.0), (4, 2.0)), ((2.0, 4.0), (1.0, 3.0)))
    """
    size = -(-len(values) // most) or 1
    starts = np.arange(0, len(values), size)
    ends = np.append(starts[1:], len(values))
    means = np.add.reduceat(values, starts) / (ends - starts)
    lows, highs = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return Curve(
        metric=metric,
        title=title,
        unit=unit,
        mean_of=size,
        points=tuple(zip(steps[ends - 1].tolist(), means.tolist(), strict=True)),
        band=tuple(zip(lows.tolist(), highs.tolist(), strict=True)) if size > 1 else (),
    )


@dataclass(frozen=True, kw_only=True)
class PhaseShare:
    """Share of one phase in the time of the last steps."""

    name: str
    seconds: float
    share: float


PHASES = ("generate", "score", "update", "save", "wait", "other")
_PHASE_COLUMNS = frozenset(f"seconds_{name}" for name in PHASES)
LAST_LINES = 50
"""Lines of metrics that the time of a step is taken over."""


def phases_of(steps: Mapping[int, Mapping[str, float]]) -> tuple[PhaseShare, ...]:
    """Mean seconds of a step by phase, over the last lines; phases that took nothing are left out.

    A line has the time of all steps since the timed line before it, so that sums are divided by steps, not by lines.
    """
    timed = [(step, line) for step, line in steps.items() if not _PHASE_COLUMNS.isdisjoint(line)]
    last = timed[-LAST_LINES:]
    if not last:
        return ()
    before = timed[-len(last) - 1][0] if len(timed) > len(last) else 0
    covered = max(1, last[-1][0] - before)
    means = {name: sum(line.get(f"seconds_{name}", 0.0) for _, line in last) / covered for name in PHASES}
    total = sum(means.values())
    return tuple(PhaseShare(name=name, seconds=mean, share=mean / total) for name, mean in means.items() if mean > 0)
