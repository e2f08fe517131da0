"""The store of calls in a SQLite file."""

import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("sqlalchemy")

from call_contract import *  # noqa: F403
from call_contract import SCOPE, answered, call

from charter.errors import DataError
from charter.ledger import Ledger
from charter.ledger.calls import CallStore


@pytest.fixture
def where(tmp_path):
    return tmp_path / "stage" / "calls.sqlite"


def test_a_store_on_a_network_file_system_is_refused(tmp_path):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("1 0 0:1 / / rw - nfs4 server:/ rw\n")
    with pytest.raises(DataError, match=r"network file system.*\n.*storage.ledger"):
        CallStore.open(tmp_path / "calls.sqlite", **SCOPE, mountinfo=mountinfo)
    assert not (tmp_path / "calls.sqlite").exists()


def test_one_file_may_hold_attempts_and_calls(where):
    with Ledger.open(where) as ledger, CallStore.open(where, **SCOPE) as store:
        ledger.begin(run="demo", stage="label", kind="label", fingerprint="f" * 64, at=1.0)
        store.intend([call(1)])
        store.settle([answered(1)])
        assert store.totals().sums.answered == len(ledger.attempts()) == 1


def test_a_renamed_project_has_the_answers_that_it_paid(where):
    with CallStore.open(where, **SCOPE) as store:
        store.intend([call(1)])
        store.settle([answered(1)])
        paid, answers = store.totals(), store.answers([call(1).key])
    with CallStore.open(where, **{**SCOPE, "run": "renamed"}) as store:
        assert store.totals() == paid
        assert store.answers([call(1).key]) == answers != {}


def test_paid_answers_of_another_schema_are_not_to_be_moved(tmp_path):
    path = tmp_path / "calls.sqlite"
    CallStore.open(path, run="r", stage="s", fingerprint="f").close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=2")
    with pytest.raises(DataError, match="leave it where it is: it holds answers that are paid") as refused:
        CallStore.open(path, run="r", stage="s", fingerprint="f")
    assert "move it away" not in str(refused.value)
