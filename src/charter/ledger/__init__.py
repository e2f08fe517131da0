"""Every attempt of every stage, every call that costs money, and what they cost; money in whole micro-USD."""

from charter.ledger.account import Accounted, Totals, account, stage_totals, totals_of
from charter.ledger.attempt import Attempt, Outcome
from charter.ledger.call_books import CallBooks
from charter.ledger.store import Ledger
from charter.ledger.usage import ApiUsage

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
