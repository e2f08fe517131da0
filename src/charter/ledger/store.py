"""The ledger: every attempt of every stage, in a SQLite file or on a server; it survives kills and power cuts."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from charter.errors import UsageError
from charter.ledger.attempt import Attempt, Outcome, Reached, tags_text
from charter.ledger.focus import ApiUsage
from charter.ledger.imported import Change, ImportedAttempt
from charter.ledger.opening import open_database
from charter.ledger.place import LEDGER_FILE as LEDGER_FILE
from charter.ledger.place import has_ledger as has_ledger
from charter.ledger.place import ledger_place as ledger_place
from charter.ledger.reading import LedgerReading
from charter.ledger.stored import OtherCharge, StoredSample
from charter.ledger.sums import Claim

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from charter.ledger.bill import Bill, BillFinding


@dataclass(frozen=True)
class SpendingClaims:
    """Claims of other runs, and how this one puts its own; None where another run is deciding at this moment."""

    of_others: tuple[Claim, ...] | None
    _write: Callable[..., None] | None = None

    def put(self, claim: Claim, *, is_asking: bool) -> None:
        """Write the claim of this run, or take it away."""
        if self._write is not None and self.of_others is not None:
            self._write(claim, is_asking=is_asking)


class Ledger(LedgerReading):
    """Every attempt of every stage of a run directory. A method that has returned is on disk."""

    @classmethod
    def open(cls, where: str | Path, *, create: bool = True, check_whole: bool = False) -> "Ledger":
        """Open the ledger at a path or a `postgresql://` address, making it first if there is none.

        Without `create`, opening writes nothing, and raises NoLedgerError where there is none. Checks the file and its
        schema; raises DataError when it is damaged, is not a ledger, was written by a newer Charter, or lies on a
        network file system. `check_whole` reads even a large file to its end.
        """
        return cls(open_database(where, create=create, check_whole=check_whole))

    def close(self) -> None:
        """Give back the connections; the ledger can be opened again."""
        self._database.engine.dispose()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self,
        *,
        run: str,
        stage: str,
        kind: str,
        fingerprint: str,
        at: float,
        monotonic: float | None = None,
        accelerator: str = "cpu",
        count: int = 1,
        infra: str = "local",
        market: str = "owned",
        first_step: int = 0,
        price_micro_usd_per_hour: int | None = None,
        price_source: str | None = None,
        price_as_of: str | None = None,
        host: str = "",
        pid: int = 0,
        job_id: str | None = None,
        nodes: str | None = None,
        owner: str | None = None,
        tags: Mapping[str, str] | None = None,
        shard: int | None = None,
    ) -> int:
        """Record the start of an attempt, before it spends anything; returns its id.

        `at` is unix time; `monotonic` a reading of `time.monotonic()` in the process that will also send the
        heartbeats, so that a clock that is set does not change a duration. `first_step` is the step that the
        attempt continues from: what an earlier attempt at the same `shard` did beyond it counts as lost. The
        price is that of one of `count` units. `job_id` and `nodes` are as the scheduler writes them, where it has
        said them already; `settle` may add them.
        """
        from charter.ledger import rows

        values = {
            "run": run,
            "stage": stage,
            "kind": kind,
            "fingerprint": fingerprint,
            "accelerator": accelerator,
            "count": count,
            "infra": infra,
            "market": market,
            "started_at": at,
            "started_monotonic": monotonic,
            "clock": "wall" if monotonic is None else "monotonic",
            "last_heartbeat": at,
            "first_step": first_step,
            "last_step": first_step,
            "price_micro_usd_per_hour": price_micro_usd_per_hour,
            "price_source": price_source,
            "price_as_of": price_as_of,
            "host": host,
            "pid": pid,
            "job_id": job_id,
            "nodes": nodes,
            "owner": owner,
            "tags": tags_text(tags),
            "shard": shard,
        }
        with self._database.transaction() as connection:
            return rows.insert_attempt(connection, values)

    def heartbeat(
        self, attempt_id: int, *, at: float, monotonic: float | None = None, **reached: Unpack[Reached]
    ) -> None:
        """Record that a running attempt lives, and how far it is.

        Counts are this attempt's so far: they replace, they do not add. What is left out stays as it was.
        `kept_step` is the step of its last durable checkpoint.
        """
        from charter.ledger import rows, sum_rows

        progress = rows.AttemptProgress(at=at, monotonic=monotonic, told=reached)
        self._database.repeated(lambda it: rows.write_progress(it, sum_rows.running_row(it, attempt_id), progress))

    def end(
        self,
        attempt_id: int,
        *,
        at: float,
        outcome: Outcome,
        monotonic: float | None = None,
        note: str = "",
        **reached: Unpack[Reached],
    ) -> None:
        """Record how an attempt ended: done, failed, interrupted (stopped at a checkpoint) or killed."""
        from charter.ledger import rows, sum_rows

        if outcome == "running":
            raise UsageError("an attempt cannot end as running; give done, failed, interrupted or killed")
        progress = rows.AttemptProgress(at=at, monotonic=monotonic, told=reached)
        with self._database.transaction() as connection:
            row = sum_rows.running_row(connection, attempt_id)
            milliseconds = rows.write_progress(connection, row, progress)
            rows.write_end(connection, row, milliseconds=milliseconds, outcome=outcome, note=note)

    def close_abandoned(
        self, *, now: float, run: str | None = None, keep_jobs: Collection[str] = ()
    ) -> tuple[Attempt, ...]:
        """End, as killed at their last heartbeat, the attempts that were left running; returns them.

        Call it only while holding the run's lock: then nobody else can be running them. Jobs of a scheduler outlive the
        supervisor: those of `keep_jobs` run on.
        """
        from charter.ledger import rows, sum_rows

        note = f"found running and closed at {now:.3f}"
        with self._database.transaction() as connection:
            running = sum_rows.running_rows(connection, run=run)
            abandoned = [row for row in running if row["job_id"] not in keep_jobs]
            for row in abandoned:
                milliseconds = row["duration_milliseconds"]
                rows.write_end(connection, row, milliseconds=milliseconds, outcome="killed", note=note)
            closed = {row["attempt_id"] for row in abandoned}
            return sum_rows.read_attempts(connection, ids=sorted(closed)) if closed else ()

    def settle(
        self,
        attempt_id: int,
        *,
        started_at: float,
        duration_milliseconds: int,
        job_id: str | None = None,
        nodes: str | None = None,
    ) -> None:
        """Put a scheduler's own record of an ended attempt in the place of what was measured here.

        A scheduler bills by its records (`sacct -D`), so the ledger takes them; charges and sums follow. What is left
        out stays as it was. Doing it twice changes nothing.
        """
        from charter.ledger import rows, sum_rows

        reported = {"job_id": job_id, "nodes": nodes}
        values = {
            "started_at": started_at,
            "duration_milliseconds": duration_milliseconds,
            "clock": "engine",
            **{name: value for name, value in reported.items() if value is not None},
        }
        if duration_milliseconds < 0:
            raise UsageError(f"attempt {attempt_id} cannot have taken {duration_milliseconds} ms")

        def write(connection: "Connection") -> None:
            row = sum_rows.attempt_row(connection, attempt_id)
            if row["outcome"] == "running":
                raise UsageError(f"attempt {attempt_id} of stage {row['stage']} still runs; end it, then settle it")
            rows.write_settled(connection, row, values)

        self._database.repeated(write)

    def record_imported(self, imported: Sequence[ImportedAttempt]) -> tuple[Change, ...]:
        """Write the attempts of a run that somebody else started, all or none; what became of each.

        An attempt that is there under its key is brought up to date, so that importing again counts nothing twice.
        """
        from charter.ledger import rows

        with self._database.transaction() as connection:
            return rows.write_imported(connection, imported)

    def take_back_import(self, import_id: str, *, run: str) -> int:
        """Remove what an import added, with its charges and sums; how many attempts that were."""
        from charter.ledger import rows

        with self._database.transaction() as connection:
            return rows.remove_imported(connection, run=run, import_id=import_id)

    @contextmanager
    def claims(self, *, run: str, now: float) -> Iterator[SpendingClaims]:
        """Hold what the runs of this ledger may still spend on calls, while this one decides what it may.

        A file has one run, and nothing to hold.
        """
        if self._database.is_file:
            yield SpendingClaims(())
            return
        from charter.ledger import sum_rows

        with self._database.transaction() as connection:
            others = sum_rows.claims_of_others(connection, run=run, now=now)
            yield SpendingClaims(others, partial(sum_rows.put_claim, connection, now=now))

    def record_other(self, charges: Sequence[OtherCharge]) -> None:
        """Add charges that are neither attempts nor calls: storage, transfer, fees."""
        from charter.ledger import charge_rows

        with self._database.transaction() as connection:
            charge_rows.write_other(connection, charges)

    def record_stored(self, samples: Sequence[StoredSample]) -> None:
        """Add samples of what places hold. Doing it twice changes nothing, and the order does not matter."""
        from charter.ledger import charge_rows

        self._database.repeated(lambda it: charge_rows.write_stored(it, samples))

    def record_bill(self, bill: "Bill", findings: "Sequence[BillFinding]", *, run: str, at: float) -> bool:
        """Keep a provider's bill and how it stood against the ledger; False when the same file is there already."""
        from charter.ledger import charge_rows

        with self._database.transaction() as connection:
            return charge_rows.add_bill(connection, bill, findings, run=run, at=at)

    def rebuild_sums(self) -> None:
        """Make the kept sums anew from the rows that they follow from."""
        from charter.ledger import rebuilding

        self._database.repeated(rebuilding.rebuild_sums)

    def record_usage(self, usage: Sequence[ApiUsage]) -> None:
        """Put what calls have cost so far in the place of what was recorded of them before."""
        from charter.ledger import charge_rows

        if usage:
            self._database.repeated(lambda it: charge_rows.write_usage(it, usage))
