"""Events of a run as lines of a page, in words. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
