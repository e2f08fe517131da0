"""Gate before every request of a stage: what is spent, and what is in flight at its most, stay within its allowance.

Limits of rate and concurrency: those that the user gives, and one that is measured by asking.

Every method takes the time, in seconds of a clock that never goes back; nothing here looks at one.
"""

import asyncio
import time
from pathlib import Path
from threading import Lock

from charter.artifacts.checkpoints import allowance
from charter.errors import BudgetError
from charter.ledger.calls import NewCall, Settlement
from charter.units import MICRO_USD_PER_USD, format_usd

BURST_SECONDS = 1.0
"""A limit per minute is spent evenly; this much of it may be spent at once."""
FIRST_AT_ONCE = 8.0
DECREASE = 0.5
INCREASE_WHEN_SLOW = 1.0
"""Additive increase by one per round of answers, decrease by half: Chiu and Jain 1989 (Computer Networks 17), as in
TCP; before the first decrease one per answer, which doubles the number every round (Jacobson 1988, slow start)."""


class Allowance:
    """A bucket that fills at a rate per minute; it may go below zero once, and is then waited for."""

    def __init__(self, per_minute: float | None) -> None:
        self._per_second = None if per_minute is None else per_minute / 60
        self._level = 0.0 if self._per_second is None else max(1.0, self._per_second * BURST_SECONDS)
        self._most = self._level
        self._at: float | None = None

    def seconds_until_open(self, now: float) -> float:
        """0 when something may be taken."""
        if self._per_second is None:
            return 0.0
        if self._at is not None:
            self._level = min(self._most, self._level + (now - self._at) * self._per_second)
        self._at = now
        return 0.0 if self._level > 0 else max(-self._level / self._per_second, 1e-3)

    def take(self, amount: float) -> None:
        """Use some; a negative amount gives back what was not used after all."""
        self._level -= amount


class RateLimits:
    """The limits per minute of one provider: of requests and of tokens."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._requests, self._tokens = Allowance(requests_per_minute), Allowance(tokens_per_minute)

    def seconds_until_open(self, now: float) -> float:
        """0 when a request may be sent."""
        return max(self._requests.seconds_until_open(now), self._tokens.seconds_until_open(now))

    def sent(self, tokens: float) -> None:
        """A request was sent that may come to so many tokens."""
        self._requests.take(1)
        self._tokens.take(tokens)

    def used(self, more_tokens: float) -> None:
        """It came to so many more, or fewer."""
        self._tokens.take(more_tokens)


class AtOnce:
    """Concurrency limit of a server: more requests at once while it answers, half when it is too much for it."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self.limit = min(FIRST_AT_ONCE, self._most)
        self._is_slow = False
        self._decreased_at = float("-inf")

    def answered(self) -> None:
        """A request was answered."""
        grown = self.limit + (INCREASE_WHEN_SLOW / self.limit if self._is_slow else 1.0)
        self.limit = min(self._most, grown)

    def too_much(self, began: float, now: float) -> None:
        """A request was turned away or timed out. Those sent before the last decrease say nothing new."""
        if began < self._decreased_at:
            return
        self._is_slow = True
        self._decreased_at = now
        self.limit = max(1.0, self.limit * DECREASE)


LOOK_SECONDS = 0.2
"""Between two looks at the allowance."""
GRACE_SECONDS = 10.0
"""How long a stage waits for a larger allowance with nothing in flight: a supervisor looks every two seconds."""


class SpendingGate:
    """Money that the calls of one stage have cost and may still cost. All pools of the stage share it.

    `spent + in flight + next <= allowance` holds whenever a request is sent, each at the most that it can cost, so that
    calls never pass the allowance by more than what a server bills beyond a request's own bound.
    """

    def __init__(self, directory: Path, *, spent_micro_usd: int) -> None:
        """`spent_micro_usd`: of earlier calls, those whose outcome nobody knows at their most."""
        self._directory, self._spent = directory, spent_micro_usd
        self._in_flight: dict[str, int] = {}
        self._lock = Lock()
        self._allowance: int | None = None
        self._looked = float("-inf")

    async def admit(self, call: NewCall) -> None:
        """Wait until a call fits; BudgetError when nothing in flight could make room, and nobody allows more."""
        alone_since: float | None = None
        while not self.admits(call):
            now = time.monotonic()
            alone_since = None if self._in_flight else alone_since or now
            if alone_since is not None and now - alone_since > GRACE_SECONDS:
                raise self._error(call)
            await asyncio.sleep(LOOK_SECONDS)

    def settle(self, settlement: Settlement) -> None:
        """Replace the most that a call could cost by what it has cost, where that is known."""
        with self._lock:
            most = self._in_flight.pop(settlement.call_id, 0)
            self._spent += most if settlement.outcome == "unknown" else settlement.micro_usd or 0

    def adopt(self, call: NewCall) -> None:
        """Take a call of an earlier process that is still under way out of what is spent, at its most, into flight."""
        with self._lock:
            self._spent -= call.most_micro_usd or 0
            self._in_flight[call.call_id] = call.most_micro_usd or 0

    def admits(self, call: NewCall) -> bool:
        """Let a call pass if it fits now."""
        most = call.most_micro_usd or 0
        with self._lock:
            if (now := time.monotonic()) - self._looked >= LOOK_SECONDS:
                self._allowance, self._looked = allowance(self._directory), now
            if self._allowance is not None and self._spent + sum(self._in_flight.values()) + most > self._allowance:
                return False
            self._in_flight[call.call_id] = most
        return True

    def _error(self, call: NewCall) -> BudgetError:
        spent, most, limit = (
            format_usd(micro_usd / MICRO_USD_PER_USD)
            for micro_usd in (self._spent, call.most_micro_usd or 0, self._allowance or 0)
        )
        return BudgetError(
            f"the calls of this stage have cost at most {spent} of the {limit} that the budget leaves them, and the "
            f"next may cost {most}\n  everything done so far is kept; raise the limit, and run again: "
            "charter run --set budget.limit=USD"
        )
