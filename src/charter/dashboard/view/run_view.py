"""The run page: pipeline, progress, money now, what happened. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from charter.artifacts.stage_state import Phase
from charter.dashboard.snapshot import Snapshot, StageNow, State, tone_of
from charter.dashboard.view.run_parts import Eta, EventLine, eta_of, event_lines
from charter.evaluate.outcome import EvaluationOutcome
from charter.ledger import Accounted
from charter.ledger.account import wall_milliseconds
from charter.run.budget import planned_interval, running_usd_per_hour

# -------- The pipeline as a drawing: places for stages and edges, and their SVG. Pure.


SWEEPS = 8
NUDGES = 12

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class GraphLayout:
    """Positions of nodes and edges, in units of one layer and one row."""

    nodes: Mapping[str, Point]
    """Layer, and row within it: rows of one layer are at least 1 apart."""
    edges: tuple[tuple[str, str, tuple[Point, ...]], ...]
    """From, to, and the points that it passes on its way through the layers between."""
    layers: int
    rows: float


def direct_edges(inputs: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """The edges that no longer way replaces, which say as much with fewer lines.

    >>> direct_edges({"a": [], "b": ["a"], "c": ["a", "b"]})
    [('a', 'b'), ('b', 'c')]
    """
    above: dict[str, set[str]] = {}
    edges = []
    for name, sources in inputs.items():
        stage_sources = [source for source in dict.fromkeys(sources) if source in inputs]
        above[name] = set(stage_sources).union(*(above.get(source, set()) for source in stage_sources))
        for source in stage_sources:
            if not any(source in above.get(other, set()) for other in stage_sources if other != source):
                edges.append((source, name))
    return edges


def layered(inputs: Mapping[str, Sequence[str]]) -> GraphLayout:
    """Nodes on the layer after their last input, ordered so that edges cross little.

    `inputs` says what each node reads, in an order in which inputs come before their readers.
    """
    edges = direct_edges(inputs)
    layer: dict[str, int] = {}
    for name in inputs:
        layer[name] = 1 + max((layer[a] for a, b in edges if b == name), default=-1)
    depth = max(layer.values(), default=-1) + 1
    columns: list[list[str]] = [[] for _ in range(depth)]
    for name in inputs:
        columns[layer[name]].append(name)
    chains = _chains(edges, layer, columns)
    before, after = _neighbours(chains)
    for sweep in range(SWEEPS):
        columns = _ordered(columns, before if sweep % 2 == 0 else after, forward=sweep % 2 == 0)
    rows = _rows(columns, before, after)
    lowest = min(rows.values(), default=0.0)
    at = {name: (float(index), rows[name] - lowest) for index, names in enumerate(columns) for name in names}
    return GraphLayout(
        nodes={name: at[name] for name in inputs},
        edges=tuple((chain[0], chain[-1], tuple(at[name] for name in chain)) for chain in chains),
        layers=depth,
        rows=max((row for _, row in at.values()), default=0.0) + 1,
    )


def _chains(edges: Sequence[tuple[str, str]], layer: Mapping[str, int], columns: list[list[str]]) -> list[list[str]]:
    """Each edge as a chain with one stand-in on every layer that it crosses."""
    chains = []
    for number, (source, target) in enumerate(edges):
        chain = [source]
        for between in range(layer[source] + 1, layer[target]):
            name = f"\x00{number}:{between}"
            columns[between].append(name)
            chain.append(name)
        chains.append([*chain, target])
    return chains


def _neighbours(chains: Sequence[Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            before.setdefault(b, []).append(a)
            after.setdefault(a, []).append(b)
    return before, after


def _ordered(columns: list[list[str]], towards: Mapping[str, Sequence[str]], *, forward: bool) -> list[list[str]]:
    """Every layer sorted by the mean place of its neighbours; nodes without any keep theirs."""
    place = {name: index for names in columns for index, name in enumerate(names)}
    ordered = [list(names) for names in columns]
    for index in range(len(ordered)) if forward else reversed(range(len(ordered))):
        names = ordered[index]

        def mean(name: str) -> float:
            near = towards.get(name, ())
            return sum(place[other] for other in near) / len(near) if near else float(place[name])

        names.sort(key=mean)
        place.update({name: position for position, name in enumerate(names)})
    return ordered


def _rows(
    columns: Sequence[Sequence[str]], before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Rows near the means of the neighbours', in order, at least 1 apart (stand-ins 0.5)."""
    rows = {name: index - (len(names) - 1) / 2 for names in columns for index, name in enumerate(names)}
    for nudge in range(NUDGES):
        for names in columns if nudge % 2 == 0 else reversed(columns):
            wanted = []
            for name in names:
                near = [*before.get(name, ()), *after.get(name, ())]
                wanted.append(sum(rows[other] for other in near) / len(near) if near else rows[name])
            for name, row in zip(names, _apart(names, wanted), strict=True):
                rows[name] = row
    return rows


