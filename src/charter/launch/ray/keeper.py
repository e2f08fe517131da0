"""The keeper: a detached actor in a Ray cluster that starts the tasks of Charter's jobs and remembers how they went.

It outlives whoever submits, so a job goes on when its supervisor dies, and the next one finds it. Used inside the
cluster, where Charter may not be installed: nothing but Ray, the standard library and two modules of its kind.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from charter.launch.job import ENGINE_JOB, NODE_RANK, RESTART, SHARD
from charter.launch.ray.cluster_view import (
    available,
    death_of,
    draining,
    has_room,
    matching_ids,
    needs_of,
    other_accelerators,
    why_waiting,
)
from charter.launch.ray.job_records import RESTARTED, JobRecord, StartOutcome, UnitStart, worst
from charter.launch.ray.node_task import run_agent
from charter.launch.ray.task_outcome import end_tasks, outcome_of_task

KEPT_JOBS = 1000
"""Ended jobs that are remembered."""
OTHERS_SECONDS = 45.0
"""How long the other nodes of a job have to end, or Ray to say that one is lost, after the first has failed."""
ORDERS_SECONDS = 20.0
"""How long a task's question is kept open when there is nothing to say; a task whose keeper is gone ends so soon."""
CALLS_AT_ONCE = 100_000
"""Questions that may be open: one for every running task."""
WATCH_SECONDS = 1.0
"""How often the cluster is asked which nodes are to be taken away."""


