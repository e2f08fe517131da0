"""One attempt at one stage, as a frozen value, and how long it took under clocks that may jump."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypedDict

Clock = Literal["monotonic", "wall", "wall_backwards", "engine", "imported"]
NO_TAGS = "{}"


class Outcome(StrEnum):
    """End of an attempt, or that it has not ended."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    HUNG = "hung"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of one stage: what it ran on, how long, how far, and at which price.

    Counts (`tokens`, `pairs`, `episodes`, `records`) are what this attempt processed, kept or not.
    """

    attempt_id: int
    run: str
    stage: str
    kind: str
    number: int
    """1 for the first attempt at this stage in this run."""
    fingerprint: str
    accelerator: str
    count: int
    """Billed units: accelerators, or 1 for a machine that is priced as a whole."""
    infra: str
    market: str
    started_at: float
    """Unix seconds by the wall clock; for display and for the charge period."""
    duration_milliseconds: int
    """By the monotonic clock where the caller gave one; up to the last heartbeat while running."""
    clock: Clock
    """Which clock the duration is from; `wall_backwards`: the clock was set back, the duration stood; `engine`: the
    records of the scheduler that ran it, in the place of what was measured here; `imported`: the log of a run that
    somebody else started (`charter artifacts import`)."""
    last_heartbeat: float
    first_step: int
    last_step: int
    outcome: Outcome
    kept_step: int | None = None
    """Last step known to be in a durable checkpoint, when the caller told."""
    tokens: int = 0
    pairs: int = 0
    episodes: int = 0
    records: int = 0
    price_micro_usd_per_hour: int | None = None
    """Of one billed unit; None where no price is known. On a machine that attempts share, times the mean share."""
    price_source: str | None = None
    price_as_of: str | None = None
    host: str = ""
    pid: int = 0
    note: str = ""
    job_id: str | None = None
    """What the scheduler calls the job that this attempt was."""
    nodes: str | None = None
    """The machines it ran on, as the scheduler writes them."""
    owner: str | None = None
    """Person or team that it is billed to."""
    tags: str = NO_TAGS
    """The project's tags as JSON with sorted keys, so that equal tags are equal texts."""
    shard: int | None = None
    """Which part of a stage that is computed in independent parts; None for the whole stage."""
    energy_joules: int | None = None
    """What its machines drew, where somebody measured it."""
    energy_source: str | None = None
    """Who measured it: `nvml`, `rapl`, a scheduler's own counter."""
    idle_milliseconds: int | None = None
    """Time in which it held its machines and they did nothing; None where nobody looked."""

    @property
    def ended_at(self) -> float | None:
        """Unix seconds of the end, never before the start; None while running."""
        return None if self.outcome == "running" else self.started_at + self.duration_milliseconds / 1000

    @property
    def is_job(self) -> bool:
        """Return True if a scheduler ran it on machines of its own; else it shared the machine of its run."""
        return self.job_id is not None

    @property
    def is_imported(self) -> bool:
        """Return True if it was read from the log of a run that Charter did not start."""
        return self.clock == "imported"

    @property
    def seconds(self) -> float:
        """Duration of the attempt."""
        return self.duration_milliseconds / 1000


class Reached(TypedDict, total=False):
    """Progress that an attempt reports; counts are this attempt's so far. A missing field, or None, changes nothing."""

    step: int | None
    kept_step: int | None
    """Step of its last durable checkpoint."""
    tokens: int | None
    pairs: int | None
    episodes: int | None
    records: int | None
    energy_joules: int | None
    energy_source: str | None
    idle_milliseconds: int | None
    price_micro_usd_per_hour: int | None
    """Of a machine that several attempts share: its price times the mean share that this one had so far."""


def tags_text(tags: Mapping[str, str] | None) -> str:
    """Tags as the ledger keeps them.

    >>> tags_text({"team": "b", "cost_centre": "12"}), tags_text(None)
    ('{"cost_centre": "12", "team": "b"}', '{}')
    """
    return json.dumps(dict(tags or {}), sort_keys=True, ensure_ascii=False)


def elapsed(
    *,
    started_at: float,
    at: float,
    started_monotonic: float | None,
    monotonic: float | None,
    so_far_milliseconds: int,
) -> tuple[int, Clock]:
    """Whole milliseconds since the start, and the clock that says so; never less than was known before.

    The monotonic clock wins where both readings exist and are in order (they are from one process). Otherwise
    the wall clock decides; when it has been set back, the duration stands still and says so.

    >>> elapsed(started_at=100, at=40, started_monotonic=5, monotonic=7.5, so_far_milliseconds=0)
    (2500, 'monotonic')
    >>> elapsed(started_at=100, at=40, started_monotonic=None, monotonic=None, so_far_milliseconds=1200)
    (1200, 'wall_backwards')
    """
    if started_monotonic is not None and monotonic is not None and monotonic >= started_monotonic:
        return max(round((monotonic - started_monotonic) * 1000), so_far_milliseconds), "monotonic"
    since_start = round((at - started_at) * 1000)
    if since_start < so_far_milliseconds:
        return so_far_milliseconds, "wall_backwards"
    return since_start, "wall"


MOST_NODES = 1_000_000
"""In one range; more is a slip of the pen."""


def expand_nodes(nodes: str | None) -> tuple[str, ...]:
    """The machines of a list as schedulers write it.

    >>> expand_nodes("node[1-3,07],gpu5")
    ('node1', 'node2', 'node3', 'node07', 'gpu5')
    """
    return tuple(_expanded(nodes or ""))


def _expanded(text: str) -> Iterator[str]:
    depth, word = 0, ""
    for sign in f"{text},":
        if sign == "," and depth == 0:
            if word.strip():
                yield from _one(word.strip())
            word = ""
            continue
        depth += (sign == "[") - (sign == "]")
        word += sign


def _one(word: str) -> Iterator[str]:
    head, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    for part in rest.partition("]")[0].split(","):
        first, dash, last = part.partition("-")
        if not dash or not (first.isdecimal() and last.isdecimal()):
            yield f"{head}{part}"
            continue
        if int(last) - int(first) > MOST_NODES:
            yield word
            return
        for number in range(int(first), int(last) + 1):
            yield f"{head}{number:0{len(first)}d}"
