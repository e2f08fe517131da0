"""Counts of attempts without SQLAlchemy: those of `Ledger`, or nothing, so that `Ledger` says what is wrong."""

import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import DataError
from charter.ledger import ApiUsage, Ledger
from charter.ledger.attempt_counts import attempt_counts, counts_of_sound_file
from charter.ledger.call import CallSums, RouteTotals
from charter.ledger.place import NoLedgerError

BEGUN = {"run": "demo", "stage": "sft", "kind": "sft", "fingerprint": "f" * 64, "at": 1.0}
LATER = 90_000.0
"""Seconds of a day and an hour, so that an attempt lasts over midnight."""
HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["demo", "other"]),
        st.sampled_from(["sft", "ppo"]),
        st.sampled_from(["a" * 64, "b" * 64]),
        st.sampled_from(["done", "killed", None]),
    ),
    max_size=8,
)


@pytest.fixture
def path(tmp_path):
    """A ledger with an attempt that has ended and one that runs."""
    path = tmp_path / "run #1?" / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        ledger.end(ledger.begin(**BEGUN), at=2.0, outcome="done")
        ledger.begin(**BEGUN)
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def no_ledger(monkeypatch):
    """Fails the test where the ledger is opened with SQLAlchemy."""

    def refuse(*_, **__):
        raise AssertionError("the ledger was opened with SQLAlchemy")

    monkeypatch.setattr("charter.ledger.store.open_database", refuse)


@settings(max_examples=10, deadline=None)
@given(HISTORY)
def test_they_are_those_of_the_ledger(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("counts") / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        for run, stage, fingerprint, outcome in history:
            attempt = ledger.begin(**BEGUN | {"run": run, "stage": stage, "fingerprint": fingerprint})
            ledger.heartbeat(attempt, at=LATER)
            if outcome is not None:
                ledger.end(attempt, at=LATER, outcome=outcome)
        expected = {run: ledger.attempt_counts(run=run) for run in ("demo", "other", "none")}
    assert {run: counts_of_sound_file(path, run=run) for run in expected} == expected


def test_calls_are_no_attempts(path):
    asked = CallSums(requests=3)
    route = RouteTotals(endpoint="http://judge:8000/v1", model="m", first_at=1.0, last_at=2.0, sums=asked)
    with Ledger.open(path) as ledger:
        ledger.record_usage([ApiUsage(run="demo", stage="label", fingerprint="f", store_id="1", route=route)])
        expected = ledger.attempt_counts(run="demo")
    assert expected[("label", "f")] == 0
    assert counts_of_sound_file(path, run="demo") == expected


def test_a_sound_file_is_read_without_sqlalchemy(path, no_ledger):
    assert attempt_counts(path, run="demo") == {("sft", "f" * 64): 2}
    assert attempt_counts(str(path), run="none") == {}


def test_who_writes_is_not_waited_for(path, no_ledger):
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM spend_sums")
        assert attempt_counts(path, run="demo") == {("sft", "f" * 64): 2}


def test_a_file_that_is_held_is_left_to_the_ledger(path, monkeypatch):
    monkeypatch.setattr("charter.ledger.database.BUSY_TIMEOUT_MILLISECONDS", 20)
    change(path, "PRAGMA journal_mode=DELETE")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert counts_of_sound_file(path, run="demo") is None
        with pytest.raises(DataError, match="locked by another process"):
            attempt_counts(path, run="demo")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA user_version=99", "ledger schema 99"),
        ("PRAGMA application_id=7", "not a Charter ledger"),
        ("UPDATE spend_sums SET attempts = 7", "sums by day do not match their check"),
        ("UPDATE spend_sums SET milliseconds = milliseconds + 1", "sums by day do not match their check"),
        ("UPDATE attempts SET pid = 77 WHERE outcome = 'running'", "attempt 2 of stage 'sft' does not match its check"),
        ("UPDATE attempts SET run = 'x' WHERE outcome = 'running'", None),
        ("UPDATE attempts SET stage = CAST(x'FF' AS TEXT) WHERE outcome = 'running'", "does not match its check"),
        ("UPDATE attempts SET row_check = NULL WHERE outcome = 'running'", "does not match its check"),
    ],
)
def test_what_is_wrong_is_said_by_the_ledger(path, statement, said):
    change(path, statement)
    assert counts_of_sound_file(path, run="demo") is None
    if said:
        with pytest.raises(DataError, match=said):
            attempt_counts(path, run="demo")


def test_a_damaged_page_is_found(path, monkeypatch):
    with Ledger.open(path) as ledger:
        for _ in range(60):
            ledger.end(ledger.begin(**BEGUN), at=2.0, outcome="done")
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'bills'").fetchone()
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(bytes(content))
    assert counts_of_sound_file(path, run="demo") is None
    with pytest.raises(DataError, match="damaged"):
        attempt_counts(path, run="demo")
    monkeypatch.setattr("charter.ledger.attempt_counts.QUICK_CHECK_BYTES", 0)
    assert counts_of_sound_file(path, run="demo") == {("sft", "f" * 64): 62}


def test_all_is_read_as_it_was_at_one_moment(path, monkeypatch):
    from charter.ledger import attempt_counts as module

    ended = module._ended

    def then_the_other_ends(connection, run):
        found = ended(connection, run)
        with Ledger.open(path) as ledger:
            ledger.end(2, at=3.0, outcome="done")
        return found

    monkeypatch.setattr(module, "_ended", then_the_other_ends)
    assert counts_of_sound_file(path, run="demo") == {("sft", "f" * 64): 2}


def test_a_file_that_is_taken_away_is_not_made_again(path, monkeypatch):
    monkeypatch.setattr("charter.ledger.attempt_counts.has_lost_commits", lambda it: it.unlink())
    assert counts_of_sound_file(path, run="demo") is None
    assert not path.exists()


def test_waiting_for_a_lock_is_left_to_the_ledger(path, monkeypatch):
    asked = []
    connect = sqlite3.connect
    monkeypatch.setattr("sqlite3.connect", lambda *where, **how: asked.append(how["timeout"]) or connect(*where, **how))
    counts_of_sound_file(path, run="demo")
    assert asked == [0]


@pytest.mark.parametrize("found", ["is_network_filesystem", "has_lost_commits"])
def test_a_place_that_the_ledger_refuses_is_not_read(path, monkeypatch, found):
    monkeypatch.setattr(f"charter.ledger.attempt_counts.{found}", lambda *_, **__: True)
    assert counts_of_sound_file(path, run="demo") is None


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    path = tmp_path / "ledger.sqlite"
    assert attempt_counts(path, run="demo") == {}
    assert not path.exists()


def test_what_is_no_database_is_said_by_the_ledger(path):
    path.write_bytes(b"not a database at all, " * 400)
    with pytest.raises(DataError, match="damaged"):
        attempt_counts(path, run="demo")


def test_a_server_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr("charter.ledger.attempt_counts.counts_of_sound_file", lambda *_, **__: {("never", "f"): 1})

    def opened(where, **_):
        asked.append(where)
        raise DataError("no server")

    monkeypatch.setattr("charter.ledger.store.open_database", opened)
    with pytest.raises(DataError, match="no server"):
        attempt_counts("postgresql://db.lab/charter", run="demo")
    assert asked == ["postgresql://db.lab/charter"]


def test_a_server_without_a_ledger_has_no_attempts(monkeypatch):
    def opened(*_, **__):
        raise NoLedgerError("there is no ledger")

    monkeypatch.setattr("charter.ledger.store.open_database", opened)
    assert attempt_counts("postgresql://db.lab/charter", run="demo") == {}