def _apart(names: Sequence[str], wanted: Sequence[float]) -> list[float]:
    """The wanted rows pushed apart evenly to both sides."""
    down, up = list(wanted), list(wanted)
    for index in range(1, len(names)):
        gap = 0.5 if names[index].startswith("\x00") and names[index - 1].startswith("\x00") else 1.0
        down[index] = max(wanted[index], down[index - 1] + gap)
    for index in reversed(range(len(names) - 1)):
        gap = 0.5 if names[index].startswith("\x00") and names[index + 1].startswith("\x00") else 1.0
        up[index] = min(wanted[index], up[index + 1] - gap)
    middle = [(low + high) / 2 for low, high in zip(up, down, strict=True)]
    for index in range(1, len(names)):
        gap = 0.5 if names[index].startswith("\x00") and names[index - 1].startswith("\x00") else 1.0
        middle[index] = max(middle[index], middle[index - 1] + gap)
    return middle


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of boxes and of the gaps between them, in pixels."""

    width: float
    height: float
    gap_along: float
    """Between layers."""
    gap_across: float
    """Between rows of a layer."""
    down: bool
    """Layers one below the other, for a narrow screen."""
    letters: int
    """Of a name that fit into a box."""


WIDE = Size(width=144, height=66, gap_along=28, gap_across=16, down=False, letters=12)
NARROW = Size(width=106, height=46, gap_along=24, gap_across=8, down=True, letters=12)


@dataclass(frozen=True, kw_only=True)
class Box:
    """One node."""

    name: str
    shown: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Drawing of a graph."""

    width: float
    height: float
    box: Size
    boxes: tuple[Box, ...]
    lines: tuple[tuple[str, str, str], ...]
    """From, to, and the path (the attribute `d` of SVG)."""


def graph_svg(inputs: Mapping[str, Sequence[str]], size: Size) -> Graph:
    """A pipeline's graph; `inputs` says what each stage reads."""
    graph = layered(inputs)
    layer_step = (size.height if size.down else size.width) + size.gap_along
    row_step = (size.width if size.down else size.height) + size.gap_across

    def corner(point: Point) -> Point:
        along, across = point[0] * layer_step, point[1] * row_step
        return (across, along) if size.down else (along, across)

    boxes = tuple(
        Box(name=name, shown=_short(name, size.letters), x=round(corner(at)[0], 1), y=round(corner(at)[1], 1))
        for name, at in graph.nodes.items()
    )
    lines = tuple((a, b, _path([corner(point) for point in points], size)) for a, b, points in graph.edges)
    along = max(0.0, graph.layers * layer_step - size.gap_along)
    across = max(0.0, graph.rows * row_step - size.gap_across)
    width, height = (across, along) if size.down else (along, across)
    return Graph(width=round(width + 2, 1), height=round(height + 2, 1), box=size, boxes=boxes, lines=lines)


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _path(corners: Sequence[Point], size: Size) -> str:
    """A smooth line from the far side of the first box, through the middles between, to the near side of the last."""
    (x, y), middle_w, middle_h = corners[0], size.width / 2, size.height / 2
    here = (x + middle_w, y + size.height) if size.down else (x + size.width, y + middle_h)
    parts = [f"M{here[0]:.1f} {here[1]:.1f}"]
    for number, (x, y) in enumerate(corners[1:], start=1):
        last = number == len(corners) - 1
        entry = (x + middle_w, y) if size.down else (x, y + middle_h)
        parts.append(_bend(here, entry, size.down))
        here = entry
        if not last:
            here = (x + middle_w, y + size.height) if size.down else (x + size.width, y + middle_h)
            parts.append(f"L{here[0]:.1f} {here[1]:.1f}")
    return "".join(parts)


