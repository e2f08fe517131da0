"""Desk that answers requests: from the store, or by one of the servers. Everything here runs in one event loop.

A request goes: store -> queue -> intent on disk -> HTTP -> answer and its money on disk -> whoever waits. After a
failure it joins the queue again, later.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from charter.errors import CharterError, StageError, loads_json
from charter.inference.endpoint import settling
from charter.inference.endpoint.call import (
    CallReply,
    CallRequest,
    Prices,
    Usage,
    guessed_tokens,
    is_disputed,
    prices_of,
)
from charter.inference.endpoint.gate import RateLimits
from charter.inference.endpoint.identity import (
    Answer,
    Baseline,
    Canaries,
    ExchangeReader,
    How,
    ServerSetting,
    answer_in,
    changed_error,
    changed_listing,
    listed_identity,
)
from charter.inference.endpoint.lanes import Health, Lane, lane_for
from charter.inference.endpoint.parsing import one_line, usage_in
from charter.inference.endpoint.rules import Answered, GiveUp, Step, TryAgain, told_seconds, utc_now, wait_seconds
from charter.inference.endpoint.settling import CallJournal, from_stored
from charter.inference.endpoint.transport import (
    Received,
    Transport,
    TransportFailure,
    body_of,
    most_bytes_of,
    path_of,
)
from charter.inference.endpoint.wanted import Batch, Counts, PendingQuestion
from charter.ledger.calls import NewCall
from charter.physics.identity_questions import REPEATS

# -------- Watch over who answers: the fixed questions of `identity`; a pool whose model changed is stopped.


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
            url, most_bytes = lane.endpoint + path_of(request), most_bytes_of(request)
            exchange = await self._transport.post(url, body, call.call_id, most_bytes=most_bytes)
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


# -------- Desk that answers requests: from the store, or by one of the servers. Everything here runs in one event loop.


Item = TypeVar("Item")
PREFIX_CHARACTERS = 1024
"""By which a server is chosen: instructions and examples in front, some 256 tokens; caches keep blocks of 16."""


def sort_text(request: CallRequest) -> str:
    """The text of a prompt from its beginning."""
    if not request.turns:
        return request.prompt
    return request.turns[0].content if len(request.turns) == 1 else "\0".join(turn.content for turn in request.turns)


@dataclass(order=True, slots=True)
class _Entry(Generic[Item]):
    text: str
    number: int
    item: Item = field(compare=False)


class AlphabetSweep(Generic[Item]):
    """Waiting requests, taken in sweeps through the alphabet."""

    def __init__(self) -> None:
        self._now: list[_Entry[Item]] = []
        self._next: list[_Entry[Item]] = []
        self._place = ""
        self._count = 0

    def __len__(self) -> int:
        return len(self._now) + len(self._next)

    def add(self, text: str, item: Item) -> None:
        """Let one wait."""
        self._count += 1
        heapq.heappush(self._now if text >= self._place else self._next, _Entry(text, self._count, item))

    def take(self) -> Item:
        """The next one; IndexError when none waits."""
        if not self._now:
            self._now, self._next = self._next, self._now
        entry = heapq.heappop(self._now)
        self._place = entry.text
        return entry.item


class Desk:
    """Answers batches of requests."""

    def __init__(self, setting: ServerSetting, journal: CallJournal, transport: Transport) -> None:
        self.setting = setting
        self.counts = Counts()
        every = None if setting.canaries is None else setting.canaries.every
        self.lanes = [Lane(place, setting.serving.concurrency, look_every=every) for place in setting.endpoints]
        self.open: dict[str, PendingQuestion] = {}
        """Questions that somebody waits for, by key."""
        self._journal, self._transport = journal, transport
        self._prices = prices_of(setting.serving)
        self._queue: AlphabetSweep[PendingQuestion] = AlphabetSweep()
        self._reader = ExchangeReader(setting)
        self._pace = RateLimits(setting.serving.requests_per_minute, setting.serving.tokens_per_minute)
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._health = Health(
            setting.name,
            self.lanes,
            transport,
            spawn=self._spawn,
            when_back=self._pump,
            when_lost=self.stop,
            most_checks=setting.serving.max_attempts,
        )
        self._watch = self._new_watch()

    def begin(self, batch: Batch) -> None:
        """Start to answer a batch."""
        if self._error is not None:
            batch.fail(self._error)
            return
        new: dict[str, PendingQuestion] = {}
        for index, request in enumerate(batch.requests):
            if request.key not in self.open:
                self.open[request.key] = new[request.key] = PendingQuestion(request)
            self.open[request.key].owners.append((batch, index))
        self._spawn(self._look_up(new))

    def stop(self, error: BaseException) -> None:
        """Nothing more is asked: everyone who waits is told why."""
        if self._error is None:
            self._error = error
        for wanted in list(self.open.values()):
            wanted.fail(self._error)
        self._queue = AlphabetSweep()
        for task in self._tasks - {asyncio.current_task(self._loop)}:
            task.cancel()

    async def close(self) -> None:
        """Give up what is under way; its calls are settled as unknown before this returns."""
        self.stop(StageError("the requests were given up"))
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def confirm(self) -> None:
        """Look at every server that has answered since it was last looked at; the error that ends the pool, if any."""
        if self._error is not None:
            raise self._error
        if self._watch is not None:
            await asyncio.gather(*map(self._watch.confirm, self.lanes))

    def ask_again(self, wanted: PendingQuestion, lane: Lane) -> None:
        """Send a question that is under way a second time."""
        self.counts.hedges += 1
        self._send(wanted, lane)

    async def _look_up(self, new: dict[str, PendingQuestion]) -> None:
        """Answer from the store what can be; the rest waits to be sent."""
        for key, text in (await self._journal.answers(list(new))).items():
            reply = from_stored(text)
            self._reader.read_stored(new[key].request, reply)
            self.counts.stored += 1
            self._end(new.pop(key)).answer(reply)
        self._wait(*new.values())

    def _wait(self, *asked: PendingQuestion) -> None:
        """Join the queue, all before the first is sent: neighbours share prefixes."""
        if self._error is None:
            for wanted in asked:
                self._queue.add(sort_text(wanted.request), wanted)
            self._pump()

    def _pump(self) -> None:
        """Send what may be sent."""
        while self._queue and self._in_flight < self.setting.serving.concurrency:
            now = self._loop.time()
            pause = self._pace.seconds_until_open(now)
            if pause > 0:
                return self._pump_in(pause)
            if self._watch is not None:
                self._watch.look_where_due(self.lanes)
            if not any(lane.has_room(now) for lane in self.lanes):
                closed = [lane.closed_until - now for lane in self.lanes if not lane.is_away]
                later = [seconds for seconds in closed if seconds > 0]
                return self._pump_in(min(later)) if later else None
            wanted = self._queue.take()
            if not wanted.is_of_use:
                self._end(wanted)
                continue
            lane = lane_for(sort_text(wanted.request)[:PREFIX_CHARACTERS], self.lanes, now)
            assert lane is not None
            self._send(wanted, lane)
        return None

    def _pump_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._pump)

    def _send(self, wanted: PendingQuestion, lane: Lane) -> None:
        wanted.attempts += 1
        self._in_flight += 1
        lane.in_flight += 1
        self.counts.requests += 1
        self.counts.highest_at_once = max(self.counts.highest_at_once, self._in_flight)
        self._pace.sent(guessed_tokens(wanted.request))
        self._spawn(self._ask(wanted, lane, wanted.attempts))

    async def _ask(self, wanted: PendingQuestion, lane: Lane, attempt: int) -> None:
        """One HTTP request from its intent to what follows from it."""
        call = settling.new_call(wanted.request, lane.endpoint, attempt, self._prices)
        task = asyncio.current_task()
        assert task is not None
        is_sent, began = False, self._loop.time()
        wanted.running[task] = began
        try:
            await self._journal.intend(call)
            began, is_sent = self._loop.time(), True
            url, most_bytes = lane.endpoint + path_of(wanted.request), most_bytes_of(wanted.request)
            body = body_of(wanted.request, self._reader.limit_name)
            exchange = await self._transport.post(url, body, call.call_id, most_bytes=most_bytes)
        except asyncio.CancelledError:
            gone = settling.not_known if is_sent else settling.not_done
            await self._journal.settle(gone(call, "given up by the client"))
            raise
        finally:
            del wanted.running[task]
            lane.in_flight -= 1
            self._in_flight -= 1
            self._loop.call_soon(self._pump)
        await self._take(call, exchange, wanted, lane, began)

    async def _take(
        self,
        call: NewCall,
        exchange: Received | TransportFailure,
        wanted: PendingQuestion,
        lane: Lane,
        began: float,
    ) -> None:
        """Do what follows from a reply, once it is on disk how the request went."""
        step = self._reader.read(exchange, wanted.request, lane)
        if isinstance(exchange, Received) and isinstance(step, TryAgain):
            exchange.hang_up()
        is_first = isinstance(step, Answered) and not wanted.is_answered
        if isinstance(step, Answered) and is_first:
            self._take_note(step, wanted, lane, self._loop.time() - began)
        await self._journal.settle(settling.settlement_of(call, step, self._prices, wanted.request))
        if is_first or not isinstance(step, Answered):
            self._follow(step, wanted, lane, began)

    def _take_note(self, step: Answered, wanted: PendingQuestion, lane: Lane, took: float) -> None:
        wanted.is_answered = True
        reply = step.parsed.reply
        lane.at_once.answered()
        lane.unwatched += 1
        self._health.answered(lane)
        self.counts.answered(took)
        if step.is_bill_known:
            self._count_bill(usage_in(reply), wanted.request)
        for other in wanted.running:
            other.cancel()

    def _count_bill(self, usage: Usage, request: CallRequest) -> None:
        if is_disputed(usage, request):
            self.counts.disputed += 1
            if self.counts.disputed == 1:
                reported = f"{usage.prompt_tokens:,} prompt and {usage.completion_tokens:,} completion tokens"
                excess = "more than its request allows; such replies are disputed, and their money stays unknown"
                log.warning("%s: a server reports %s, %s", self.setting.name, reported, excess)
            return
        self._pace.used(usage.prompt_tokens + usage.completion_tokens - guessed_tokens(request))
        self.counts.billed(usage, settling.price_of(usage, self._prices))

    def _follow(self, step: Step, wanted: PendingQuestion, lane: Lane, began: float) -> None:
        """Once it is on disk how a request went: answer, ask again, or end."""
        if isinstance(step, Answered):
            self.setting.tell()
            self._end(wanted).answer(step.parsed.reply)
        elif isinstance(step, GiveUp):
            if step.stops_all:
                self.stop(step.error)
            if not wanted.is_answered:
                self._end(wanted).fail(step.error)
        else:
            self._try_again(step, wanted, lane, began)

    def _try_again(self, step: TryAgain, wanted: PendingQuestion, lane: Lane, began: float) -> None:
        now = self._loop.time()
        if step.usage is not None:
            self._count_bill(step.usage, wanted.request)
        wanted.troubles[one_line(f"{step.cause}: {step.detail}", 200)] += 1
        if step.cause in ("busy", "timeout"):
            lane.at_once.too_much(began, now)
        if step.cause == "busy" and (pause_seconds := told_seconds(step.retry_after, utc_now())):
            lane.close_for(pause_seconds, now)
        self._health.failed(step, lane, now)
        if wanted.is_answered or wanted.running:
            return
        if wanted.attempts >= self.setting.serving.max_attempts:
            self._end(wanted).fail(self._no_answer(wanted, lane))
            return
        self.counts.retries[step.cause] += 1
        wait = wait_seconds(wanted.request.key, wanted.attempts, step.retry_after, utc_now())
        self._loop.call_later(wait, self._wait, wanted)

    def _no_answer(self, wanted: PendingQuestion, lane: Lane) -> StageError:
        tried = ", ".join(f"{count} x {what}" for what, count in wanted.troubles.most_common())
        name = self.setting.name
        return StageError(
            f"{name} at {lane.endpoint} gave no answer in {wanted.attempts} requests ({tried}); see to the server, or "
            f"raise serving.{name}.max_attempts, and run again: what was answered is kept"
        )

    def _end(self, wanted: PendingQuestion) -> PendingQuestion:
        if self.open.get(wanted.request.key) is wanted:
            del self.open[wanted.request.key]
        return wanted

    def _new_watch(self) -> ModelWatch | None:
        if self.setting.canaries is None:
            return None
        return ModelWatch(
            self.setting.canaries,
            self._journal,
            self._transport,
            self._reader,
            self._health,
            prices=self._prices,
            at_once=self.setting.serving.concurrency,
            attempts=self.setting.serving.max_attempts,
            sent=lambda request: self._pace.sent(guessed_tokens(request)),
            spawn=self._spawn,
            when_known=self._pump,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error)
