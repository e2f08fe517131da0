"""The stores of calls in one place, for those who only want to know what the calls cost."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from charter.ledger.call import Call, CallTotals, Settlement, totals_of_calls
from charter.ledger.focus import ApiUsage
from charter.ledger.opening import open_database
from charter.ledger.place import CALLS_FILE as CALLS_FILE

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from charter.ledger.database import Database


class CallBooks:
    """A file or server with calls of one or several stages."""

    def __init__(self, database: "Database") -> None:
        """Use `CallBooks.open`."""
        self._database = database

    @classmethod
    def open(cls, where: str | Path, *, create: bool = True, check_whole: bool = False) -> "CallBooks":
        """Open a file that exists, or a server. `check_whole` reads even a large file to its end.

        Without `create` nothing is written: NoLedgerError where the tables are not there.
        """
        return cls(open_database(where, create=create, check_whole=check_whole))

    def close(self) -> None:
        """Give back the connections."""
        self._database.engine.dispose()

    def __enter__(self) -> "CallBooks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def usage(self, *, run: str | None = None, stage: str | None = None, checked: bool = False) -> tuple[ApiUsage, ...]:
        """Return the cost of the calls: of all of them, those of a run, or those of one of its stages.

        `checked` reads every row and compares it with its check: DataError when one has changed.
        """
        from charter.ledger import call_rows
        from charter.ledger.database import transaction

        usages = []
        with transaction(self._database, reading=True) as connection:
            for scope in call_rows.scopes(connection, run=run, stage=stage):
                totals = self._totals(connection, scope.number, checked=checked)
                usages += [
                    ApiUsage(
                        run=scope.run,
                        stage=scope.stage,
                        fingerprint=scope.fingerprint,
                        store_id=scope.store_id,
                        route=route,
                    )
                    for route in totals.routes
                ]
        return tuple(usages)

    def _totals(self, connection: "Connection", scope: int, *, checked: bool) -> CallTotals:
        from charter.ledger import call_rows

        if not checked:
            return call_rows.read_totals(connection, self._database, scope)
        call_rows.refuse_lost_calls(connection, self._database, scope)
        return totals_of_calls(call_rows.read_calls(connection, self._database, scope))

    def calls(self, *, run: str | None = None) -> Iterator[tuple[int, Call]]:
        """Every call by stage and id, each row checked, with the number that its stage has here."""
        from charter.ledger import call_rows
        from charter.ledger.database import transaction

        with transaction(self._database, reading=True) as connection:
            for scope in call_rows.scopes(connection, run=run):
                for call in call_rows.read_calls(connection, self._database, scope.number):
                    yield scope.number, call

    def correct(self, corrections: Sequence[tuple[int, Call, Settlement]]) -> None:
        """Add settlements that count from now on, all in one transaction; those before stay in the books."""
        from charter.ledger import call_rows
        from charter.ledger.database import transaction

        with transaction(self._database) as connection:
            for scope in sorted({number for number, _, _ in corrections}):
                of_scope = [(call, settlement) for number, call, settlement in corrections if number == scope]
                call_rows.add_settlements(
                    connection,
                    self._database,
                    scope,
                    [settlement for _, settlement in of_scope],
                    keys={},
                    revisions={call.call_id: call.revision + 1 for call, _ in of_scope},
                )
