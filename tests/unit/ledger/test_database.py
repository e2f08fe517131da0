"""Where a ledger may be kept: addresses that are refused, and what is said without the driver."""

import sys

import pytest

pytest.importorskip("sqlalchemy")

from charter.errors import DataError, MissingExtraError, UsageError
from charter.ledger import Ledger
from charter.ledger.database import server_url
from charter.ledger.opening import open_database


@pytest.mark.parametrize("address", ["postgresql://me:hunter2@db/charter", "postgresql://db/charter?password=hunter2"])
def test_a_password_in_an_address_is_refused_and_not_repeated(address):
    with pytest.raises(UsageError, match="PGPASSFILE") as told:
        server_url(address)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "address", ["mysql://db/charter", "sqlite:///a.sqlite", "://", "postgresql+asyncpg://db/charter"]
)
def test_another_database_is_refused_with_what_would_work(address):
    with pytest.raises(UsageError, match="postgresql://HOST/DATABASE"):
        Ledger.open(address)


def test_without_psycopg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"\.\[postgres\]"):
        Ledger.open("postgresql://db/charter")


def test_no_ledger_is_made_on_a_network_file_system(tmp_path):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"1 0 0:1 / / rw - ext4 a rw\n2 0 0:2 / {tmp_path} rw - nfs4 server:/ rw\n")
    with pytest.raises(DataError, match="network file system"):
        open_database(tmp_path / "run" / "ledger.sqlite", mountinfo=mountinfo)
    assert not (tmp_path / "run").exists()