def _bend(a: Point, b: Point, down: bool) -> str:
    if down:
        middle = (a[1] + b[1]) / 2
        return f"C{a[0]:.1f} {middle:.1f} {b[0]:.1f} {middle:.1f} {b[0]:.1f} {b[1]:.1f}"
    middle = (a[0] + b[0]) / 2
    return f"C{middle:.1f} {a[1]:.1f} {middle:.1f} {b[1]:.1f} {b[0]:.1f} {b[1]:.1f}"


# -------- The run page: pipeline, progress, money now, what happened. Pure.


BROKEN = ("killed", "failed", "hung", "interrupted")
"""Outcomes of attempts that count as interruptions."""


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """One stage on the run page."""

    stage: StageNow
    colour: int
    seconds: float
    """Of all its attempts."""
    planned_seconds: float | None
    usd: float | None
    attempts: int
    interruptions: int
    left_seconds: float | None
    ends_in: float | None
    behind: str
    """The failed stage that it waits for; empty where none failed."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.stage.name

    @property
    def state(self) -> State:
        """Its state."""
        return self.stage.state


@dataclass(frozen=True, kw_only=True)
class Money:
    """Spending against the budget."""

    spent_usd: float | None
    per_hour_usd: float | None
    limit_usd: float | None
    forecast_usd: float | None

    @property
    def share(self) -> float | None:
        """Of the budget that is spent."""
        return (self.spent_usd or 0.0) / self.limit_usd if self.limit_usd else None

    @property
    def tone(self) -> str:
        """`good`, `warn` or `bad`."""
        share = self.share
        if share is None:
            return "good"
        over = self.forecast_usd is not None and self.limit_usd is not None and self.forecast_usd > self.limit_usd
        return "bad" if share >= 1 else "warn" if share >= 0.8 or over else "good"


@dataclass(frozen=True, kw_only=True)
class Span:
    """An attempt on the clock of the run."""

    start: float
    end: float
    outcome: str
    """`running` while it does."""


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One stage: when it was planned to run, and when it ran, in seconds of the run's clock."""

    name: str
    colour: int
    planned: tuple[float, float] | None
    """Start and end at the median."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class AttemptTimeline:
    """Attempts of a run on a clock that stands still while nothing runs."""

    rows: tuple[TimelineRow, ...]
    last: float
    pauses: int
    """Times in which nothing ran, which the clock leaves out."""


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """Words of a failed stage on the page of its run."""

    name: str
    why: str
    ends_run: bool
    """Whether the run stopped for it."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The whole page."""

    phase: Phase
    state: State
    rows: tuple[StageRow, ...]
    done: int
    share: float
    eta: Eta
    money: Money
    started_at: float | None
    wall_seconds: float | None
    """Time in which something ran; None for a run of so many attempts that they are kept as sums."""
    timeline: AttemptTimeline | None
    interruptions: int
    lost_seconds: float
    lost_usd: float | None
    checkpoint_at: float | None
    checkpoint_stage: str
    gates: tuple[StageNow, ...]
    holds: tuple[StageNow, ...]
    failures: tuple["StageFailure", ...]
    stopped: str
    """Why the run stopped, where it says so itself and no failure says it: a spent budget."""
    events: tuple[EventLine, ...]
    wide: Graph
    narrow: Graph
    by_name: Mapping[str, StageRow]
    outcomes: tuple[EvaluationOutcome, ...]
    """What finished evaluations say of their policies."""