class Keeper:
    """Holds the jobs of a cluster; an asynchronous actor, so a thousand shards are a thousand waits in one thread."""

    def __init__(self) -> None:
        self._records: dict[str, JobRecord] = {}
        self._secrets: dict[str, dict[str, str]] = {}
        self._refs: dict[tuple[str, int], list[Any]] = {}
        self._claims: dict[tuple[str, int], tuple[int, float, bool]] = {}
        """Of units that were let go on: nodes, accelerators of each, and whether an engine takes them by itself."""
        self._work: set[asyncio.Task[None]] = set()
        self._run_agent = ray.remote(run_agent)
        self._watching: asyncio.Task[None] | None = None

    async def submit(self, request: dict[str, Any], secrets: dict[str, str]) -> str:
        """Start a job; one that is known by its name is left as it is."""
        name = request["name"]
        if name not in self._records:
            self._forget_old()
            record = self._records[name] = JobRecord.of(request)
            self._secrets[name] = secrets
            self._background(self._run(record))
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return str(name)

    async def knows(self, name: str) -> bool:
        """Return True if a job of this name was submitted."""
        return name in self._records

    async def poll(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """Return the states of jobs; one that is not known is left out."""
        return {name: record.state() for name in names if (record := self._records.get(name)) is not None}

    async def attempts(self, name: str) -> list[dict[str, Any]]:
        """Every start of a job."""
        record = self._records.get(name)
        return record.attempts() if record is not None else []

    async def log_path(self, name: str) -> str | None:
        """Return the path of a job's output."""
        record = self._records.get(name)
        return record.request["log"] if record is not None else None

    async def cancel(self, name: str) -> None:
        """End a job now; returns when nothing of it runs on nodes that answer."""
        record = self._records.get(name)
        if record is None or record.ended:
            return
        record.cancelled = True
        for unit in record.units:
            if unit.last is not None:
                unit.last.news.set()
        refs = [ref for number in range(len(record.units)) for ref in self._refs.get((name, number), ())]
        await end_tasks(refs)
        for unit in record.units:
            if unit.last is not None and unit.last.outcome is None:
                # It ends just now, or is on a node that does not answer and is told when it does.
                unit.last.loss = unit.last.loss or StartOutcome(cause="cancelled", reason="cancelled")
                unit.last.over.set()

    async def started(self, name: str, unit: int, restart: int, rank: int, node: str, node_id: str) -> bool:
        """A task has reached its node; whether it is still wanted."""
        start = self._start(name, unit, restart)
        if start is None or start.outcome is not None or self._records[name].cancelled:
            return False
        start.nodes[rank] = node
        start.node_ids.add(node_id)
        start.started_at = start.started_at or time.time()
        return True

    async def orders(self, name: str, unit: int, restart: int, rank: int, told: bool = False) -> str:
        """Return what a running task should do: `end`, or `stop` at a checkpoint; empty when nothing came for a while.

        Answers as soon as there is something to say, which `told` tasks know already.
        """
        start = self._start(name, unit, restart)
        if start is not None and not self._records[name].cancelled and not (start.notice and not told):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for((start.over if told else start.news).wait(), ORDERS_SECONDS)
        if start is None or start.outcome is not None or start.loss is not None or self._records[name].cancelled:
            return "end"
        return "stop" if start.notice else ""

    def _start(self, name: str, unit: int, restart: int) -> UnitStart | None:
        """The start that a task belongs to; None when the unit has been started again since."""
        record = self._records.get(name)
        last = record.units[unit].last if record is not None else None
        return last if last is not None and last.restart == restart else None

    async def _run(self, record: JobRecord) -> None:
        name = record.request["name"]
        await asyncio.gather(*(self._run_unit(record, number) for number in range(len(record.units))))
        self._secrets.pop(name, None)

    async def _run_unit(self, record: JobRecord, number: int) -> None:
        """Start a unit, and again while its nodes are lost, until it has an outcome of its own."""
        unit = record.units[number]
        while unit.outcome is None:
            start = UnitStart(restart=len(unit.starts))
            unit.starts.append(start)
            try:
                outcome = await self._one_start(record, number, start)
            except Exception as error:  # whatever Ray refuses about a request ends the job, with what it said
                outcome = StartOutcome(cause="failed", exit_code=1, reason=f"{type(error).__name__}: {error}"[:500])
            start.outcome, start.ended_at = outcome, time.time()
            start.over.set()
            start.news.set()
            again = outcome.cause in RESTARTED and start.restart < record.request["max_restarts"]
            if record.cancelled:
                unit.outcome = StartOutcome(cause="cancelled", reason="cancelled")
            elif not again:
                unit.outcome = outcome
            self._refs.pop((record.request["name"], number), None)
            self._claims.pop((record.request["name"], number), None)

    async def _one_start(self, record: JobRecord, number: int, start: UnitStart) -> StartOutcome:
        request = record.request
        nodes = request["tasks"].get("nodes", 1)
        if (refusal := await self._admit(record, number, start)) is not None:
            return refusal
        options = await self._options(request)
        group = None
        if nodes > 1:
            bundle = dict(options["resources"], CPU=options["num_cpus"], GPU=options["num_gpus"])
            bundle = {name: amount for name, amount in {**bundle, "memory": options["memory"]}.items() if amount}
            selector = options.pop("label_selector")
            group = placement_group(
                [bundle] * nodes,
                strategy=request["tasks"]["placement_strategy"],
                bundle_label_selector=[selector] * nodes if selector else None,
            )
        try:
            refs = []
            for rank in range(nodes):
                placed = {} if group is None else {"scheduling_strategy": _in_bundle(group, rank)}
                order = _order(record, number, start, rank)
                task = self._run_agent.options(name=f"{request['name']}-{number}-{rank}", **options, **placed)
                refs.append(task.remote(order, self._secrets[request["name"]], _myself()))
            self._refs[request["name"], number] = refs
            if record.cancelled:
                await end_tasks(refs)
            return await self._outcome_of(refs, start)
        finally:
            if group is not None:
                remove_placement_group(group)

    async def _admit(self, record: JobRecord, number: int, start: UnitStart) -> StartOutcome | None:
        """Wait until a unit has its accelerators beside engines that take theirs by themselves; a refusal otherwise.

        Ray knows nothing of what an engine will take before it does. Without such an engine, Ray alone decides.
        """
        request, mine = record.request, (record.request["name"], number)
        count, resources = needs_of(request)
        drives, each = "engine_takes" in request["tasks"], float(resources.get("GPU", 0))
        while each and not record.cancelled and (drives or any(claim[2] for claim in self._claims.values())):
            nodes = await asyncio.to_thread(ray.nodes)
            free = await asyncio.to_thread(available) if drives else {}
            if drives and (other := other_accelerators(nodes, request)):
                reason = f"the engine takes any accelerators of the cluster, and those of {other} are of another kind"
                return StartOutcome(cause="failed", exit_code=1, reason=reason)
            if has_room(nodes, request, [claim[:2] for claim in self._claims.values() if drives or claim[2]], free):
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(start.news.wait(), WATCH_SECONDS)
        if each:
            self._claims[mine] = count, each, drives
        return StartOutcome(cause="cancelled", reason="cancelled") if record.cancelled else None

    async def _options(self, request: Mapping[str, Any]) -> dict[str, Any]:
        resources = dict(request["resources_per_task"])
        selector = dict(request["label_selector"])
        if request["exclude_nodes"]:
            ids = matching_ids(await asyncio.to_thread(ray.nodes), request["exclude_nodes"])
            if ids:
                selector["ray.io/node-id"] = f"!in({','.join(ids)})"
        return {
            "num_cpus": resources.pop("CPU", 1),
            "num_gpus": resources.pop("GPU", 0),
            "memory": resources.pop("memory", None),
            "resources": resources,
            "label_selector": selector,
            "max_retries": 0,
        }

    async def _outcome_of(self, refs: list[Any], start: UnitStart) -> StartOutcome:
        """Wait for all nodes of a start; when one fails the others get some time, and are ended then."""
        loss = asyncio.ensure_future(start.over.wait())
        waiting = {asyncio.ensure_future(outcome_of_task(ref, start)) for ref in refs}
        outcomes: list[StartOutcome] = []
        deadline: float | None = None
        while waiting and start.loss is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ended, _ = await asyncio.wait([*waiting, loss], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            ready = [task for task in waiting if task in ended]
            waiting.difference_update(ready)
            outcomes += [task.result() for task in ready]
            if not ended:
                await end_tasks(refs)
                deadline = None
            elif any(outcome.cause in RESTARTED for outcome in outcomes):
                deadline = time.monotonic()
            elif deadline is None and any(outcome.cause != "done" for outcome in outcomes):
                deadline = time.monotonic() + OTHERS_SECONDS
        loss.cancel()
        if start.loss is not None:
            # Tasks on the lost node answer when its connections time out, which may be minutes.
            self._background(end_tasks(refs))
            outcomes.append(start.loss)
        return worst(outcomes)

    async def _watch(self) -> None:
        """Notice nodes that died or are to be taken away, and why units wait."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            active = [record for record in self._records.values() if not record.ended]
            if not active:
                continue
            with contextlib.suppress(Exception):  # whatever the cluster could not say now it is asked again
                leaving = await asyncio.to_thread(draining)
                nodes = await asyncio.to_thread(ray.nodes)
                for record in active:
                    why = why_waiting(nodes, record.request)
                    for unit in record.units:
                        unit.waiting_for = why
                        if unit.last is not None and unit.last.outcome is None:
                            _notice(unit.last, nodes, leaving)

    def _forget_old(self) -> None:
        ended = [name for name, record in self._records.items() if record.ended]
        for name in ended[: max(0, len(ended) - KEPT_JOBS)]:
            del self._records[name]

    def _background(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _order(record: JobRecord, number: int, start: UnitStart, rank: int) -> dict[str, Any]:
    request = record.request
    shard = record.units[number].shard
    place = {NODE_RANK: str(rank)} if shard is None else {SHARD: str(shard)}
    identity = {**place, RESTART: str(start.restart), ENGINE_JOB: request["name"]}
    return {
        "name": request["name"],
        "unit": number,
        "restart": start.restart,
        "rank": rank,
        "command": request["entrypoint"],
        "directory": request["directory"],
        "log": request["log"],
        "gpus": request["resources_per_task"].get("GPU", 0),
        "environment": {**request["environment"], **identity},
        "time_limit_seconds": request["time_limit_seconds"],
        "stop_before_seconds": request["stop_before_seconds"],
    }


def _notice(start: UnitStart, nodes: list[dict[str, Any]], leaving: set[str]) -> None:
    """Tell a start what has become of its nodes.

    Ray itself fails a task when its connection breaks, which a node that falls silent does not do for minutes.
    """
    if start.node_ids & leaving:
        start.notice = True
        start.news.set()
    cause, word = death_of(nodes, start.node_ids)
    if cause:
        start.loss = StartOutcome(cause=cause, exit_code=-9, reason=word)
        start.over.set()
        start.news.set()


def _in_bundle(group: Any, rank: int) -> Any:
    return PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=rank)


def _myself() -> Any:
    return ray.get_runtime_context().current_actor
