"""Gate before every request of a stage: what is spent, and what is in flight at its most, stay within its allowance."""

import asyncio
import time
from pathlib import Path
from threading import Lock

from charter.artifacts.allowance import allowance
from charter.errors import BudgetError
from charter.ledger.calls import NewCall, Settlement
from charter.units import MICRO_USD_PER_USD, format_usd

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
        while not self._admitted(call):
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

    def _admitted(self, call: NewCall) -> bool:
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
