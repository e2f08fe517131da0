"""Waiting for a child process from a request: as long as its browser does."""

import asyncio
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from charter.dashboard.work.pool import Workers

Json = Mapping[str, Any]
LOOK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Messages of a process within the time that a request may take."""

    found: Json | None = None
    """The answer: `found` or `error`; None while it works."""
    progress: Json
    gone: bool = False
    """The browser no longer waits."""


async def hear(
    request: Request,
    workers: Workers,
    job: str,
    arguments: Json,
    state: Hashable,
    *,
    hold_seconds: float,
    linger_seconds: float = 0.0,
) -> Heard:
    """Ask, and wait until there is an answer, the time is over or the browser has gone.

    Work that nobody waits for `linger_seconds` after this is ended: cancelling a request cancels its work.
    """
    job_request = workers.ask(job, arguments, state)
    loop, gone = asyncio.get_running_loop(), False
    until = loop.time() + hold_seconds
    try:
        while not job_request.answer.done() and loop.time() < until:
            if gone := await request.is_disconnected():
                break
            await asyncio.sleep(min(LOOK_SECONDS, 0.02 + (until - loop.time()) / 100))
        done = job_request.answer.done() and not job_request.answer.cancelled()
        return Heard(
            found=job_request.answer.result() if done else None, progress=dict(job_request.progress), gone=gone
        )
    finally:
        workers.leave(job_request, linger_seconds=linger_seconds)
