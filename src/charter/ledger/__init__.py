"""Every attempt of every stage and what it cost, durable; money in whole micro-USD."""

from charter.ledger.account import Accounted, Totals, account, stage_totals, totals_of
from charter.ledger.attempt import Attempt, Outcome
from charter.ledger.store import Ledger

__all__ = ["Accounted", "Attempt", "Ledger", "Outcome", "Totals", "account", "stage_totals", "totals_of"]
