"""TensorBoard: event files that Charter writes itself, one directory per stage.

The file's length before each batch is in a sidecar, and what a kill left behind it is cut before more is written. So a
batch is there once. Steps that come again with another result make the reader forget those that were there, as it does
after a restart of any program.
"""

import io
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.stage_state import TrackerState
from charter.errors import MissingExtraError, how_to_install
from charter.tracking.base import MetricRow, RunFacts

EVENTS, STATE = "events.out.tfevents.0.charter", "charter.json"
MACHINE = "machine"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class TensorboardDestination:
    """A directory of event files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _library()

    def open_run(self, facts: RunFacts, *, parent: str | None, known: str | None) -> str:
        """The directory of a stage, by the last part of its key; the pipeline itself is the directory above."""
        if known is not None:
            return known
        return "." if parent is None else UNSAFE.sub("-", facts.key.split("-", 1)[1])

    def describe(self, run: str, facts: RunFacts) -> None:
        """Parameters, tags and inputs as texts."""
        texts = {
            "parameters": _table(facts.parameters),
            "tags": _table(facts.tags),
            "inputs": _table({f"{item.role}: {item.name}": item.fingerprint for item in facts.inputs}),
            "note": facts.note,
        }
        events = [_text_event(name, text) for name, text in texts.items() if text]
        if events:
            _append(self._directory / run, events)

    def log(self, run: str, rows: Sequence[MetricRow]) -> None:
        """Scalars; those of machines beside, since their steps are others."""
        _append_rows(self._directory / run, [row for row in rows if not row.machine])
        _append_rows(self._directory / run / MACHINE, [row for row in rows if row.machine])

    def rows_lost_from(self, run: str, *, told: int, sure: int) -> int | None:
        """Nothing: they are on the disk when a call returns."""
        return None

    def attach(self, run: str, name: str, path: Path) -> None:
        """Texts are shown; anything else stays where it is."""
        if path.suffix in (".md", ".json"):
            content = path.read_text(encoding="utf-8", errors="replace")
            shown = content if path.suffix == ".md" else f"```json\n{content}\n```"
            _append(self._directory / run, [_text_event(name, shown)])

    def set_state(self, run: str, state: TrackerState, *, ended_at: float | None) -> None:
        """As a text."""
        _append(self._directory / run, [_text_event("state", state)])

    def close(self) -> None:
        """Every call has written all it was given."""


def _append(directory: Path, events: Sequence[Any]) -> None:
    """Add events to the file of a directory."""
    _write(directory, events, _state(directory))


def _append_rows(directory: Path, rows: Sequence[MetricRow]) -> None:
    """Add rows to the file of a directory; those that it has are left out."""
    state = _state(directory)
    new = [row for row in rows if row.number > state["rows"]]
    if new:
        _write(directory, [event for row in new for event in _row_events(row)], {**state, "rows": new[-1].number})


def _state(directory: Path) -> dict[str, Any]:
    path = directory / STATE
    return durable.read_json(path) if path.exists() else {"bytes": 0, "rows": -1}


def _write(directory: Path, events: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Cut what a kill left half told, write, and say so."""
    durable.make_dir(directory)
    path = directory / EVENTS
    if path.exists() and path.stat().st_size > state["bytes"]:
        durable.truncate(path, state["bytes"])
    with path.open("ab") as file:
        file.write(_records(events if state["bytes"] else [_head(), *events]))
        file.flush()
        os.fsync(file.fileno())
    durable.write_json(directory / STATE, {**state, "bytes": path.stat().st_size})


def _row_events(row: MetricRow) -> list[Any]:
    event_pb2, summary_pb2, _ = _library()
    values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
    event = event_pb2.Event(wall_time=row.time, step=row.step, summary=summary_pb2.Summary(value=values))
    if not row.again:
        return [event]
    restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return [event_pb2.Event(wall_time=row.time, step=row.step, session_log=restart), event]


def _text_event(name: str, text: str) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    event_pb2, _, _ = _library()
    return event_pb2.Event(wall_time=time.time(), step=0, summary=text_pb(name, text))


def _head() -> Any:
    event_pb2, _, _ = _library()
    return event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")


def _records(events: Sequence[Any]) -> bytes:
    _, _, record_writer = _library()
    block = io.BytesIO()
    writer = record_writer(block)
    for event in events:
        writer.write(event.SerializeToString())
    return block.getvalue()


def _table(values: Mapping[str, str]) -> str:
    if not values:
        return ""
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _library() -> tuple[Any, Any, Any]:
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise MissingExtraError(
            f"tracking names tensorboard, which is not installed: {how_to_install('tensorboard')}"
        ) from None
    return event_pb2, summary_pb2, RecordWriter
