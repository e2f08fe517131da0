"""The write-ahead log: a torn end is what a power cut leaves; damage before it has lost committed transactions."""

import random
import sqlite3

import pytest

from charter.ledger.place import FRAME_HEADER_BYTES, HEADER_BYTES, has_lost_commits, lost_commits

PAGE_BYTES = 512
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES


@pytest.fixture
def database(tmp_path):
    """A database whose log holds ten transactions; it stays open, so that the log stays."""
    path = tmp_path / "a.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (value TEXT)")
    for number in range(10):
        connection.execute("INSERT INTO t VALUES (?)", (str(number) * 300,))
    yield path
    connection.close()


@pytest.fixture
def log(database):
    return database.with_name("a.sqlite-wal").read_bytes()


def last_transaction(log):
    """Where the last transaction of a log begins."""
    commits = [
        start for start in range(HEADER_BYTES, len(log), FRAME_BYTES) if log[start + 4 : start + 8] != b"\0\0\0\0"
    ]
    return commits[-2] + FRAME_BYTES


def test_complete_or_cut_log_has_lost_no_commits(log, database):
    assert len(log) > 10 * FRAME_BYTES
    assert not has_lost_commits(database)
    for end in range(0, len(log), 97):
        assert not lost_commits(log[:end])


def test_every_flip_before_the_last_transaction_is_found(log):
    draw = random.Random(3)
    # The bytes that say whether a frame ends a transaction can make one of two transactions; the rest cannot.
    for _ in range(60):
        position = draw.randrange(last_transaction(log) - FRAME_BYTES)
        changed = bytearray(log)
        changed[position] ^= 1 << draw.randrange(8)
        assert lost_commits(bytes(changed)), position


def test_damage_to_the_last_transaction_is_taken_for_a_torn_one(log):
    changed = bytearray(log)
    changed[-1] ^= 1
    assert not lost_commits(bytes(changed))


def test_frames_left_from_before_the_log_began_anew_are_none_of_it(database):
    with sqlite3.connect(database, isolation_level=None) as other:
        assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        other.execute("INSERT INTO t VALUES ('new')")
        log = database.with_name("a.sqlite-wal").read_bytes()
        assert len({log[start + 8 : start + 16] for start in range(HEADER_BYTES, len(log), FRAME_BYTES)}) == 2
        assert not lost_commits(log)
    other.close()


def test_a_database_without_a_log_has_lost_nothing(tmp_path):
    assert not has_lost_commits(tmp_path / "none.sqlite")


def test_a_log_whose_beginning_was_zeroed_has_lost_its_commits(log):
    assert lost_commits(bytes(HEADER_BYTES) + log[HEADER_BYTES:])
    assert lost_commits(bytes(len(log)))
