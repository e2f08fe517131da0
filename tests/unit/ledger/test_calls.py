"""The store of calls in a SQLite file."""

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
