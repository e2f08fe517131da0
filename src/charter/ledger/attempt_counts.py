"""Counts and last heartbeats of attempts, read from a ledger's file without the time that starting SQLAlchemy takes.

Only a sound file of the present schema is read in this way, with the checks that `Ledger` makes. Where anything
else is found, `Ledger` is asked, which waits for locks, brings a file up to date, or says what is wrong with it.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from charter.ledger.call import row_check
from charter.ledger.place import NoLedgerError, has_lost_commits, is_network_filesystem, is_server
from charter.ledger.sums import APPLICATION_ID, QUICK_CHECK_BYTES, SCHEMA_VERSION, SUMMED, check_of_sums

Answer = TypeVar("Answer")
Counts = dict[tuple[str, str], int]
"""By stage and fingerprint."""

_SUMS = ", ".join(f'sum("{name}")' for name in (*SUMMED, "sum_check"))
_ENDED = f"SELECT stage, fingerprint, {_SUMS} FROM spend_sums WHERE run = coalesce(?, run) GROUP BY stage, fingerprint"
_RUNNING = "SELECT * FROM attempts WHERE outcome = 'running'"


class _NotSoundError(Exception):
    """The file is not one that can be read without `Ledger`."""


def attempt_counts(place: str | Path, *, run: str | None) -> Counts:
    """Count the attempts of a run (None: of all) by stage and fingerprint, running ones included.

    What `Ledger.open(place, create=False).attempt_counts(run=run)` gives, with its errors; none before the first run.
    """
    counts = None if is_server(place) else counts_of_sound_file(Path(place), run=run)
    if counts is not None:
        return counts
    from charter.ledger.store import Ledger

    try:
        with Ledger.open(place, create=False) as ledger:
            return ledger.attempt_counts(run=run)
    except NoLedgerError:
        return {}


def last_signs(place: str | Path, *, run: str | None) -> dict[str, float]:
    """Return the newest heartbeat of the running attempts of a run, unix seconds by stage."""
    rows = None if is_server(place) else _of_sound_file(Path(place), lambda ledger: _running(ledger, run))
    if rows is None:
        from charter.ledger.store import Ledger

        try:
            with Ledger.open(place, create=False) as ledger:
                rows = [(item.stage, item.fingerprint, item.last_heartbeat) for item in ledger.running(run=run)]
        except NoLedgerError:
            return {}
    return {stage: at for stage, _, at in sorted(rows, key=lambda row: row[2])}


def counts_of_sound_file(path: Path, *, run: str | None) -> Counts | None:
    """Return the counts in a file; None where the file, or its place, is not as `Ledger` leaves it."""

    def count(ledger: sqlite3.Connection) -> Counts:
        counts = _ended(ledger, run)
        for stage, fingerprint, _ in _running(ledger, run):
            counts[stage, fingerprint] = counts.get((stage, fingerprint), 0) + 1
        return counts

    return _of_sound_file(path, count)


def _of_sound_file(path: Path, read: Callable[[sqlite3.Connection], Answer]) -> Answer | None:
    if is_network_filesystem(path.parent) or has_lost_commits(path):
        return None
    try:
        address = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _refuse_unsound(connection)
            return read(connection)
    except (sqlite3.Error, UnicodeError, _NotSoundError):
        return None


def _refuse_unsound(connection: sqlite3.Connection) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID or _pragma(connection, "user_version") != SCHEMA_VERSION:
        raise _NotSoundError
    is_small = _pragma(connection, "page_count") * _pragma(connection, "page_size") <= QUICK_CHECK_BYTES
    if is_small and connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise _NotSoundError


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _ended(connection: sqlite3.Connection, run: str | None) -> Counts:
    counts: Counts = {}
    for stage, fingerprint, *values in connection.execute(_ENDED, (run,)):
        sums = dict(zip(SUMMED, map(int, values), strict=False))
        if check_of_sums(sums) != values[-1]:
            raise _NotSoundError
        counts[stage, fingerprint] = sums["attempts"]
    return counts


def _running(connection: sqlite3.Connection, run: str | None) -> list[tuple[str, str, float]]:
    """Return stage, fingerprint and last heartbeat of each running attempt; columns have one order, of their checks."""
    connection.row_factory = sqlite3.Row
    running = []
    for row in connection.execute(_RUNNING):
        values = dict(row)
        if values.pop("row_check") != row_check(tuple(values.values())):
            raise _NotSoundError
        if run in (None, values["run"]):
            running.append((values["stage"], values["fingerprint"], float(values["last_heartbeat"])))
    return running
