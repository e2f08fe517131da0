"""The ledger in a SQLite file: what is acknowledged is there; damaged and foreign files are refused."""

import sqlite3
import sys

import pytest

pytest.importorskip("sqlalchemy")

from ledger_contract import *  # noqa: F403
from ledger_contract import STAGE

from charter.errors import DataError, MissingExtraError, UsageError
from charter.ledger import Ledger
from charter.ledger.calls import CallBooks, CallStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "ledger.sqlite"


@pytest.fixture
def where(path):
    return path


def test_settings_are_those_that_survive_a_power_cut(ledger):
    with ledger._database.engine.connect() as connection:
        setting = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    assert setting == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 10_000, "foreign_keys": 1}


@pytest.mark.parametrize("version", [0, 5])
@pytest.mark.parametrize(
    "opens", [Ledger.open, CallBooks.open, lambda path: CallStore.open(path, run="r", stage="s", fingerprint="f")]
)
def test_another_schema_is_refused_and_left_alone(ledger, path, version, opens):
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match=f"has ledger schema {version}; this Charter reads and writes schema 1 alone"):
        opens(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused(path):
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(DataError, match="not a Charter ledger"):
        Ledger.open(path)


def test_a_file_that_is_no_database_is_refused(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database at all, " * 400)
    with pytest.raises(DataError, match="damaged"):
        Ledger.open(path)


def test_a_damaged_page_is_found_when_the_ledger_is_opened(ledger, path):
    for _ in range(40):
        ledger.begin(**STAGE, at=1.0)
    ledger.close()
    content = bytearray(path.read_bytes())
    content[8192 : 8192 + 2048] = b"\xff" * 2048
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="damaged"):
        Ledger.open(path)


def test_a_missing_ledger_is_said_when_it_may_not_be_made(path):
    with pytest.raises(UsageError, match="charter run"):
        Ledger.open(path, create=False)
    assert not path.exists()


def test_without_sqlalchemy_the_extra_is_named(path, monkeypatch):
    for name in ("database", "schema", "rows"):
        monkeypatch.delitem(sys.modules, f"charter.ledger.{name}", raising=False)
        monkeypatch.delattr(f"charter.ledger.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtraError, match=r"\.\[run\]"):
        Ledger.open(path)


def test_importing_the_ledger_does_not_import_sqlalchemy():
    import subprocess

    program = "import sys, charter.ledger, charter.ledger.focus; assert 'sqlalchemy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_ledger_held_by_another_program_is_said_after_waiting(path, monkeypatch):
    monkeypatch.setattr("charter.ledger.database.BUSY_TIMEOUT_MILLISECONDS", 50)
    with Ledger.open(path) as ledger:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match="locked by another process"):
            ledger.begin(**STAGE, at=1.0)
        holder.close()
        assert ledger.begin(**STAGE, at=1.0) == 1


def test_a_large_file_is_read_whole_only_when_asked(ledger, path, monkeypatch):
    for _ in range(40):
        ledger.begin(**STAGE, at=1.0)
    ledger.close()
    content = bytearray(path.read_bytes())
    content[8192 : 8192 + 2048] = b"\xff" * 2048
    path.write_bytes(bytes(content))
    monkeypatch.setattr("charter.ledger.schema.QUICK_CHECK_BYTES", 0)
    Ledger.open(path).close()
    with pytest.raises(DataError, match="damaged"):
        Ledger.open(path, check_whole=True)


def test_a_changed_amount_is_noticed_when_it_is_read(ledger, path):
    ledger.begin(**STAGE, at=1.0, price_micro_usd_per_hour=2_500_000)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE attempts SET price_micro_usd_per_hour = 25")
    connection.close()
    with pytest.raises(DataError, match="attempt 1 of stage 'sft' does not match its check"):
        ledger.attempts()
