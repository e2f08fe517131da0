"""One project as it stood at one moment, and how its files are read: JSON again only when changed, ends of logs.

A snapshot is what every page is made from: frozen values, read once and shared."""

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from charter.artifacts.stage_state import STATES, Phase, run_phase
from charter.errors import loads_json
from charter.ledger import Accounted
from charter.ledger.attempt import Attempt
from charter.ledger.sums import Sums
from charter.redaction import without_shapes
from charter.run.events import end_of_file

Stamp = tuple[int, int, int]


def stamp_of(path: Path | str) -> Stamp | None:
    """Return the stamp that tells one state of a file from another; None when there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class JsonFiles:
    """Contents of JSON files, cached by their stamps."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Mapping[str, Any]]] = {}
        self._lock = threading.Lock()

    def read(self, path: Path) -> Mapping[str, Any]:
        """The object in a file; empty when there is none, or when it is no JSON object (it may be half-written)."""
        stamp = stamp_of(path)
        if stamp is None:
            return {}
        with self._lock:
            cached = self._known.get(path)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        try:
            content: Any = loads_json(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        mapping: Mapping[str, Any] = content if isinstance(content, dict) else {}
        with self._lock:
            self._known[path] = (stamp, mapping)
        return mapping


LOG_BYTES = 64 * 1024
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Colours and cursor moves of terminals (ECMA-48)."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What is invisible or turns the direction of text round."""


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The last lines of a log."""

    lines: tuple[str, ...]
    whole: bool
    """Whether these are all lines."""
    size_bytes: int


def log_tail(path: Path) -> LogTail:
    """The end of a log as plain lines, from a whole line on; empty where there is no log."""
    try:
        content, size = end_of_file(path, LOG_BYTES)
    except OSError:
        return LogTail(lines=(), whole=True, size_bytes=0)
    complete = len(content) == size
    if not complete:
        content = content.partition(b"\n")[2]
    text = without_shapes(content.decode("utf-8", "replace"))
    return LogTail(lines=tuple(plain(line) for line in text.splitlines()), whole=complete, size_bytes=size)


SEARCHED_BYTES = 32 * 1024**2
MOST_LINES = 500


def log_lines_with(path: Path, text: str) -> LogTail:
    """Return the last lines of a log that hold a text, whatever its case, each with its number where that is known."""
    try:
        content, size = end_of_file(path, SEARCHED_BYTES)
    except OSError:
        return LogTail(lines=(), whole=True, size_bytes=0)
    complete, needle = len(content) == size, text.casefold()
    lines = [plain(line) for line in without_shapes(content.decode("utf-8", "replace")).splitlines()]
    hits = [
        f"{number}: {line}" if complete else line
        for number, line in enumerate(lines, start=1)
        if needle in line.casefold()
    ]
    return LogTail(lines=tuple(hits[-MOST_LINES:]), whole=complete and len(hits) <= MOST_LINES, size_bytes=size)


def plain(line: str) -> str:
    """A line without colours; other control characters are shown, not obeyed; of what `\\r` overwrote the last stays.

    >>> plain("\\x1b[31mred\\x1b[0m 10 %\\r20 %"), plain("a\\x00b")
    ('20 %', 'a\\ufffdb')
    """
    line = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
    return _CONTROLS.sub("\ufffd", line)


State = Literal["pending", "waiting", "running", "interrupted", "failed", "done"]
"""Tone in which a page shows a phase: the machine's word, and `waiting` for what somebody has to let go on."""
Json = Mapping[str, Any]


def tone_of(phase: Phase) -> State:
    """Return the tone in which a page shows a phase.

    >>> tone_of(Phase.QUEUED), tone_of(Phase.HELD), tone_of(Phase.DAMAGED)
    ('pending', 'waiting', 'interrupted')
    """
    return "waiting" if phase in (Phase.WAITING, Phase.HELD) else STATES[phase]


@dataclass(frozen=True, kw_only=True)
class StageNow:
    """One stage."""

    name: str
    kind: str
    phase: Phase
    why: str = ""
    step: int = 0
    target_step: int | None = None
    unit: str = "step"
    inputs: tuple[str, ...] = ()
    """The stages that it reads from."""
    outside_inputs: tuple[str, ...] = ()
    """The models and data sets that it reads."""
    needs_approval: bool = False
    directory: Path | None = None
    """Its directory, once it has one."""
    fingerprint: str = ""
    progress: Json = field(default_factory=dict)
    """`progress.json`: rates and metrics of its last step."""
    failure: str = ""
    checkpoint_at: float | None = None
    """Unix seconds of its newest checkpoint."""
    updated_at: float | None = None
    outputs: int = 0
    """Files that it has published."""
    planned: Json = field(default_factory=dict)
    """The stage as the plan has it."""

    @property
    def state(self) -> State:
        """Tone of the phase on pages."""
        return tone_of(self.phase)

    @property
    def done_share(self) -> float:
        """Return the finished share, from 0 to 1."""
        if self.state == "done":
            return 1.0
        return min(1.0, self.step / self.target_step) if self.target_step else 0.0


@dataclass(frozen=True, kw_only=True)
class CostGroup:
    """Cost of one owner, tag or kind of accelerator."""

    name: str
    sums: Sums


@dataclass(frozen=True, kw_only=True)
class LedgerNow:
    """Sums of the ledger, and its few rows that a page shows one by one."""

    whole: Sums = field(default_factory=Sums)
    by_stage: Mapping[str, Sums] = field(default_factory=dict)
    by_fingerprint: Mapping[tuple[str, str], Sums] = field(default_factory=dict)
    """By stage and fingerprint: what a stage has taken as it is written now, and as it was before."""
    by_accelerator: tuple[CostGroup, ...] = ()
    by_owner: tuple[CostGroup, ...] = ()
    by_tag: tuple[CostGroup, ...] = ()
    outcomes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stage: how many attempts ended how."""
    running: tuple[Attempt, ...] = ()
    recent: tuple[Accounted, ...] = ()
    """All attempts, oldest first, of a run that has few; empty otherwise."""
    spend: tuple[tuple[float, int], ...] = ()
    """Unix seconds, and what was spent until then in micro-USD: never falling."""
    read_at: float = 0.0
    """When it was, unix seconds; 0 when it never was."""
    problem: str = ""
    """Why it could not be read since; its figures are the last that were, or none."""

    @property
    def attempts(self) -> int:
        """Return the number of attempts."""
        return self.whole.totals.attempts

    def stage(self, name: str) -> Sums:
        """Return the sums of one stage."""
        return self.by_stage.get(name, Sums())


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A project, its stages, its ledger and its plan."""

    key: str
    label: str
    root: Path
    name: str
    version: str
    """Changes whenever anything that was read has changed."""
    read_at: float
    stages: tuple[StageNow, ...] = ()
    ledger: LedgerNow = field(default_factory=LedgerNow)
    plan: Json | None = None
    events: tuple[Json, ...] = ()
    """The last events of `events.jsonl`, oldest first."""
    owner: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Those of the file, then those that people have put on the run."""
    own_tags: tuple[str, ...] = ()
    """Names of those that people have put on the run, and may take off."""
    budget_limit_usd: float | None = None
    on_exceed: str = ""
    sweeps: tuple[str, ...] = ()
    """Those that the file names."""
    deadline_seconds: float | None = None
    max_parallel_stages: int = 1
    machine_usd_per_hour: float | None = None
    """Price of the machine that attempts of this run share, where they are no jobs of a scheduler."""
    problems: tuple[str, ...] = ()
    """What could not be read, in words."""

    @property
    def phase(self) -> Phase:
        """Phase of the whole run."""
        return run_phase(stage.phase for stage in self.stages)

    def stage(self, name: str) -> StageNow | None:
        """The stage of that name."""
        return self._stages.get(name)

    @cached_property
    def _stages(self) -> Mapping[str, StageNow]:
        return {stage.name: stage for stage in self.stages}

    def failed_above(self, stage: StageNow) -> str:
        """The failed stage that a stage waits for, itself or by way of others; empty where none failed."""
        above = list(stage.inputs)
        for name in above:  # grows while it is walked
            source = self.stage(name)
            if source is not None and source.state == "failed":
                return name
            above += [other for other in (source.inputs if source else ()) if other not in above]
        return ""
