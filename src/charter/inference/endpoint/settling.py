"""Rows of the store of calls, written before a request is sent and after it: one transaction for all that wait.

A commit costs one flush of the disk, whether it has one row or a hundred. It runs in a thread of its own, so that
the event loop goes on; what comes meanwhile is in the next group.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from charter.errors import DataError
from charter.inference.endpoint.call import CallReply, CallRequest, Prices, TokenAlternatives, Usage, is_disputed
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.parsing import InvalidReplyError, json_object, message_usage_of, one_line, usage_in
from charter.inference.endpoint.rules import Answered, Step, TryAgain, utc_now
from charter.inference.endpoint.transport import Received
from charter.ledger.calls import CallStore, NewCall, Settlement, new_call_id

GATHER_SECONDS = 0.005
"""Waiting for others to join costs no throughput, as other requests are in flight; a flush takes about as long."""


class CallJournal:
    """The store of calls, as the event loop uses it."""

    def __init__(self, calls: CallStore, gate: SpendingGate | None = None) -> None:
        self._calls, self._gate = calls, gate
        self._turned_away: set[str] = set()
        """Calls that never were, for the gate did not let them pass: nothing of them is written."""
        self.settled_micro_usd = 0
        """Known cost of the calls that were settled here: the store knows a model only by the name that servers use,
        which several models of a project may share."""
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

    async def intend_together(self, calls: Sequence[NewCall]) -> int:
        """Write the first of some calls, as many as fit now, before they are sent in one go; how many.

        Waits, or raises BudgetError, where not even the first has room.
        """
        gate = self._gate
        if gate is not None:
            await gate.admit(calls[0])
        count = 1
        while count < len(calls) and (gate is None or gate.admits(calls[count])):
            count += 1
        self._intents += calls[:count]
        await self._written()
        return count

    def adopt(self, call: NewCall) -> None:
        """Take over a call that an earlier process has sent."""
        if self._gate is not None:
            self._gate.adopt(call)

    async def settle(self, settlement: Settlement) -> None:
        """Write the outcome of a call to disk, with its answer."""
        if settlement.call_id in self._turned_away:
            return
        if self._gate is not None:
            self._gate.settle(settlement)
        self._settlements.append(settlement)
        await self._written()

    async def owe(self, calls: Sequence[NewCall], settlements: Sequence[Settlement]) -> None:
        """Write down calls that were sent without being meant, and what they cost or may cost."""
        if self._gate is not None:
            for call, settlement in zip(calls, settlements, strict=True):
                self._gate.owe(call, settlement)
        self._intents += calls
        self._settlements += settlements
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
        self.settled_micro_usd += sum(item.micro_usd or 0 for item in settlements if item.outcome != "unknown")


def to_stored(reply: CallReply) -> str:
    """One line of JSON; what is empty is left out.

    >>> to_stored(CallReply(text="A", finish_reason="stop", model="m", prompt_tokens=3, cached_tokens=0,
    ...                     completion_tokens=1))
    '{"text":"A","finish_reason":"stop","model":"m","prompt_tokens":3,"cached_tokens":0,"completion_tokens":1}'
    """
    fields: dict[str, object] = {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "model": reply.model,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "completion_tokens": reply.completion_tokens,
    }
    if reply.refusal:
        fields["refusal"] = reply.refusal
    if reply.log_probabilities:
        fields["log_probabilities"] = [(item.token, item.log_probability, item.top) for item in reply.log_probabilities]
    return _ENCODER.encode(fields)


def from_stored(text: str) -> CallReply:
    """The reply that `to_stored` wrote; a DataError when it is damaged."""
    try:
        fields = json.loads(text)
        tokens = tuple(
            TokenAlternatives(token=token, log_probability=value, top=tuple((word, each) for word, each in top))
            for token, value, top in fields.pop("log_probabilities", ())
        )
        return CallReply(log_probabilities=tokens, **fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"a stored answer cannot be read ({type(error).__name__}); restore the file of calls") from None


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


LONGEST_NOTE = 300
DISPUTED = "disputed"
"""Begins the note of a call whose usage is beyond what its request allows."""


def new_call(request: CallRequest, endpoint: str, attempt: int, prices: Prices) -> NewCall:
    """The intent to send a request."""
    return NewCall(
        call_id=new_call_id(),
        key=request.key,
        model=request.model,
        endpoint=endpoint,
        attempt=attempt,
        at=utc_now(),
        most_micro_usd=prices.most_micro_usd(request),
    )


def settlement_of(call: NewCall, step: Step, prices: Prices, request: CallRequest) -> Settlement:
    """Return the settlement of a request that was sent.

    A usage beyond the bound of the request is disputed: the answer is kept, and its money stays unknown. So it does
    after a refusal of which nobody here knows whether it is billed.
    """
    usage = usage_in(step.parsed.reply) if isinstance(step, Answered) else step.usage
    if usage is not None and is_disputed(usage, request):
        note = f"{DISPUTED}: the server reports {usage.prompt_tokens:,} and {usage.completion_tokens:,} tokens"
        answer = to_stored(step.parsed.reply) if isinstance(step, Answered) else None
        return Settlement(call_id=call.call_id, outcome="unknown", at=utc_now(), answer=answer, note=note)
    if isinstance(step, Answered) and not step.is_bill_known:
        note = one_line(f"refused, and perhaps billed: {step.parsed.reply.refusal}", LONGEST_NOTE)
        answer = to_stored(step.parsed.reply)
        return Settlement(call_id=call.call_id, outcome="unknown", at=utc_now(), answer=answer, note=note)
    if isinstance(step, Answered):
        reply = step.parsed.reply
        return _billed(call, usage_in(reply), prices, answer=to_stored(reply))
    outcome = f"{step.cause}: {step.detail}" if isinstance(step, TryAgain) else str(step.error)
    note = one_line(outcome, LONGEST_NOTE)
    if step.usage is not None:
        return _billed(call, step.usage, prices, note=note)
    if isinstance(step, TryAgain) and step.cost == "unknown":
        return not_known(call, note)
    return not_done(call, note)


def not_done(call: NewCall, why: str) -> Settlement:
    """A request that was refused, or never sent."""
    return Settlement(call_id=call.call_id, outcome="refused", at=utc_now(), micro_usd=0, note=why)


def not_known(call: NewCall, why: str) -> Settlement:
    """A request that may or may not be billed."""
    return Settlement(call_id=call.call_id, outcome="unknown", at=utc_now(), note=why)


def of_no_use(call: NewCall, exchange: Received | None, prices: Prices, why: str) -> Settlement:
    """Return the settlement of a message in a batch that nobody needed: by its result, where there is one."""
    if exchange is not None and exchange.is_free:
        return not_done(call, why)
    try:
        content = None if exchange is None or exchange.status != 200 else json_object(exchange.body)
        usage = None if content is None else message_usage_of(content)
    except InvalidReplyError:
        usage = None
    return not_known(call, why) if usage is None else _billed(call, usage, prices, note=why)


def price_of(usage: Usage, prices: Prices) -> int | None:
    """Return the price of these tokens."""
    return prices.micro_usd(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _billed(call: NewCall, usage: Usage, prices: Prices, *, answer: str | None = None, note: str = "") -> Settlement:
    return Settlement(
        call_id=call.call_id,
        outcome="answered",
        at=utc_now(),
        answer=answer,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        micro_usd=price_of(usage, prices),
        note=note,
    )
