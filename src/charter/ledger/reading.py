"""Reads of a ledger: attempts one by one, and sums that answer at once however many there are."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from charter.ledger.account import Accounted, Totals, account, totals_of
from charter.ledger.attempt import Attempt
from charter.ledger.focus import ApiUsage
from charter.ledger.imported import StoredImport, imports_of
from charter.ledger.stored import OtherCharge, StoredSample
from charter.ledger.sums import Sums, asked_dimensions, grouped, total_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from charter.ledger.charge_rows import StoredBill
    from charter.ledger.database import Database

Result = TypeVar("Result")


class LedgerReading:
    """The half of a ledger that changes nothing."""

    def __init__(self, database: "Database") -> None:
        """Use `Ledger.open`."""
        self._database = database

    def _read(self, work: "Callable[[Connection], Result]") -> Result:
        return self._database.repeated(work, reading=True)

    def sums(
        self,
        *,
        by: Sequence[str] = (),
        run: str | None = None,
        stage: str | None = None,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
        with_running: bool = True,
    ) -> tuple[Sums, ...]:
        """Sums by any of `sums.DIMENSIONS` and `tag:NAME`; one for all, or none, when `by` names nothing.

        `since` and `until` are UTC days (`2026-07-01`), both included. Running attempts count up to their last
        heartbeat. Raises DataError when the kept sums do not match their check.
        """
        from charter.ledger import sum_rows

        base = asked_dimensions(by)
        equal = {name: value for name, value in (("run", run), ("stage", stage), ("owner", owner)) if value is not None}
        spend = self._read(
            lambda it: sum_rows.read_sums(it, by=base, equal=equal, since=since, until=until, with_running=with_running)
        )
        return grouped(by, spend)

    def total(self, *, run: str | None = None, stage: str | None = None) -> Sums:
        """Everything of a run or of all runs, in one sum."""
        return total_of(self.sums(run=run, stage=stage))

    def attempt_counts(self, *, run: str | None = None) -> dict[tuple[str, str], int]:
        """Count the attempts by stage and fingerprint, running ones included."""
        parts = self.sums(by=("stage", "fingerprint"), run=run)
        return {(part.key["stage"], part.key["fingerprint"]): part.totals.attempts for part in parts}

    def running(self, *, run: str | None = None) -> tuple[Attempt, ...]:
        """The attempts that have not ended."""
        from charter.ledger import sum_rows

        return self._read(lambda it: sum_rows.read_running(it, run=run))

    def recent(self, *, run: str | None = None, stage: str | None = None, limit: int = 50) -> tuple[Accounted, ...]:
        """The newest attempts with their cost and losses, oldest first, however many there are in all."""
        from charter.ledger import sum_rows

        return self._read(lambda it: sum_rows.read_recent(it, run=run, stage=stage, limit=limit))

    def attempts(self, *, run: str | None = None, stage: str | None = None) -> tuple[Attempt, ...]:
        """Attempts in the order they were begun; reads and checks every row."""
        from charter.ledger import sum_rows

        return self._read(lambda it: sum_rows.read_attempts(it, run=run, stage=stage))

    def imports(self, *, run: str | None) -> tuple[StoredImport, ...]:
        """The runs of others that were imported, each with its attempts."""
        from charter.ledger import rows

        return imports_of(self._read(lambda it: rows.read_imported(it, run=run)))

    def accounted(self, *, run: str | None = None, stage: str | None = None) -> tuple[Accounted, ...]:
        """All attempts with their cost and what of it was lost; running ones up to their last heartbeat."""
        return account(self.attempts(run=run, stage=stage))

    def totals(self, *, run: str | None = None) -> Totals:
        """Sums over all attempts."""
        return totals_of(self.accounted(run=run))

    def usage(self, *, run: str | None = None) -> tuple[ApiUsage, ...]:
        """Return the cost of calls to servers, by stage, server and model."""
        from charter.ledger import charge_rows

        return self._read(lambda it: charge_rows.read_usage(it, run=run))

    def other_charges(self, *, run: str | None = None) -> tuple[OtherCharge, ...]:
        """Storage, transfer and fees, in the order they were added."""
        from charter.ledger import charge_rows

        return self._read(lambda it: charge_rows.read_other(it, run=run))

    def stored(self, *, run: str | None = None) -> tuple[StoredSample, ...]:
        """Return the bytes of a run in each place, and when; `stored.by_place` puts them in order."""
        from charter.ledger import charge_rows

        return self._read(lambda it: charge_rows.read_stored(it, run=run))

    def bills(self) -> "tuple[StoredBill, ...]":
        """The bills of providers that were read, in that order."""
        from charter.ledger import charge_rows

        return self._read(charge_rows.read_bills)

    def billed(self, *, run: str | None) -> "dict[int, tuple[str, Decimal]]":
        """By attempt: the bill that has it last, and what it costs there."""
        from charter.ledger import charge_rows

        return self._read(lambda it: charge_rows.billed_of_attempts(it, run=run))

    def check_sums(self) -> None:
        """DataError when the kept sums are not those of the rows that they follow from, all of which are read."""
        from charter.ledger import rebuilding

        with self._database.transaction(reading=True) as connection:
            rebuilding.refuse_wrong_sums(connection)
