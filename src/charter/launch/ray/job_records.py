"""Memory of the keeper of its jobs: units (a whole job, or one shard) and their starts.

Used inside the cluster, where Charter may not be installed: nothing but the standard library and a module of its kind
is imported.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from charter.launch.ray.cluster_view import needs_of

STATES = {
    "": "RUNNING",
    "done": "SUCCEEDED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "preempted": "PREEMPTED",
    "node_lost": "NODE_DIED",
    "time_limit": "TIME_LIMIT",
    "out_of_memory": "OUT_OF_MEMORY",
}
"""Cause of an end -> the word that stands in the records."""
RESTARTED = frozenset({"preempted", "node_lost"})
"""Ends that no program is to blame for: the keeper starts the unit again, elsewhere if it must."""


@dataclass(frozen=True, kw_only=True)
class StartOutcome:
    """End of one start."""

    cause: str
    exit_code: int | None = None
    reason: str = ""


@dataclass(kw_only=True)
class UnitStart:
    """One start of a unit."""

    restart: int
    nodes: dict[int, str] = field(default_factory=dict)
    """Node rank -> node, as its task has told."""
    node_ids: set[str] = field(default_factory=set)
    started_at: float | None = None
    ended_at: float | None = None
    outcome: StartOutcome | None = None
    notice: bool = False
    """One of its nodes is to be taken away: it has been asked to stop at a checkpoint."""
    loss: StartOutcome | None = None
    """How the cluster has given up one of its nodes."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """It has an outcome or a loss."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """The same, or a notice."""


@dataclass(kw_only=True)
class Unit:
    """Part of a job that is started and ended as one: all nodes of a job, or one shard."""

    shard: int | None
    starts: list[UnitStart] = field(default_factory=list)
    outcome: StartOutcome | None = None
    waiting_for: str = ""

    @property
    def last(self) -> UnitStart | None:
        """Its present start, or its last."""
        return self.starts[-1] if self.starts else None

    def state(self) -> dict[str, Any]:
        """Return its state, in the words of `charter.launch.scheduler.JobState`."""
        last = self.last
        before = next((start.outcome for start in reversed(self.starts) if start.outcome is not None), None)
        shown = self.outcome or before or StartOutcome(cause="")
        running = last is not None and last.started_at is not None and last.outcome is None
        phase = "ended" if self.outcome is not None else "running" if running else "queued"
        return {
            "phase": phase,
            "cause": shown.cause,
            "exit_code": self.outcome.exit_code if self.outcome is not None else None,
            "restarts": max(0, len(self.starts) - 1),
            "nodes": [last.nodes[rank] for rank in sorted(last.nodes)] if last is not None else [],
            "reason": self.waiting_for if phase == "queued" else shown.reason,
        }


@dataclass(kw_only=True)
class JobRecord:
    """One job and all that happened to it."""

    request: dict[str, Any]
    units: list[Unit]
    cancelled: bool = False

    @classmethod
    def of(cls, request: dict[str, Any]) -> "JobRecord":
        """A job that has not been started."""
        shards = request["tasks"].get("shards")
        return cls(request=request, units=[Unit(shard=shard) for shard in (range(shards) if shards else (None,))])

    @property
    def ended(self) -> bool:
        """Return True if nothing of it will run any more."""
        return all(unit.outcome is not None for unit in self.units)

    def state(self) -> dict[str, Any]:
        """Return its state; of shards, each by its number, and the whole from all of them."""
        states = [unit.state() for unit in self.units]
        if self.units[0].shard is None:
            return states[0]
        phases = {state["phase"] for state in states}
        ended = phases == {"ended"}
        bad = next((state for state in states if state["phase"] == "ended" and state["cause"] != "done"), None)
        return {
            "phase": "ended" if ended else "queued" if phases == {"queued"} else "running",
            "cause": (bad["cause"] if bad else "done") if ended else "",
            "exit_code": (bad["exit_code"] if bad else 0) if ended else None,
            "restarts": max(state["restarts"] for state in states),
            "nodes": sorted({node for state in states for node in state["nodes"]}),
            "reason": bad["reason"] if bad else next((state["reason"] for state in states if state["reason"]), ""),
            "tasks": {str(number): state for number, state in enumerate(states)},
        }

    def attempts(self) -> list[dict[str, Any]]:
        """Every start that reached a node, oldest first, in the words of `JobAttempt`."""
        count, resources = needs_of(self.request)
        drives = "engine_takes" in self.request["tasks"]
        starts = [
            {
                "job_id": self.request["name"],
                "shard": unit.shard,
                "restart": start.restart,
                "state": STATES[start.outcome.cause if start.outcome else ""],
                "started_at": start.started_at,
                "ended_at": start.ended_at,
                "nodes": [start.nodes[rank] for rank in sorted(start.nodes)],
                "accelerators": int(resources.get("GPU", 0)) * (count if drives else len(start.nodes)),
                "cpus": int(resources.get("CPU", 0)) * (count if drives else len(start.nodes)),
            }
            for unit in self.units
            for start in unit.starts
            if start.started_at is not None
        ]
        return sorted(starts, key=lambda attempt: (attempt["started_at"], attempt["shard"] or 0))


def worst(outcomes: list[StartOutcome]) -> StartOutcome:
    """Of the outcomes of a unit's nodes the one that explains the others: a lost node before the peers that missed it.

    >>> worst([StartOutcome(cause=cause) for cause in ("done", "failed", "node_lost")]).cause
    'node_lost'
    """
    order = ("preempted", "node_lost", "out_of_memory", "time_limit", "failed", "cancelled", "done")
    return min(outcomes, key=lambda outcome: order.index(outcome.cause))
