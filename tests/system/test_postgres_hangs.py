"""A PostgreSQL server that hangs: what is asked of it ends, and counts as a server that is away."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from ledger_contract import STAGE

from charter.ledger import Ledger, database
from charter.ledger.database import LedgerUnreachableError

LONG = "SELECT pg_sleep(120)"
"""So long that a test without the bound fails, and ends."""

OPTIONS = {
    "keepalives": (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    "keepalives_idle": (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    "keepalives_interval": (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    "keepalives_count": (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    "tcp_user_timeout": (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
}


@pytest.fixture
def where(postgres):
    return postgres.new_database()


@pytest.fixture
def hurried(monkeypatch):
    """Bounds that a test can wait for, and that statements of milliseconds keep where a machine stalls now and then."""
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 5.0)
    monkeypatch.setattr(database, "SILENCE_SECONDS", 10.0)


@contextmanager
def frozen(backend: int) -> Iterator[None]:
    """A backend that is stopped in the middle of its work; it goes on at the latest when it is not given up."""
    os.kill(backend, signal.SIGSTOP)
    thaw = threading.Timer(120.0, os.kill, (backend, signal.SIGCONT))
    thaw.start()
    try:
        yield
        assert thaw.is_alive(), "the frozen backend was waited for"
    finally:
        thaw.cancel()
        os.kill(backend, signal.SIGCONT)


def test_a_statement_that_does_not_end_is_ended_by_the_server(where, hurried):
    with Ledger.open(where) as ledger:
        with pytest.raises(LedgerUnreachableError, match="statement timeout"):
            ledger._database.repeated(lambda it: it.exec_driver_sql(LONG))
        assert ledger.begin(**STAGE, at=1.0) == 1


def test_a_lock_that_nobody_gives_back_is_not_waited_for(where, hurried):
    with Ledger.open(where) as ledger, psycopg.connect(where) as other:
        attempt = ledger.begin(**STAGE, at=1.0)
        other.execute("LOCK TABLE attempts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LedgerUnreachableError, match="statement timeout"):
            ledger.heartbeat(attempt, at=5.0, step=3)
        other.rollback()
        ledger.heartbeat(attempt, at=6.0, step=4)
        assert [item.last_step for item in ledger.attempts()] == [4]


def test_a_server_that_freezes_in_a_transaction_is_given_up(where, hurried):
    def work(connection):
        with frozen(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()):
            connection.exec_driver_sql("SELECT 1")

    with Ledger.open(where) as ledger:
        with pytest.raises(LedgerUnreachableError, match="silent for 10 s"):
            ledger._database.repeated(work)
        assert ledger.begin(**STAGE, at=1.0) == 1


def test_books_go_on_beside_a_connection_that_has_frozen(where, hurried):
    with Ledger.open(where) as ledger:
        attempt = ledger.begin(**STAGE, at=1.0)
        with ledger._database.transaction() as connection:
            backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with frozen(backend):
            ledger.heartbeat(attempt, at=5.0, step=3)
            with psycopg.connect(where) as other:
                assert other.execute("SELECT last_step FROM attempts").fetchone() == (3,)


def test_a_machine_that_is_gone_is_noticed_by_the_kernel(where):
    with Ledger.open(where) as ledger, ledger._database.engine.connect() as connection:
        descriptor = os.dup(connection.connection.dbapi_connection.fileno())
        with socket.socket(fileno=descriptor) as ours:
            told = {name: ours.getsockopt(level, number) for name, (level, number) in OPTIONS.items()}
    assert told == database.TCP_SETTINGS


def test_an_address_may_say_otherwise(where):
    with Ledger.open(f"{where}?tcp_user_timeout=7000") as ledger, ledger._database.engine.connect() as connection:
        parameters = connection.connection.dbapi_connection.info.get_parameters()
    assert (parameters["tcp_user_timeout"], parameters["keepalives_idle"]) == ("7000", "15")