def run_view(snapshot: Snapshot, outcomes: tuple[EvaluationOutcome, ...] = ()) -> RunView:
    """The run page of a project."""
    eta = eta_of(snapshot)
    rows = tuple(_row(snapshot, stage, index, eta) for index, stage in enumerate(snapshot.stages))
    inputs = {stage.name: stage.inputs for stage in snapshot.stages}
    totals, recent = snapshot.ledger.whole.totals, snapshot.ledger.recent
    stopped = _stopped(snapshot)
    failures = _failures(snapshot, stopped)
    lost = totals.milliseconds - totals.useful_milliseconds
    saved = [stage for stage in snapshot.stages if stage.state == "running" and stage.checkpoint_at is not None]
    newest = max(saved, key=lambda stage: stage.checkpoint_at or 0.0, default=None)
    return RunView(
        phase=snapshot.phase,
        state=tone_of(snapshot.phase),
        rows=rows,
        done=sum(row.state == "done" for row in rows),
        share=run_share(snapshot),
        eta=eta,
        money=money_of(snapshot, eta),
        started_at=next((float(item["time"]) for item in snapshot.events if item.get("event") == "run_started"), None),
        wall_seconds=wall_milliseconds(item.attempt for item in recent) / 1000 if recent else None,
        timeline=timeline_of(snapshot, recent),
        interruptions=sum(row.interruptions for row in rows),
        lost_seconds=lost / 1000,
        lost_usd=_usd(totals.lost_to_kills_micro_usd + totals.lost_to_failures_micro_usd, totals.priced_attempts),
        checkpoint_at=newest.checkpoint_at if newest else None,
        checkpoint_stage=newest.name if newest else "",
        gates=tuple(stage for stage in snapshot.stages if stage.phase is Phase.WAITING),
        holds=tuple(stage for stage in snapshot.stages if stage.phase is Phase.HELD),
        failures=failures,
        stopped="" if any(failure.ends_run for failure in failures) else stopped,
        events=event_lines(snapshot.events),
        wide=graph_svg(inputs, WIDE),
        narrow=graph_svg(inputs, NARROW),
        by_name={row.name: row for row in rows},
        outcomes=outcomes,
    )


PAUSE_SECONDS = 1.0
"""Shorter times without an attempt are the supervisor's, between two stages."""


def timeline_of(snapshot: Snapshot, accounted: Sequence[Accounted]) -> AttemptTimeline | None:
    """Return every attempt beside the plan; None where nothing ran, or too much to draw one by one."""
    attempts = sorted((item.attempt for item in accounted), key=lambda attempt: attempt.started_at)
    if not attempts:
        return None
    spans: dict[str, list[Span]] = {}
    left_out, until, pauses = attempts[0].started_at, attempts[0].started_at, 0
    for attempt in attempts:
        if attempt.started_at - until > PAUSE_SECONDS:
            left_out, pauses = left_out + attempt.started_at - until, pauses + 1
        start = attempt.started_at - left_out
        span = Span(start=start, end=start + attempt.seconds, outcome=attempt.outcome)
        spans.setdefault(attempt.stage, []).append(span)
        until = max(until, attempt.started_at + attempt.seconds)
    planned = {name: at for name, at in _planned_times(snapshot.plan) if name in spans}
    rows = tuple(
        TimelineRow(
            name=stage.name, colour=index % 12, planned=planned.get(stage.name), spans=tuple(spans.get(stage.name, ()))
        )
        for index, stage in enumerate(snapshot.stages)
        if stage.name in spans
    )
    ends = [span.end for items in spans.values() for span in items] + [end for _, end in planned.values()]
    return AttemptTimeline(rows=rows, last=max(ends), pauses=pauses)


