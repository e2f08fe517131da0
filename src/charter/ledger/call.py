"""Calls that cost money, as plain values: what is about to be asked, how it went, and the sums."""

import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal
from uuid import uuid4

CallOutcome = Literal["answered", "refused", "unknown", "billed", "void"]
OUTCOMES_OF_CALLS: tuple[CallOutcome, ...] = ("answered", "refused", "unknown", "billed", "void")
"""`billed` and `void` are said by reconciling only: the provider's log has the call, or has it not."""


def new_call_id() -> str:
    """An id that no other call has: 16 digits of the time, so that rows are added at the end of their table and not
    all over it, and 16 digits of chance.
    """
    return f"{time.time_ns():016x}{uuid4().hex[:16]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewCall:
    """One call that is about to be sent."""

    call_id: str
    """Sent to the server as `X-Request-Id`; never used twice."""
    key: str
    """Hash of the question: equal questions have one stored answer."""
    model: str
    endpoint: str
    attempt: int
    """1 for the first time this question is sent."""
    at: float
    most_micro_usd: int | None
    """What it can cost at most; None where the server has no price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """Settlement of a call: the answer and its money, together."""

    call_id: str
    outcome: CallOutcome
    """`refused`: the server said so and bills nothing; `unknown`: nobody here can say whether it was billed."""
    at: float
    answer: str | None = None
    """The answer as JSON text; kept as that of its question unless the question has one already."""
    prompt_tokens: int = 0
    """With those that the server had cached."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    micro_usd: int | None = None
    """None where the server has no price."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call as it is recorded; `outcome` is None while it has no settlement."""

    call_id: str
    key: str
    model: str
    endpoint: str
    attempt: int
    at: float
    most_micro_usd: int | None
    outcome: CallOutcome | None = None
    settled_at: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    micro_usd: int | None = None
    note: str = ""
    revision: int = -1
    """Number of its last settlement; -1 for none."""

    @property
    def is_unknown(self) -> bool:
        """Return True if it may or may not have been billed."""
        return self.outcome in (None, "unknown")


@dataclass(frozen=True, kw_only=True)
class CallSums:
    """Sums over calls; two of them add up field by field."""

    requests: int = 0
    answered: int = 0
    refused: int = 0
    unknown: int = 0
    """Calls that may or may not have been billed."""
    unpriced: int = 0
    """Calls without a price: answered ones whose cost is not known, unknown ones that have no bound."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    settled_micro_usd: int = 0
    unknown_micro_usd: int = 0
    """What the unknown calls cost at most."""

    def __add__(self, other: "CallSums") -> "CallSums":
        return CallSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(CallSums)})

    @property
    def most_micro_usd(self) -> int:
        """Upper end of the bill; its lower end is `settled_micro_usd`."""
        return self.settled_micro_usd + self.unknown_micro_usd


@dataclass(frozen=True, kw_only=True)
class RouteTotals:
    """The calls of one stage to one model on one server."""

    endpoint: str
    model: str
    first_at: float
    last_at: float
    sums: CallSums


@dataclass(frozen=True, kw_only=True)
class CallTotals:
    """The calls of one stage, by server and model; the bill lies in [settled, settled + unknown]."""

    routes: tuple[RouteTotals, ...] = ()

    @property
    def sums(self) -> CallSums:
        """Over all servers and models."""
        return sum((route.sums for route in self.routes), CallSums())

    @property
    def settled_micro_usd(self) -> int:
        """Amount that is known to have been billed."""
        return self.sums.settled_micro_usd

    @property
    def unknown_micro_usd(self) -> int:
        """Most that may have been billed on top."""
        return self.sums.unknown_micro_usd


def totals_of_calls(calls: Iterable[Call]) -> CallTotals:
    """The sums over some calls, which may be millions: added up in place."""
    sums: dict[tuple[str, str], list[int]] = {}
    periods: dict[tuple[str, str], tuple[float, float]] = {}
    for call in calls:
        where = (call.endpoint, call.model)
        end = call.at if call.settled_at is None else call.settled_at
        first, last = periods.get(where, (call.at, end))
        periods[where] = (min(first, call.at), max(last, end))
        total = sums.setdefault(where, [0] * len(SUMMED))
        for index, value in enumerate(sums_of_call(call)):
            total[index] += value
    return CallTotals(
        routes=tuple(
            RouteTotals(
                endpoint=where[0],
                model=where[1],
                first_at=periods[where][0],
                last_at=periods[where][1],
                sums=CallSums(**dict(zip(SUMMED, sums[where], strict=True))),
            )
            for where in sorted(sums)
        )
    )


SUMMED = tuple(field.name for field in fields(CallSums))


def sums_of_call(call: Call) -> tuple[int, ...]:
    """One call as the fields of `CallSums`, in their order."""
    unknown = call.is_unknown
    price = call.most_micro_usd if unknown else call.micro_usd
    free = call.outcome in ("refused", "void")
    return (
        1,
        int(call.outcome in ("answered", "billed")),
        int(free),
        int(unknown),
        int(price is None and not free),
        call.prompt_tokens,
        call.cached_tokens,
        call.completion_tokens,
        0 if unknown else price or 0,
        (price or 0) if unknown else 0,
    )


def row_check(values: tuple[object, ...]) -> int:
    """CRC-32 of a row's values: finds any flip of up to 32 bits in a row, which the database itself does not.

    >>> row_check(("a", 1)) == row_check(("a", 2))
    False
    """
    return zlib.crc32(repr(values).encode("utf-8", "backslashreplace"))
