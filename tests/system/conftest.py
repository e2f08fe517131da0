"""What needs packages of the system: a PostgreSQL server, started once for all tests and given back at the end."""

import tempfile
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "ledger_contract",
    "sums_contract",
    "stored_contract",
    "call_contract",
    "call_kills",
    "postgres_server",
    "take_back_contract",
)


@pytest.fixture(scope="session")
def postgres():
    """A running server. Its directory is short-lived, and readable by the server's own user."""
    from postgres_server import PostgresServer

    with tempfile.TemporaryDirectory(prefix="charter-postgres-") as directory:
        Path(directory).chmod(0o755)
        server = PostgresServer(directory=Path(directory) / "server")
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
