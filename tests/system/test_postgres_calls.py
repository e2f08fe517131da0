"""The store of calls on a PostgreSQL server."""

import threading

import pytest
from call_checks import checked_totals
from call_contract import *  # noqa: F403
from call_contract import SCOPE, answered, call
from call_kills import *  # noqa: F403

from charter.ledger import database
from charter.ledger.calls import CallStore


@pytest.fixture
def where(postgres):
    return postgres.new_database()


@pytest.mark.smoke
def test_a_crash_of_the_server_is_waited_out(postgres, where, monkeypatch):
    monkeypatch.setattr(database, "SECONDS_BETWEEN_TRIES", [0.5] * 1000)  # however long it takes here
    with CallStore.open(where, **SCOPE) as store:
        store.intend([call(1)])
        postgres.stop("immediate")
        starting = threading.Thread(target=postgres.start)
        starting.start()
        store.settle([answered(1)])
        store.intend([call(2)])
        starting.join()
        assert store.answers(["key-1"]) == {"key-1": '{"text": "1"}'}
        assert checked_totals(store).sums.requests == 2


def test_another_run_on_the_server_has_answers_of_its_own(store, where):
    store.intend([call(1)])
    store.settle([answered(1)])
    with CallStore.open(where, **{**SCOPE, "run": "another"}) as apart:
        assert apart.answers(["key-1"]) == {}


def test_writers_of_one_stage_share_a_database(where):
    def work(first):
        with CallStore.open(where, **SCOPE) as store:
            for number in range(first, first + 20):
                store.intend([call(number)])
                store.settle([answered(number)])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 60, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with CallStore.open(where, **SCOPE) as store:
        assert checked_totals(store).sums.answered == 60
