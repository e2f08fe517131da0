"""Views of a run: redrawn on a terminal, plain lines elsewhere, JSON lines for machines."""

import json
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from charter.units import format_seconds, format_usd

Event = Mapping[str, Any]
PLAIN_EVERY_SECONDS = 10.0
_METRICS = ("loss", "accuracy", "reward_mean", "kl")


class JsonView:
    """Every event as one JSON line on stdout."""

    def __call__(self, event: Event) -> None:
        """Print one event."""
        print(json.dumps(event), flush=True)

    def __enter__(self) -> "JsonView":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        return None


class PlainView:
    """A line per event, and one per ten seconds of progress."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, flush=True))
        self._last: dict[str, float] = {}

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Print what an event says, if it is time to."""
        stage = event.get("stage", "")
        if event["event"] == "stage_progress":
            if time.monotonic() - self._last.get(stage, time.monotonic()) >= PLAIN_EVERY_SECONDS:
                self._write(f"{stage:<16} {progress_line(event)}")
                self._last[stage] = time.monotonic()
            return
        if event["event"] == "stage_started":
            self._last[stage] = time.monotonic()
        if (line := event_line(event)) is not None:
            self._write(line)


class LiveView:
    """Finished lines scroll; below them one line per running stage is redrawn."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._running: dict[str, Event | None] = {}

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Redraw, and print what stays."""
        stage = event.get("stage", "")
        match event["event"]:
            case "stage_progress":
                self._running[stage] = event
            case "stage_started":
                self._running[stage] = None
            case "stage_done" | "stage_failed" | "stage_restart" | "stage_interrupted":
                self._running.pop(stage, None)
        if (line := event_line(event)) is not None:
            self._console.print(line, markup=False)
        self._live.update(self._table())

    def _table(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 1))
        for stage, event in self._running.items():
            step, target = (event["step"], event["target_step"]) if event else (0, 1)
            words = progress_line(event) if event else "starting"
            table.add_row(f"{stage:<16}", ProgressBar(total=max(1, target), completed=step, width=20), words)
        return table


def progress_line(event: Event) -> str:
    """`step 40/120 · 3.2 steps/s · 25 s left · loss 2.31 · $0.01`."""
    rate, left = event.get("rate_per_second"), event["target_step"] - event["step"]
    parts = [f"step {event['step']}/{event['target_step']}"]
    if rate:
        parts += [f"{rate:.3g} {event.get('unit', 'steps')}/s", f"{format_seconds(left / rate)} left"]
    metrics = event.get("metrics", {})
    parts += [f"{name} {metrics[name]:.4g}" for name in _METRICS if name in metrics]
    if event.get("cost_usd") is not None:
        parts.append(f"{format_usd(event['cost_usd'])} so far")
    return " · ".join(parts)


def event_line(event: Event) -> str | None:
    """One event as a line, None for those that are not worth one."""
    stage = f"{event.get('stage', ''):<16}"
    match event["event"]:
        case "stage_skipped":
            return f"{stage} nothing to do: {event['why']}"
        case "stage_pending":
            return f"{stage} to run: {event['why']}"
        case "stage_started":
            where = f" from step {event['first_step']}" if event["first_step"] else ""
            again = f" (attempt {event['number']})" if event["number"] > 1 else ""
            place = f" on {', '.join(event['nodes'][:4])}" if event.get("nodes") else ""
            return f"{stage} started{where}{again}{place}"
        case "stage_queued":
            return f"{stage} submitted as {event['where']}"
        case "job_found":
            return f"going on with {event['engine']} job {event['job']}, which is {event['state']}"
        case "job_cancelled":
            return f"{stage} ended {event['engine']} job {event['job']}, which nobody waits for"
        case "job_left":
            return f"jobs of {event['engine']} may still run, locked out: {event['message']}"
        case "stage_done":
            return f"{stage} done in {format_seconds(event['seconds'])}"
        case "stage_restart":
            wait = event["wait_seconds"]
            return f"{stage} {event['message']}; restart in {wait:g} s, {event['reason']}"
        case "stage_failed":
            return f"{stage} failed: {event['message']}"
        case "stage_interrupted":
            return f"{stage} stopped at step {event['step']}"
        case "stage_note":
            return f"{stage} {event['message']}"
        case "attempt_abandoned":
            return f"{stage} an earlier attempt was killed at step {event['step']}"
        case "plan_failed":
            return f"the plan could not be made, so none is kept beside this run: {event['message']}"
        case "replica_failed" | "replica_note":
            return f"copies: {event['message']}"
        case "tracking_behind":
            return f"tracking: {event['message']}"
        case (
            "budget_unpriced" | "budget_warning" | "budget_hold" | "stage_idle" | "overoptimisation" | "ledger_rebuilt"
        ):
            return str(event["message"])
        case "stopping":
            return "stopping at the next safe point (Ctrl-C again to stop at once)"
    return None


def view(*, as_json: bool, live: bool) -> "JsonView | PlainView | LiveView":
    """The view for this output."""
    if as_json:
        return JsonView()
    return LiveView() if live else PlainView()
