"""Stores of calls that cost money: written before they are sent, settled together with their answers.

After a kill, what has no settlement is unknown: it may or may not have been billed, and the bill lies between what
is settled and that plus what the unknown calls cost at most. An answer that was stored is never paid for again.
`CallStore` is what a stage writes; `CallBooks` is for those who only want to know what the calls cost.
"""

import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from charter.artifacts.faults import durable_action
from charter.ledger.call import Call, CallTotals, NewCall, Settlement, new_call_id, totals_of_calls
from charter.ledger.focus import ApiUsage
from charter.ledger.opening import open_database
from charter.ledger.place import CALLS_FILE as CALLS_FILE
from charter.ledger.place import MOUNTINFO

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from charter.ledger.database import Database

__all__ = ["Call", "CallStore", "CallTotals", "NewCall", "Settlement", "new_call_id"]
Result = TypeVar("Result")


class CallStore:
    """The calls and answers of one stage. A method that has returned is on disk; threads may share a store.

    Several processes of a stage may each open the same place.
    """

    def __init__(self, database: "Database", scope: int) -> None:
        """Use `CallStore.open`."""
        self._database = database
        self._scope = scope
        self._lock = threading.Lock()
        self._keys: dict[str, str] = {}
        self.damaged_answers = 0
        """Stored answers that were not what had been written, and will be asked for again."""

    @classmethod
    def open(
        cls, where: str | Path, *, run: str, stage: str, fingerprint: str, mountinfo: Path = MOUNTINFO
    ) -> "CallStore":
        """Open the store at a path or a `postgresql://` address, making it first if there is none.

        Raises DataError when it is damaged, was written by a newer Charter, or lies on a network file system.
        """
        database = open_database(where, mountinfo=mountinfo)
        from charter.ledger import charge_rows

        try:
            with database.transaction() as connection:
                scope = charge_rows.scope_of(connection, database, run=run, stage=stage, fingerprint=fingerprint)
        except BaseException:
            database.engine.dispose()
            raise
        return cls(database, scope.number)

    def close(self) -> None:
        """Give back the connections."""
        with self._lock:
            self._database.engine.dispose()

    def __enter__(self) -> "CallStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answers(self, keys: Sequence[str]) -> dict[str, str]:
        """The stored answers among these questions, as JSON texts by question.

        One whose bytes have changed is forgotten, so that it is asked again; what it cost stays.
        """
        from charter.ledger import charge_rows

        database, scope = self._database, self._scope
        if not keys:
            return {}
        stored, broken = self._do(lambda it: charge_rows.read_answers(it, database, scope, keys), reading=True)
        if broken:
            self._do(lambda it: charge_rows.drop_answers(it, database, scope, broken))
            self.damaged_answers += len(broken)
        return stored

    def forget_since(self, since: float, *, model: str) -> int:
        """Forget a served model's answers since a time (seconds since 1970); how many there were.

        What they cost stays; their questions are asked again.
        """
        from charter.ledger import charge_rows

        return self._do(lambda it: charge_rows.drop_answers_since(it, self._database, self._scope, since, model=model))

    def intend(self, calls: Sequence[NewCall]) -> None:
        """Record calls before they are sent."""
        self.record(calls, ())

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Record how calls went, their answers and their money together. The first answer to a question stays."""
        self.record((), settlements)

    def record(self, calls: Sequence[NewCall], settlements: Sequence[Settlement]) -> None:
        """Record calls that are about to be sent and how others went, in one transaction: one flush of the disk."""
        from charter.ledger import charge_rows

        if not calls and not settlements:
            return
        database, scope = self._database, self._scope
        self._keys.update((call.call_id, call.key) for call in calls)

        def write(connection: "Connection") -> None:
            if calls:
                charge_rows.add_intents(connection, database, scope, calls)
            if settlements:
                absent = [item.call_id for item in settlements if item.call_id not in self._keys]
                stored_keys = charge_rows.keys_of(connection, database, scope, absent) if absent else {}
                charge_rows.add_settlements(
                    connection, database, scope, settlements, keys=ChainMap(self._keys, stored_keys)
                )

        self._do(write)
        for item in settlements:
            self._keys.pop(item.call_id, None)

    def totals(self) -> CallTotals:
        """The sums by server and model, quickly."""
        from charter.ledger import charge_rows

        return self._do(lambda it: charge_rows.read_totals(it, self._database, self._scope), reading=True)

    def _do(self, work: "Callable[[Connection], Result]", *, reading: bool = False) -> Result:
        """One transaction; tried again while a server is away, which is safe because rows are only added once."""
        with self._lock:
            if reading:
                return self._database.repeated(work, reading=True)
            with durable_action("commit of calls"):
                return self._database.repeated(work)


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
        from charter.ledger import charge_rows

        usages = []
        with self._database.transaction(reading=True) as connection:
            for scope in charge_rows.scopes(connection, run=run, stage=stage):
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
        from charter.ledger import charge_rows

        if not checked:
            return charge_rows.read_totals(connection, self._database, scope)
        charge_rows.refuse_lost_calls(connection, self._database, scope)
        return totals_of_calls(charge_rows.read_calls(connection, self._database, scope))

    def calls(self, *, run: str | None = None) -> Iterator[tuple[int, Call]]:
        """Every call by stage and id, each row checked, with the number that its stage has here."""
        from charter.ledger import charge_rows

        with self._database.transaction(reading=True) as connection:
            for scope in charge_rows.scopes(connection, run=run):
                for call in charge_rows.read_calls(connection, self._database, scope.number):
                    yield scope.number, call

    def correct(self, corrections: Sequence[tuple[int, Call, Settlement]]) -> None:
        """Add settlements that count from now on, all in one transaction; those before stay in the books."""
        from charter.ledger import charge_rows

        with self._database.transaction() as connection:
            for scope in sorted({number for number, _, _ in corrections}):
                of_scope = [(call, settlement) for number, call, settlement in corrections if number == scope]
                charge_rows.add_settlements(
                    connection,
                    self._database,
                    scope,
                    [settlement for _, settlement in of_scope],
                    keys={},
                    revisions={call.call_id: call.revision + 1 for call, _ in of_scope},
                )
