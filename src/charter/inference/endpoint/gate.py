"""Gate before every request of a stage: what is spent and in flight stays within its allowance, its rate within limits.

Limits of rate and concurrency are the user's, and one that is measured by asking. Every method takes the time, in
seconds of a clock that never goes back; nothing here looks at one.
"""

import asyncio
import shlex
import time
from pathlib import Path
from threading import Lock

from charter.artifacts import allowance as allowances
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
GRACE_SECONDS = 20.0
"""How long a stage waits for a larger allowance with nothing in flight.

Supervisors look every two seconds, and what another stage or run has to let go of first takes some looks."""


class SpendingGate:
    """Money that the calls of one process of a stage have cost and may still cost. All its pools share it.

    `spent + in flight + next <= allowance` holds whenever a request is sent, each at the most that it can cost, so that
    calls never pass the allowance by more than what a server bills beyond a request's own bound. Processes side by side
    have equal parts of what the stage had left when they began.
    """

    def __init__(self, directory: Path, *, spent_micro_usd: int, rank: int = 0, processes: int = 1) -> None:
        """`spent_micro_usd`: of earlier calls, those whose outcome nobody knows at their most."""
        self._directory, self._before, self._own = directory, spent_micro_usd, 0
        self._rank, self._processes = rank, processes
        self._in_flight: dict[str, int] = {}
        self._lock = Lock()
        self._allowed: allowances.CallAllowance | None = None
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

    async def keep_looking(self) -> None:
        """Look at the allowance until cancelled, so that a smaller one is kept to while nothing is asked."""
        while True:
            with self._lock:
                self._look()
            await asyncio.sleep(LOOK_SECONDS)

    def settle(self, settlement: Settlement) -> None:
        """Replace the most that a call could cost by what it has cost, where that is known."""
        with self._lock:
            self._own += _cost_of(settlement, self._in_flight.pop(settlement.call_id, 0))

    def adopt(self, call: NewCall) -> None:
        """Take a call of an earlier process that is still under way out of what is spent, at its most, into flight."""
        with self._lock:
            self._own -= call.most_micro_usd or 0
            self._in_flight[call.call_id] = call.most_micro_usd or 0

    def owe(self, call: NewCall, settlement: Settlement) -> None:
        """Count a call that was sent unasked."""
        with self._lock:
            self._own += _cost_of(settlement, call.most_micro_usd or 0)

    def admits(self, call: NewCall) -> bool:
        """Let a call pass if it fits now."""
        most = call.most_micro_usd or 0
        with self._lock:
            limit = self._look().micro_usd
            if limit is not None and self._claimed() + most > (limit - self._before) // self._processes:
                return False
            self._in_flight[call.call_id] = most
        return True

    def _claimed(self) -> int:
        """Return what this process has spent and may owe, in micro-USD."""
        return self._own + sum(self._in_flight.values())

    def _look(self) -> allowances.CallAllowance:
        """Return the allowance, and say that it is kept to from now on."""
        if self._allowed is None or time.monotonic() - self._looked >= LOOK_SECONDS:
            before, self._allowed = self._allowed, allowances.allowance(self._directory)
            self._looked = time.monotonic()
            if self._allowed != before and self._allowed.micro_usd is not None:
                allowances.take(
                    self._directory,
                    rank=self._rank,
                    processes=self._processes,
                    number=self._allowed.number,
                    before=self._before,
                    own=self._claimed(),
                )
        return self._allowed

    def _error(self, call: NewCall) -> BudgetError:
        allowed = self._allowed or allowances.CallAllowance()
        spent, most, bound = (
            format_usd(micro_usd / MICRO_USD_PER_USD)
            for micro_usd in (self._before + self._own, call.most_micro_usd or 0, allowed.micro_usd or 0)
        )
        limit = allowed.limit or "budget.limit"
        of = "" if limit == "budget.limit" else f" --of {shlex.quote(limit)}"
        return BudgetError(
            f"the calls of this stage have cost at most {spent} of the {bound} that the budget leaves them, and the "
            f"next may cost {most}\n  everything done so far is kept; raise {limit}, and run again: "
            f"charter cost raise USD{of}"
        )


def _cost_of(settlement: Settlement, most_micro_usd: int) -> int:
    return most_micro_usd if settlement.outcome == "unknown" else settlement.micro_usd or 0