def _planned_times(plan: Mapping[str, Any] | None) -> list[tuple[str, tuple[float, float]]]:
    timeline = (plan or {}).get("timeline")
    stages = timeline.get("stages") if isinstance(timeline, Mapping) else None
    times = []
    for item in stages if isinstance(stages, list) else ():
        start, end = (item.get(f"{edge}_seconds") or {} for edge in ("start", "end"))
        if isinstance(start.get("p50"), int | float) and isinstance(end.get("p50"), int | float):
            times.append((str(item.get("name")), (float(start["p50"]), float(end["p50"]))))
    return times


def run_share(snapshot: Snapshot) -> float:
    """Return the finished share of a run: its stages' shares, weighted by their planned time where all have one."""
    stages = snapshot.stages
    planned = [planned_interval(stage.planned, "seconds") for stage in stages]
    weights = [item.p50 for item in planned if item is not None and item.p50]
    if len(weights) < len(stages):
        weights = [1.0] * len(stages)
    total = sum(weights)
    return sum(w * stage.done_share for w, stage in zip(weights, stages, strict=True)) / total if total else 0.0


def money_of(snapshot: Snapshot, eta: Eta) -> Money:
    """Spending of a run: attempts, calls and other charges, and what runs at this moment."""
    ledger = snapshot.ledger
    alive = {stage.name for stage in snapshot.stages if stage.state == "running"}
    now = alive & {attempt.stage for attempt in ledger.running}
    rate = running_usd_per_hour(
        [attempt for attempt in ledger.running if attempt.stage in now],
        now,
        machine_usd_per_hour=snapshot.machine_usd_per_hour,
    )
    spent = ledger.whole.usd if ledger.whole.is_priced else None
    has_run = bool(ledger.attempts)
    if spent is None and not has_run:
        spent = 0.0  # what never ran has cost nothing, whatever its price
    left = eta.left.usd
    return Money(
        spent_usd=spent,
        per_hour_usd=rate if rate is not None else (0.0 if spent is not None else None),
        limit_usd=snapshot.budget_limit_usd,
        forecast_usd=(spent if has_run else None) if left is None else (spent or 0.0) + left.p50,
    )


def _row(snapshot: Snapshot, stage: StageNow, index: int, eta: Eta) -> StageRow:
    sums, outcomes = snapshot.ledger.stage(stage.name), snapshot.ledger.outcomes.get(stage.name, {})
    expected = planned_interval(stage.planned, "seconds")
    return StageRow(
        stage=stage,
        colour=index % 12,
        seconds=sums.totals.milliseconds / 1000,
        planned_seconds=expected.p50 if expected else None,
        usd=sums.usd if sums.is_priced else None,
        attempts=sums.totals.attempts,
        interruptions=sum(outcomes.get(name, 0) for name in BROKEN),
        left_seconds=eta.stage_seconds(stage.name),
        ends_in=eta.ends_in.get(stage.name),
        behind=snapshot.failed_above(stage),
    )


def _usd(micro_usd: int, priced: int) -> float | None:
    return micro_usd / 1e6 if priced else None


def _failures(snapshot: Snapshot, stopped: str) -> tuple[StageFailure, ...]:
    """Failed stages; the one that the run stopped for has the run's words, which say more than its own."""
    stages = (stage for stage in snapshot.stages if stage.state == "failed")
    return tuple(
        StageFailure(name=stage.name, why=said if ends_run else stage.failure, ends_run=ends_run)
        for stage in stages
        for said in (stopped.removeprefix(f"stage {stage.name}: "),)
        for ends_run in (said != stopped,)
    )


def _stopped(snapshot: Snapshot) -> str:
    """The last word of a run that ended early and was not started again; gates that wait have words of their own."""
    for event in reversed(snapshot.events):
        if event.get("event") in ("run_done", "run_started"):
            return ""
        if event.get("event") == "run_stopped":
            gates = event.get("label") == "interrupted" and any(
                stage.phase is Phase.WAITING for stage in snapshot.stages
            )
            return "" if gates else str(event.get("message", ""))
    return ""
