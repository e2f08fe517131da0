"""Puts intents and settlements on disk for many requests at a time: one transaction each for all that wait.

A commit costs one flush of the disk, whether it has one row or a hundred. It runs in a thread of its own, so that
the event loop goes on; what comes meanwhile is in the next group.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from charter.inference.endpoint.gate import SpendingGate
from charter.ledger.calls import CallStore, NewCall, Settlement

GATHER_SECONDS = 0.005
"""Waiting for others to join costs no throughput, as other requests are in flight; a flush takes about as long."""


class CallJournal:
    """The store of calls, as the event loop uses it."""

    def __init__(self, calls: CallStore, gate: SpendingGate | None = None) -> None:
        self._calls, self._gate = calls, gate
        self._turned_away: set[str] = set()
        """Calls that never were, for the gate did not let them pass: nothing of them is written."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="charter-calls")
        self._intents: list[NewCall] = []
        self._settlements: list[Settlement] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None

    async def intend(self, call: NewCall) -> None:
        """Write a call to disk before it is sent; BudgetError, with nothing written, where the budget has no room."""
        if self._gate is not None:
            try:
                await self._gate.admit(call)
            except BaseException:
                self._turned_away.add(call.call_id)
                raise
        self._intents.append(call)
        await self._written()

    async def settle(self, settlement: Settlement) -> None:
        """Write the outcome of a call to disk, with its answer."""
        if settlement.call_id in self._turned_away:
            return
        if self._gate is not None:
            self._gate.settle(settlement)
        self._settlements.append(settlement)
        await self._written()

    async def answers(self, keys: list[str]) -> dict[str, str]:
        """Stored answers by key."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._calls.answers, keys)

    async def forget_since(self, since: float, *, model: str) -> int:
        """Forget a served model's answers since a time (seconds since 1970); how many there were."""
        forget = partial(self._calls.forget_since, since, model=model)
        return await asyncio.get_running_loop().run_in_executor(self._thread, forget)

    async def close(self) -> None:
        """Write what waits, and end the thread."""
        while self._writer is not None:
            await asyncio.wait([self._writer])
        self._thread.shutdown()

    def _written(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(future)
        if self._writer is None:
            self._writer = loop.create_task(self._write_all())
        return future

    async def _write_all(self) -> None:
        """Write group after group until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_SECONDS)
                intents, self._intents = self._intents, []
                settlements, self._settlements = self._settlements, []
                waiting, self._waiting = self._waiting, []
                problem: Exception | None = None
                try:
                    await loop.run_in_executor(self._thread, self._write, settlements, intents)
                except Exception as error:
                    problem = error  # told to everyone who waits for this group
                for future in waiting:
                    if future.done():
                        continue
                    future.set_result(None) if problem is None else future.set_exception(problem)
        finally:
            self._writer = None

    def _write(self, settlements: list[Settlement], intents: list[NewCall]) -> None:
        self._calls.record(intents, settlements)
