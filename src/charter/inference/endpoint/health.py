"""Health of a pool's servers: one that fails again and again is left out until it answers a free question."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from charter.errors import StageError
from charter.inference.endpoint.lanes import Lane
from charter.inference.endpoint.rules import TryAgain
from charter.inference.endpoint.shapes import one_line
from charter.inference.endpoint.transport import Transport

UNWELL_AFTER = 5
"""Failures in a row after which a server's health is asked for; at 20 % failures once in 3,000 requests."""
LONGEST_TROUBLE = 200


class Health:
    """Watches the servers of one model."""

    def __init__(
        self,
        name: str,
        lanes: Sequence[Lane],
        transport: Transport,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        when_back: Callable[[], None],
        when_lost: Callable[[StageError], None],
        most_checks: int,
    ) -> None:
        self._name, self._lanes, self._transport = name, lanes, transport
        self._spawn, self._when_back, self._when_lost = spawn, when_back, when_lost
        self._most_checks = most_checks
        self._failures: Counter[str] = Counter()

    def answered(self, lane: Lane) -> None:
        """A server gave a valid reply."""
        self._failures[lane.endpoint] = 0

    def failed(self, step: TryAgain, lane: Lane, now: float) -> None:
        """A server failed; one that only has too much to do, or talks nonsense, is there."""
        if step.cause in ("busy", "invalid") or lane.is_away:
            return
        self._failures[lane.endpoint] += 1
        if step.cause == "connect" or self._failures[lane.endpoint] >= UNWELL_AFTER:
            self._failures[lane.endpoint] = 0
            lane.not_reached(now, one_line(step.detail, LONGEST_TROUBLE))
            self._spawn(self._watch(lane))

    async def _watch(self, lane: Lane) -> None:
        """Ask for a server's health until it is back, or all are away for good."""
        loop = asyncio.get_running_loop()
        while lane.is_away:
            await asyncio.sleep(lane.closed_until - loop.time())
            if await self._transport.is_alive(f"{lane.endpoint}/models"):
                lane.reached()
                self._when_back()
                return
            lane.not_reached(loop.time(), lane.last_trouble)
            if all(other.failed_checks >= self._most_checks for other in self._lanes):
                places = "; ".join(f"{other.endpoint} ({other.last_trouble})" for other in self._lanes)
                self._when_lost(
                    StageError(f"no server answers for {self._name}: {places}; run again once one does, or give others")
                )
                return
