"""Rows of the store of calls: what is written before a request is sent, and after it."""

from charter.inference.endpoint.call import CallRequest, Usage
from charter.inference.endpoint.money import Prices, is_disputed
from charter.inference.endpoint.parsing import usage_in
from charter.inference.endpoint.rules import Answered, Step, TryAgain
from charter.inference.endpoint.shapes import one_line
from charter.inference.endpoint.stored import to_stored
from charter.inference.endpoint.waiting import utc_now
from charter.ledger.calls import NewCall, Settlement, new_call_id

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

    A usage beyond the bound of the request is disputed: the answer is kept, and its money stays unknown.
    """
    usage = usage_in(step.parsed.reply) if isinstance(step, Answered) else step.usage
    if usage is not None and is_disputed(usage, request):
        note = f"{DISPUTED}: the server reports {usage.prompt_tokens:,} and {usage.completion_tokens:,} tokens"
        answer = to_stored(step.parsed.reply) if isinstance(step, Answered) else None
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
