"""Taking imports back from a ledger in a SQLite file."""

import pytest
from take_back_contract import *  # noqa: F403

from charter.errors import DataError
from charter.ledger import Ledger
from charter.ledger.imported import NOTE, note_of


@pytest.fixture
def where(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.mark.parametrize(
    ("note", "source", "at"),
    [
        (
            "imported from a (b) c.json (trl) at 2026-07-01T09:00:00Z; sha256 0123",
            "a (b) c.json",
            "2026-07-01T09:00:00",
        ),
        ("imported from two\nlines (mlflow); sha256 0123", "two\nlines", None),
        (note_of("x at 2026-07-01T09:00:00Z", "verl", at=0.9), "x at 2026-07-01T09:00:00Z", "1970-01-01T00:00:00"),
    ],
)
def test_a_note_says_where_an_attempt_comes_from(note, source, at):
    found = NOTE.fullmatch(note)
    assert (found["source"], found["at"]) == (source, at)


def test_a_damaged_row_is_not_removed(where):
    with Ledger.open(where) as ledger:
        ledger.record_imported([FOREIGN])  # noqa: F405
        with ledger._database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE attempts SET tokens = 9")
        with pytest.raises(DataError, match="does not match its check"):
            ledger.take_back_import("abc", run="demo")
        with ledger._database.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM attempts").scalar_one() == 1
