"""The client of a served model: one thread with an event loop, shared by all who ask.

`submit` hands requests over and returns a future; stored answers are given without a request. Everything that is sent
has an intent on disk first, and nothing is handed back before it is on disk itself.

A second request for what takes unusually long, where requests cost nothing.

After the 95th percentile of the latencies so far, so that about one request in twenty is sent twice (Dean and Barroso
2013, "The Tail at Scale", CACM 56). The first answer wins, the other request is given up.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from charter.errors import UsageError, needing
from charter.inference.endpoint.batch_desk import BatchDesk
from charter.inference.endpoint.call import CallReply, CallRequest
from charter.inference.endpoint.desk import Desk
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.identity import Canaries, ServerSetting
from charter.inference.endpoint.settling import CallJournal
from charter.inference.endpoint.transport import Transport, read_key
from charter.inference.endpoint.wanted import Batch, Counts, PoolStats
from charter.ledger.calls import CallStore
from charter.spec.project import MOST_BATCHED, Serving

SHARE = 0.95
FIRST_AFTER = 20
"""Answers before there is a 95th percentile to speak of: one in twenty lies beyond it."""
LOOK_SECONDS, LOOK_SHARE = 0.05, 0.25
"""A straggler takes many times as long as others; being late by this share of their time does not matter."""


async def hedge(desk: Desk) -> None:
    """Look for stragglers until cancelled."""
    loop = asyncio.get_running_loop()
    usual: float | None = None
    while True:
        await asyncio.sleep(max(LOOK_SECONDS, LOOK_SHARE * (usual or 0.0)))
        usual = desk.counts.latency(SHARE) if len(desk.counts.latencies) >= FIRST_AFTER else None
        if usual is None:
            continue
        now = loop.time()
        late = [
            wanted
            for wanted in desk.open.values()
            if len(wanted.running) == 1 and now - next(iter(wanted.running.values())) > max(usual, LOOK_SECONDS)
        ]
        for wanted in late:
            able = [lane for lane in desk.lanes if lane.has_room(now)]
            if able and not wanted.is_answered and wanted.attempts < desk.setting.serving.max_attempts:
                desk.ask_again(wanted, min(able, key=lambda lane: lane.in_flight / lane.at_once.limit))


QUEUE_PER_SLOT = 16
"""Requests that may wait for each that may be in flight: enough to find neighbours with a common prefix."""
TELL_SECONDS = 1.0
"""Between signs of life; hang timeouts are minutes."""


class EndpointPool:
    """Asks the servers of one model. Threads may share a pool."""

    def __init__(self, setting: ServerSetting, calls: CallStore) -> None:
        """Use `EndpointPool.open`."""
        serving = setting.serving
        self._key = read_key(serving.api_key, of=setting.name) if serving.api_key else None
        self._setting, self._calls = setting, calls
        self._most_waiting = MOST_BATCHED if serving.batch else QUEUE_PER_SLOT * serving.concurrency
        self._room = threading.Condition()
        self._waiting = 0
        self._batches: set[Batch] = set()
        self._is_closed = False
        self._desk: Desk | None = None
        self._journal: CallJournal | None = None
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"charter-ask-{setting.name}", daemon=True)

    @classmethod
    def open(
        cls,
        name: str,
        serving: Serving,
        calls: CallStore,
        *,
        tell: Callable[[], None] = lambda: None,
        canaries: Canaries | None = None,
        gate: SpendingGate | None = None,
        directory: Path | None = None,
    ) -> "EndpointPool":
        """The pool for a model of the project; `tell` is called, about once a second, when answers come.

        With `canaries`, every server is asked them before its answers are used, and again and again after. With a
        `gate`, nothing is sent that could pass the stage's allowance. Where the model is asked by the batch interface,
        what is under way is noted in `directory`.

        Raises UsageError when the key is not where the project says, MissingExtraError without aiohttp.
        """
        if serving.endpoint is None:
            raise UsageError(f"serving.{name} names no endpoint")
        with needing("asking a server needs aiohttp", "run"):
            import aiohttp  # noqa: F401
        endpoints = tuple(dict.fromkeys((serving.endpoint, *serving.also_endpoints)))
        setting = ServerSetting(
            name=name,
            serving=serving,
            endpoints=endpoints,
            tell=tell,
            canaries=canaries,
            gate=gate,
            directory=directory,
        )
        pool = cls(setting, calls)
        pool._thread.start()
        pool._ready.wait()
        if pool._failure is not None:
            raise pool._failure
        return pool

    def submit(self, requests: Sequence[CallRequest]) -> "Future[list[CallReply]]":
        """The replies to some requests, in their order.

        Waits while too many requests are waiting already. The future raises DataError or StageError when the answers
        cannot be had, and is cancelled when the pool is closed.
        """
        future: Future[list[CallReply]] = Future()
        if not requests:
            future.set_result([])
            return future
        batch = Batch(tuple(requests), future, self._over)
        with self._room:
            self._room.wait_for(
                lambda: self._is_closed or not self._waiting or self._waiting + len(requests) <= self._most_waiting
            )
            if self._is_closed or not self._thread.is_alive():
                raise UsageError(f"the connection to {self._setting.name} is closed")
            assert self._desk is not None
            self._waiting += len(requests)
            self._batches.add(batch)
            self._loop.call_soon_threadsafe(self._desk.begin, batch)
        return future

    def confirm(self) -> None:
        """Look once more at every server that has answered since it was last looked at.

        Raises ModelChangedError where one has another model now, and what else ends a pool.
        """
        with self._room:
            if self._is_closed or not self._thread.is_alive():
                return
            assert self._desk is not None
            confirming = asyncio.run_coroutine_threadsafe(self._desk.confirm(), self._loop)
        confirming.result()

    def settled_micro_usd(self) -> int:
        """Known cost of the calls that this pool has settled so far."""
        return self._journal.settled_micro_usd if self._journal is not None else 0

    def stats(self) -> PoolStats:
        """Figures so far."""
        counts = self._desk.counts if self._desk else Counts()
        return counts.snapshot()

    def close(self) -> None:
        """Give up what is under way and end the thread; its calls are recorded as unknown. May be called twice."""
        with self._room:
            if self._is_closed:
                return
            self._is_closed = True
            self._room.notify_all()
        assert self._end is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def __enter__(self) -> "EndpointPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _over(self, batch: Batch) -> None:
        with self._room:
            if batch in self._batches:
                self._batches.discard(batch)
                self._waiting -= len(batch.requests)
                self._room.notify_all()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            # Told by `open`, or to everyone who waits.
            self._failure = error
            for batch in list(self._batches):
                batch.fail(error)
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        """The life of the thread."""
        serving = self._setting.serving
        journal = self._journal = CallJournal(self._calls, self._setting.gate)
        is_message = serving.api == "messages"
        transport = Transport(self._key, timeout_seconds=serving.request_timeout, is_message=is_message)
        self._end = asyncio.Event()
        self._desk = (BatchDesk if serving.batch else Desk)(self._told_seldom(), journal, transport)
        looking = asyncio.create_task(self._setting.gate.keep_looking()) if self._setting.gate is not None else None
        hedging = None if serving.billed or serving.batch else asyncio.create_task(hedge(self._desk))
        self._ready.set()
        await self._end.wait()
        for batch in list(self._batches):
            batch.cancel()
        for task in (hedging, looking):
            if task is not None:
                task.cancel()
        await self._desk.close()
        await journal.close()
        await transport.close()
        await self._loop.shutdown_default_executor()

    def _told_seldom(self) -> ServerSetting:
        """The setting, with signs of life at most once a second."""
        last = float("-inf")

        def tell() -> None:
            nonlocal last
            now = self._loop.time()
            if now - last >= TELL_SECONDS:
                last = now
                self._setting.tell()

        return replace(self._setting, tell=tell)
