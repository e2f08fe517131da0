"""The ledger: every attempt of every stage, in a SQLite file or on a server; it survives kills and power cuts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from charter.errors import UsageError
from charter.ledger.account import Accounted, Totals, account, stage_totals, totals_of
from charter.ledger.attempt import Attempt, Outcome
from charter.ledger.filesystem import is_server
from charter.ledger.opening import open_database
from charter.ledger.usage import ApiUsage

if TYPE_CHECKING:
    from charter.ledger.database import Database

LEDGER_FILE = "ledger.sqlite"


def ledger_place(run_dir: Path, server: str | None) -> str | Path:
    """Where the ledger of a run is: on a server (`storage.ledger`), or a file in its directory."""
    return server or run_dir / LEDGER_FILE


def has_ledger(place: str | Path) -> bool:
    """Whether there may be a ledger: a server has to be asked."""
    return is_server(place) or Path(place).exists()


class Ledger:
    """Every attempt of every stage of a run directory. A method that has returned is on disk."""

    def __init__(self, database: "Database") -> None:
        """Use `Ledger.open`."""
        self._database = database

    @classmethod
    def open(cls, where: str | Path, *, create: bool = True, check_whole: bool = False) -> "Ledger":
        """Open the ledger at a path or a `postgresql://` address, making it first if there is none.

        Checks the file and its schema; raises DataError when it is damaged, is not a ledger, was written by a
        newer Charter, or lies on a network file system. `check_whole` reads even a large file to its end.
        """
        if not is_server(where) and not create and not Path(where).exists():
            raise UsageError(f"there is no ledger at {where}; `charter run` writes it")
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
    ) -> int:
        """Record the start of an attempt, before it spends anything; returns its id.

        `at` is unix time; `monotonic` a reading of `time.monotonic()` in the process that will also send the
        heartbeats, so that a clock that is set does not change a duration. `first_step` is the step that the
        attempt continues from: what an earlier attempt did beyond it counts as lost. The price is that of one
        of `count` units.
        """
        from charter.ledger import rows
        from charter.ledger.database import transaction

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
        }
        with transaction(self._database) as connection:
            return rows.insert_attempt(connection, values)

    def heartbeat(
        self,
        attempt_id: int,
        *,
        at: float,
        monotonic: float | None = None,
        step: int | None = None,
        kept_step: int | None = None,
        tokens: int | None = None,
        pairs: int | None = None,
        episodes: int | None = None,
        records: int | None = None,
    ) -> None:
        """Record that a running attempt lives, and how far it is.

        Counts are this attempt's so far: they replace, they do not add. What is left out stays as it was.
        `kept_step` is the step of its last durable checkpoint.
        """
        from charter.ledger import rows
        from charter.ledger.database import repeated

        progress = rows.Progress(
            at=at,
            monotonic=monotonic,
            last_step=step,
            kept_step=kept_step,
            tokens=tokens,
            pairs=pairs,
            episodes=episodes,
            records=records,
        )
        repeated(self._database, lambda it: rows.write_progress(it, rows.running_row(it, attempt_id), progress))

    def end(
        self,
        attempt_id: int,
        *,
        at: float,
        outcome: Outcome,
        monotonic: float | None = None,
        step: int | None = None,
        kept_step: int | None = None,
        tokens: int | None = None,
        pairs: int | None = None,
        episodes: int | None = None,
        records: int | None = None,
        note: str = "",
    ) -> None:
        """Record how an attempt ended: done, failed, interrupted (stopped at a checkpoint) or killed."""
        from charter.ledger import rows
        from charter.ledger.database import transaction

        if outcome == "running":
            raise UsageError("an attempt cannot end as running; give done, failed, interrupted or killed")
        progress = rows.Progress(
            at=at,
            monotonic=monotonic,
            last_step=step,
            kept_step=kept_step,
            tokens=tokens,
            pairs=pairs,
            episodes=episodes,
            records=records,
        )
        with transaction(self._database) as connection:
            row = rows.running_row(connection, attempt_id)
            milliseconds = rows.write_progress(connection, row, progress)
            rows.write_end(connection, row, milliseconds=milliseconds, outcome=outcome, note=note)

    def close_abandoned(self, *, now: float, run: str | None = None) -> tuple[Attempt, ...]:
        """End, as killed at their last heartbeat, the attempts that were left running; returns them.

        Call it only while holding the run's lock: then nobody else can be running them.
        """
        from charter.ledger import rows
        from charter.ledger.database import transaction

        note = f"found running and closed at {now:.3f}"
        with transaction(self._database) as connection:
            abandoned = rows.running_rows(connection, run=run)
            for row in abandoned:
                milliseconds = row["duration_milliseconds"]
                rows.write_end(connection, row, milliseconds=milliseconds, outcome="killed", note=note)
            closed = {row["attempt_id"] for row in abandoned}
            every = rows.read_attempts(connection, run=run, stage=None)
        return tuple(attempt for attempt in every if attempt.attempt_id in closed)

    def attempts(self, *, run: str | None = None, stage: str | None = None) -> tuple[Attempt, ...]:
        """Attempts in the order they were begun."""
        from charter.ledger import rows
        from charter.ledger.database import repeated

        return repeated(self._database, lambda it: rows.read_attempts(it, run=run, stage=stage), reading=True)

    def accounted(self, *, run: str | None = None) -> tuple[Accounted, ...]:
        """All attempts with their cost and what of it was lost; running ones up to their last heartbeat."""
        return account(self.attempts(run=run))

    def totals(self, *, run: str | None = None) -> Totals:
        """Sums over all attempts."""
        return totals_of(self.accounted(run=run))

    def stage_totals(self, *, run: str | None = None) -> dict[str, Totals]:
        """Sums by stage; they add up to `totals` exactly."""
        return stage_totals(self.accounted(run=run))

    def record_usage(self, usage: Sequence[ApiUsage]) -> None:
        """Put what calls have cost so far in the place of what was recorded of them before."""
        from charter.ledger import usage_rows
        from charter.ledger.database import repeated

        if usage:
            repeated(self._database, lambda it: usage_rows.write_usage(it, usage))

    def usage(self, *, run: str | None = None) -> tuple[ApiUsage, ...]:
        """What calls to servers cost, by stage, server and model."""
        from charter.ledger import usage_rows
        from charter.ledger.database import repeated

        return repeated(self._database, lambda it: usage_rows.read_usage(it, run=run), reading=True)
