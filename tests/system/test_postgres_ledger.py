"""The ledger of attempts on a PostgreSQL server."""

import os
import subprocess
import sys
import threading

import psycopg
import pytest
from ledger_contract import *  # noqa: F403
from ledger_contract import STAGE

from charter.errors import DataError, UsageError
from charter.ledger import Ledger, database
from charter.ledger.database import LedgerUnreachableError


@pytest.fixture
def where(postgres):
    return postgres.new_database()


@pytest.mark.parametrize("version", [0, 5])
def test_another_schema_is_refused(where, version):
    Ledger.open(where).close()
    with psycopg.connect(where) as connection:
        connection.execute(f"UPDATE charter_schema SET version = {version}")
    with pytest.raises(DataError, match=f"has ledger schema {version}; this Charter reads and writes schema 1 alone"):
        Ledger.open(where)


def test_a_missing_ledger_is_said_when_it_may_not_be_made(where):
    with pytest.raises(UsageError, match="charter run"):
        Ledger.open(where, create=False)


def test_a_server_that_is_not_there_is_said(postgres):
    address = postgres.url("postgres").replace(str(postgres.port), "1")
    with pytest.raises(LedgerUnreachableError, match="PGPASSFILE"):
        Ledger.open(address)


def test_a_missing_database_is_said(postgres):
    with pytest.raises(DataError, match="does not exist"):
        Ledger.open(postgres.url("nowhere"))


def test_a_commit_is_on_disk_even_where_the_server_would_not_wait(where):
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        with Ledger.open(where) as ledger, ledger._database.engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
    finally:
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres RESET synchronous_commit")


@pytest.mark.smoke
def test_a_restart_of_the_server_is_waited_out(postgres, where, monkeypatch):
    monkeypatch.setattr(database, "SECONDS_BETWEEN_TRIES", [0.5] * 1000)  # however long it takes here
    with Ledger.open(where) as ledger:
        attempt = ledger.begin(**STAGE, at=1.0)
        postgres.stop("fast")
        starting = threading.Thread(target=postgres.start)
        starting.start()
        ledger.heartbeat(attempt, at=5.0, step=3)
        ledger.end(attempt, at=6.0, outcome="done", step=4)
        starting.join()
        assert [item.last_step for item in ledger.attempts()] == [4]


def test_processes_that_open_a_new_database_at_once_make_it_once(where):
    program = "import sys; from charter.ledger import Ledger; Ledger.open(sys.argv[1]).close()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen([sys.executable, "-c", program, where], env=environment) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    with Ledger.open(where) as ledger:
        assert ledger.begin(**STAGE, at=1.0) == 1
