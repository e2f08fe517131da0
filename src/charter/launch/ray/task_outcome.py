"""Outcome of a task of a Ray cluster: its own word, or Ray's; and how a task is ended.

Used inside the cluster, where Charter may not be installed: nothing but Ray and the standard library is imported.
"""

import asyncio
import contextlib
import time
from typing import Any

import ray

from charter.launch.ray.cluster_view import all_answer, death_of
from charter.launch.ray.job_records import StartOutcome, UnitStart

FORCE_SECONDS = 8.0
"""How long a task has to end its process before Ray kills the worker under it."""
LOOK_SECONDS = 1.0
SAME_MOMENT_SECONDS = 5.0
"""How much sooner than its node a worker may be seen to end, when both are lost at once."""
VERDICT_SECONDS = 180.0
"""How long Ray may take to count a silent node as lost: by its own settings most of a minute."""


async def outcome_of_task(ref: Any, start: UnitStart) -> StartOutcome:
    """Wait for the end of one task of a start, and say how it ended."""
    try:
        result = await ref
    except ray.exceptions.TaskCancelledError:
        return StartOutcome(cause="cancelled", reason="cancelled")
    except ray.exceptions.OutOfMemoryError as error:
        return StartOutcome(cause="out_of_memory", exit_code=-9, reason=_first_line(error))
    except ray.exceptions.RayTaskError as error:
        return StartOutcome(cause="failed", exit_code=1, reason=_first_line(error.cause or error))
    except ray.exceptions.RayError as error:
        # A worker that vanishes may be a kill, or the first that is seen of a lost node.
        cause, word = await _death(start, sure=isinstance(error, ray.exceptions.NodeDiedError))
        return StartOutcome(cause=cause or "failed", exit_code=-9, reason=word or _first_line(error))
    cause = result["cause"]
    if start.notice and cause != "done":
        return StartOutcome(cause="preempted", exit_code=result["exit_code"], reason="DRAINING")
    return StartOutcome(cause=cause, exit_code=result["exit_code"], reason=result.get("reason", cause.upper()))


async def _death(start: UnitStart, *, sure: bool) -> tuple[str, str]:
    """Return whether a node of a start died under a task: Ray's word, waited for while a node does not answer."""
    began = time.monotonic()
    while True:
        nodes = await asyncio.to_thread(ray.nodes)
        cause, word = death_of(nodes, start.node_ids)
        if cause:
            return cause, word
        if start.notice:
            return "preempted", "DRAINING"
        waited = time.monotonic() - began
        silent = not await asyncio.to_thread(all_answer, nodes, start.node_ids)
        if waited > (VERDICT_SECONDS if silent else SAME_MOMENT_SECONDS):
            return ("node_lost", "NODE_DIED") if sure or silent else ("", "")
        await asyncio.sleep(LOOK_SECONDS)


async def end_tasks(refs: list[Any]) -> None:
    """Ask tasks to end what they run, and kill the workers of those that do not."""
    for ref in refs:
        with contextlib.suppress(Exception):
            ray.cancel(ref, force=False)
    if not refs:
        return
    _, left = await asyncio.wait([asyncio.ensure_future(_quietly(ref)) for ref in refs], timeout=FORCE_SECONDS)
    if left:
        for ref in refs:
            with contextlib.suppress(Exception):
                ray.cancel(ref, force=True)


async def _quietly(ref: Any) -> None:
    with contextlib.suppress(Exception):
        await ref


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]
