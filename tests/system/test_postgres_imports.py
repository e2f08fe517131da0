"""Taking imports back from a ledger on a PostgreSQL server, also by two at once."""

import threading

import psycopg
import pytest
from take_back_contract import *  # noqa: F403
from take_back_contract import FOREIGN, SECOND, own_attempt
from waiting import eventually

from charter.ledger import Ledger
from charter.ledger.rows import remove_imported

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def where(postgres):
    return postgres.new_database()


def test_two_that_take_the_same_import_back_remove_it_once(where):
    with Ledger.open(where) as ledger, Ledger.open(where) as other:
        own_attempt(ledger)
        ledger.record_imported([FOREIGN, SECOND])
        late = []
        second = threading.Thread(target=lambda: late.append(other.take_back_import("abc", run="demo")))
        with ledger._database.transaction() as connection:
            assert remove_imported(connection, run="demo", import_id="abc") == 2
            second.start()
            wait_until_one_waits(where)
        second.join()
        assert late == [0]
        ledger.check_sums()
        assert [item.is_imported for item in ledger.attempts()] == [False]


def wait_until_one_waits(where):
    with psycopg.connect(where, autocommit=True) as connection:
        eventually(lambda: connection.execute(WAITING).fetchone()[0], "nobody waits for the row", seconds=600)
