"""Watch over who answers: puts the fixed questions of `identity` to each server, and stops a pool whose model changed.

A server is asked before its first answer is used, after it was away, and every so many answers. Its other requests go
on meanwhile; a round that differs is put once more before it counts.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from charter.errors import CharterError, StageError, loads_json
from charter.inference.endpoint import settling
from charter.inference.endpoint.call import CallReply, CallRequest
from charter.inference.endpoint.identity import (
    Answer,
    Baseline,
    Canaries,
    How,
    answer_in,
    changed_error,
    changed_listing,
    listed_identity,
)
from charter.inference.endpoint.lanes import Health, Lane
from charter.inference.endpoint.money import Prices
from charter.inference.endpoint.reading import ExchangeReader
from charter.inference.endpoint.rules import Answered, GiveUp, TryAgain, utc_now, wait_seconds
from charter.inference.endpoint.settling import CallJournal
from charter.inference.endpoint.transport import Received, Transport, body_of, path_of
from charter.physics.identity_questions import REPEATS

log = logging.getLogger(__name__)


class _Away(Exception):
    """A server that was lost while its questions were out."""


class _NotComparable(StageError):
    """Answers that cannot be compared in the manner that was tried: another one is, while there is no baseline."""


class ModelWatch:
    """Asks the servers of one pool the fixed questions. Everything here runs in the pool's event loop."""

    def __init__(
        self,
        canaries: Canaries,
        journal: CallJournal,
        transport: Transport,
        reader: ExchangeReader,
        health: Health,
        *,
        prices: Prices,
        at_once: int,
        attempts: int,
        sent: Callable[[CallRequest], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        when_known: Callable[[], None],
    ) -> None:
        self._canaries, self._journal, self._transport = canaries, journal, transport
        self._reader, self._health, self._prices = reader, health, prices
        self._places = asyncio.Semaphore(at_once)
        self._attempts, self._sent, self._spawn, self._when_known = attempts, sent, spawn, when_known
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._first = asyncio.Lock()
        self._baseline: Baseline | None = None
        self._earlier = canaries.sound_until()
        self._sound: dict[str, float] = {}

    def look_where_due(self, lanes: Sequence[Lane]) -> None:
        """Begin to look at servers that are not known yet, or have answered often since the last look."""
        for lane in lanes:
            is_due = not lane.is_known or lane.unwatched >= self._canaries.every
            if is_due and not lane.is_away and lane.endpoint not in self._under_way:
                self.look(lane)

    async def confirm(self, lane: Lane) -> None:
        """Look until no answer of a server is left that came since it was last looked at."""
        while lane.unwatched and not lane.is_away:
            await self.look(lane)

    def look(self, lane: Lane) -> asyncio.Task[None]:
        """Ask one server; the server is then known, or away, and what the task raises ends the pool.

        ModelChangedError: it is another model. StageError: it gives no answer.
        """
        if lane.endpoint not in self._under_way:
            self._under_way[lane.endpoint] = self._spawn(self._look(lane))
        return self._under_way[lane.endpoint]

    async def _look(self, lane: Lane) -> None:
        began, covered = time.time(), min(lane.unwatched, self._canaries.every)
        try:
            await self._compare(lane)
        except _Away:
            return
        finally:
            del self._under_way[lane.endpoint]
        lane.is_known = True
        lane.unwatched -= covered
        self._sound[lane.endpoint] = began
        self._canaries.note_sound(min(self._sound.values()))
        self._when_known()

    async def _compare(self, lane: Lane) -> None:
        async with self._first:
            self._baseline = self._baseline or self._canaries.baseline()
            if self._baseline is None and await self._began_baseline(lane):
                return
        assert self._baseline is not None
        listed = await self._listed(lane)
        if words := changed_listing(self._baseline.listed, listed):
            raise await self._changed(lane, words)
        if self._baseline.how == "none":
            return
        for last in (False, True):
            answers = await self._round(lane, self._baseline.how)
            if not self._baseline.is_other(answers):
                return
            if last:
                raise await self._changed(lane, "its answers to the fixed questions are others")
            lane.is_known = False  # nothing more is sent to it until the second round has decided

    async def _began_baseline(self, lane: Lane) -> bool:
        """Make the baseline of this server's answers; False where another stage of the run was quicker."""
        async with self._canaries.first_asker():
            self._baseline = self._canaries.baseline()
            if self._baseline is not None:
                return False
            mine = await self._new_baseline(lane)
            self._baseline = self._canaries.keep(mine)
            return self._baseline == mine

    async def _changed(self, lane: Lane, why: str) -> CharterError:
        # A server that was never sound has answered nothing; but one of an earlier process may have been this one.
        since = self._sound.get(lane.endpoint, 0.0 if self._sound else self._earlier)
        dropped = await self._journal.forget_since(since, model=self._canaries.served) if since else 0
        return changed_error(self._canaries, lane.endpoint, why, since=since, dropped=dropped)

    async def _new_baseline(self, lane: Lane) -> Baseline:
        """Ask five times in the sharpest manner that the server can answer in."""
        listed, why = await self._listed(lane), ""
        for how in self._canaries.manners:
            try:
                repeats = [await self._round(lane, how) for _ in range(REPEATS)]
            except _NotComparable as reason:
                why = str(reason)
                continue
            return Baseline(
                how=how, repeats=tuple(map(tuple, repeats)), endpoint=lane.endpoint, at=time.time(), listed=listed
            )
        log.warning("%s: a change of its model would not be noticed: %s", self._canaries.declared, why)
        return Baseline(how="none", repeats=(), endpoint=lane.endpoint, at=time.time(), why=why, listed=listed)

    async def _round(self, lane: Lane, how: How) -> Sequence[Answer]:
        replies = await _all([self._ask(request, lane) for request in self._canaries.requests(how)])
        answers = [answer_in(reply, how) for reply in replies]
        if any(answer is None for answer in answers):
            raise _NotComparable(f"{lane.endpoint} gives no log-probabilities of a fixed question")
        return [answer for answer in answers if answer is not None]

    async def _listed(self, lane: Lane) -> dict[str, str]:
        body = await self._transport.get(f"{lane.endpoint}/models")
        try:
            return listed_identity(loads_json(body), self._canaries.served) if body else {}
        except ValueError:
            return {}

    async def _ask(self, request: CallRequest, lane: Lane) -> CallReply:
        """Put one question until it is answered: billed like any other, its answer not stored."""
        trouble = ""
        async with self._places:
            for attempt in range(1, self._attempts + 1):
                step = await self._exchange(request, lane, attempt)
                if isinstance(step, Answered):
                    return step.parsed.reply
                if isinstance(step, GiveUp):
                    if step.stops_all:
                        raise step.error
                    raise _NotComparable(str(step.error).partition("\n")[0])
                trouble = f"{step.cause}: {step.detail}"
                self._health.failed(step, lane, asyncio.get_running_loop().time())
                if lane.is_away:
                    raise _Away
                if step.cause == "invalid" and attempt > 1 and self._baseline is None:
                    raise _NotComparable(step.detail)
                if attempt < self._attempts:
                    await asyncio.sleep(wait_seconds(request.key, attempt, step.retry_after, utc_now()))
        raise StageError(
            f"{self._canaries.declared} at {lane.endpoint} did not answer a fixed question in {self._attempts} "
            f"requests ({trouble}); see to the server and run again: what was answered is kept"
        )

    async def _exchange(self, request: CallRequest, lane: Lane, attempt: int) -> Answered | TryAgain | GiveUp:
        call = settling.new_call(request, lane.endpoint, attempt, self._prices)
        is_sent = False
        try:
            await self._journal.intend(call)
            self._sent(request)
            is_sent = True
            body = body_of(request, self._reader.limit_name)
            exchange = await self._transport.post(lane.endpoint + path_of(request), body, call.call_id)
        except asyncio.CancelledError:
            gone = settling.not_known if is_sent else settling.not_done
            await self._journal.settle(gone(call, "given up by the client"))
            raise
        step = self._reader.read(exchange, request, lane, may_repeat=True)
        if isinstance(exchange, Received) and isinstance(step, TryAgain):
            exchange.hang_up()
        await self._journal.settle(replace(settling.settlement_of(call, step, self._prices, request), answer=None))
        return step


async def _all(asks: "Sequence[Awaitable[CallReply]]") -> list[CallReply]:
    """Await all; the first failure ends the others, whose requests are settled before it is raised."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
