"""Every attempt of every stage, every call that costs money, and what they cost; money in whole micro-USD."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from charter.ledger.account import Accounted, Totals, account, stage_totals, totals_of
from charter.ledger.attempt import Attempt, Outcome

if TYPE_CHECKING:
    from charter.ledger.calls import CallBooks
    from charter.ledger.focus import ApiUsage
    from charter.ledger.store import Ledger

__all__ = [
    "Accounted",
    "ApiUsage",
    "Attempt",
    "CallBooks",
    "Ledger",
    "Outcome",
    "Totals",
    "account",
    "stage_totals",
    "totals_of",
]
_IMPORTED_WHEN_ASKED_FOR = {"ApiUsage": "focus", "CallBooks": "calls", "Ledger": "store"}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"charter.ledger.{_IMPORTED_WHEN_ASKED_FOR[name]}"), name)
