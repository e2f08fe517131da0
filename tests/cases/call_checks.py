"""Calls of a store, read row by row beside its own quick sums."""

from charter.ledger import charge_rows
from charter.ledger.call import Call, CallTotals, totals_of_calls
from charter.ledger.calls import CallStore


def rows_of(store: CallStore) -> list[Call]:
    """Every call, each row compared with its check; DataError when one has changed or is lost."""
    with store._database.transaction(reading=True) as connection:
        charge_rows.refuse_lost_calls(connection, store._database, store._scope)
        return sorted(
            charge_rows.read_calls(connection, store._database, store._scope), key=lambda call: (call.at, call.call_id)
        )


def checked_totals(store: CallStore) -> CallTotals:
    """The store's sums, from every row."""
    return totals_of_calls(rows_of(store))


def unsettled(store: CallStore) -> tuple[Call, ...]:
    """Calls without a settlement: of processes that were killed, or in flight."""
    return tuple(call for call in rows_of(store) if call.outcome is None)
