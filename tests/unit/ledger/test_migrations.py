"""Old ledgers are brought to the present schema, with what they hold; the tables are those of a new one."""

import sqlite3

import pytest

pytest.importorskip("sqlalchemy")

from charter.errors import DataError
from charter.ledger import Ledger
from charter.ledger.attempt_rows import check_of
from charter.ledger.call import row_check
from charter.ledger.call_books import CallBooks
from charter.ledger.calls import CallStore
from charter.ledger.migrations import STEPS
from charter.ledger.old_tables import TABLES_OF_3, statements_of_4
from charter.ledger.rebuilding import CHECKED_BEFORE_4
from charter.ledger.schema_version import APPLICATION_ID, SCHEMA_VERSION

ATTEMPTS_OF_2 = """
CREATE TABLE attempts (
    attempt_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL,
    stage TEXT NOT NULL,
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    accelerator TEXT NOT NULL,
    count INTEGER NOT NULL,
    infra TEXT NOT NULL,
    market TEXT NOT NULL,
    started_at FLOAT NOT NULL,
    started_monotonic FLOAT,
    ended_at FLOAT,
    duration_milliseconds INTEGER NOT NULL,
    clock TEXT NOT NULL,
    last_heartbeat FLOAT NOT NULL,
    first_step INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    kept_step INTEGER,
    outcome TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    pairs INTEGER NOT NULL,
    episodes INTEGER NOT NULL,
    records INTEGER NOT NULL,
    price_micro_usd_per_hour INTEGER,
    price_source TEXT,
    price_as_of TEXT,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    note TEXT NOT NULL,
    UNIQUE (run, stage, number),
    CHECK (duration_milliseconds >= 0),
    CHECK (count >= 1),
    CHECK (outcome IN ('running', 'done', 'failed', 'interrupted', 'killed', 'hung'))
)
"""
CHARGES_OF_2 = """
CREATE TABLE charges (
    "x_AttemptId" INTEGER NOT NULL,
    "x_StageId" TEXT NOT NULL,
    "ChargePeriodStart" TEXT NOT NULL,
    "ChargePeriodEnd" TEXT NOT NULL,
    "ChargeCategory" TEXT NOT NULL,
    "ChargeDescription" TEXT NOT NULL,
    "BillingCurrency" TEXT NOT NULL,
    "ServiceCategory" TEXT NOT NULL,
    "ServiceName" TEXT NOT NULL,
    "Provider" TEXT NOT NULL,
    "ResourceType" TEXT NOT NULL,
    "PricingCategory" TEXT NOT NULL,
    "PricingQuantity" TEXT NOT NULL,
    "PricingUnit" TEXT NOT NULL,
    "ListUnitPrice" INTEGER,
    "ListCost" INTEGER,
    "EffectiveCost" INTEGER,
    "BilledCost" INTEGER,
    "Tags" TEXT NOT NULL,
    "x_UsefulSeconds" FLOAT NOT NULL,
    "x_LostSeconds" FLOAT NOT NULL,
    "x_Tokens" INTEGER NOT NULL,
    "x_Episodes" INTEGER NOT NULL,
    "x_PreferencePairs" INTEGER NOT NULL,
    "x_Records" INTEGER NOT NULL,
    "x_PriceSource" TEXT,
    "x_PriceAsOf" TEXT,
    "x_EstimateOrActual" TEXT NOT NULL,
    PRIMARY KEY ("x_AttemptId"),
    FOREIGN KEY("x_AttemptId") REFERENCES attempts (attempt_id)
)
"""
ATTEMPTS_OF_1 = ATTEMPTS_OF_2.replace(", 'hung'", "")
ATTEMPT = dict(
    attempt_id=1, run="demo", stage="sft", kind="sft", number=1, fingerprint="f" * 64, accelerator="cpu", count=1,
    infra="local", market="owned", started_at=100.0, ended_at=110.0, duration_milliseconds=10_000, clock="wall",
    last_heartbeat=110.0, first_step=0, last_step=4, outcome="killed", tokens=7, pairs=0, episodes=0, records=0,
    price_micro_usd_per_hour=3_600_000, price_source="here", host="box", pid=1, note="",
)  # fmt: skip


def old_file(path, *, version):
    """A ledger as that version of Charter made it, with one attempt and no charge yet."""
    with sqlite3.connect(path) as connection:
        connection.execute(ATTEMPTS_OF_1 if version == 1 else ATTEMPTS_OF_2)
        connection.execute(CHARGES_OF_2)
        marks = ", ".join(f":{name}" for name in ATTEMPT)
        names = ", ".join(f'"{name}"' for name in ATTEMPT)
        connection.execute(f"INSERT INTO attempts ({names}) VALUES ({marks})", ATTEMPT)
        if version >= 3:
            connection.execute("ALTER TABLE attempts ADD COLUMN row_check INTEGER")
            check = row_check(tuple(ATTEMPT.get(name) for name in CHECKED_BEFORE_4))
            connection.execute("UPDATE attempts SET row_check = ?", (check,))
            for statement in TABLES_OF_3:
                connection.execute(statement)
        if version >= 4:
            for statement in statements_of_4("sqlite"):
                connection.execute(statement)
            found = connection.execute("SELECT * FROM attempts")
            row = dict(zip((column[0] for column in found.description), found.fetchone(), strict=True))
            connection.execute("UPDATE attempts SET row_check = ?", (check_of(row),))
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    return path


def layout(path):
    """Tables, columns, keys, indices and checks of a file, whatever the words it was made with."""
    with sqlite3.connect(path) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        found = {
            name: [
                connection.execute(f"PRAGMA table_info({name})").fetchall(),
                connection.execute(f"PRAGMA foreign_key_list({name})").fetchall(),
                sorted(row[2:] for row in connection.execute(f"PRAGMA index_list({name})")),
            ]
            for name in names
        }
        checks = connection.execute("SELECT name, instr(sql, 'hung') > 0, instr(sql, 'void') > 0 FROM sqlite_master")
        found["checks"] = sorted(row for row in checks if row[0] in names)
    connection.close()
    return found


@pytest.mark.parametrize("version", sorted(STEPS))
def test_an_old_ledger_is_taken_over_whole(tmp_path, version):
    path = old_file(tmp_path / "ledger.sqlite", version=version)
    with Ledger.open(path) as ledger:
        (attempt,) = ledger.attempts()
        assert {name: getattr(attempt, name) for name in ATTEMPT} == ATTEMPT
        second = ledger.begin(run="demo", stage="sft", kind="sft", fingerprint="f" * 64, at=200.0)
        ledger.end(second, at=220.0, outcome="hung", step=4)
        assert [item.number for item in ledger.attempts()] == [1, 2]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        charged = connection.execute("SELECT x_AttemptId, EffectiveCost FROM charges ORDER BY 1").fetchall()
    connection.close()
    assert charged == [(1, 10_000), (2, None)]


@pytest.mark.parametrize("version", sorted(STEPS))
def test_its_sums_are_those_of_its_attempts(tmp_path, version):
    with Ledger.open(old_file(tmp_path / "ledger.sqlite", version=version)) as ledger:
        ledger.check_sums()
        (part,) = ledger.sums(by=("stage", "day"))
        assert (part.key, part.micro_usd, part.totals) == (
            {"stage": "sft", "day": "1970-01-01"},
            10_000,
            ledger.totals(),
        )


def test_a_row_that_had_changed_before_the_step_is_not_given_a_new_check(tmp_path):
    path = old_file(tmp_path / "ledger.sqlite", version=3)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE attempts SET tokens = 8")
    connection.close()
    with pytest.raises(DataError, match="does not match its check"):
        Ledger.open(path)


@pytest.mark.parametrize("version", sorted(STEPS))
def test_its_tables_are_those_of_a_new_ledger(tmp_path, version):
    Ledger.open(tmp_path / "new.sqlite").close()
    path = old_file(tmp_path / "old.sqlite", version=version)
    Ledger.open(path).close()
    assert layout(path) == layout(tmp_path / "new.sqlite")


def test_every_version_has_a_step():
    assert sorted(STEPS) == list(range(1, SCHEMA_VERSION))


def test_a_step_that_fails_leaves_the_old_ledger(tmp_path, monkeypatch):
    def fail(connection):
        connection.exec_driver_sql("DROP TABLE charges")
        raise RuntimeError("in the middle")

    path = old_file(tmp_path / "ledger.sqlite", version=1)
    before = layout(path)
    monkeypatch.setitem(STEPS, 2, fail)
    with pytest.raises(RuntimeError):
        Ledger.open(path)
    assert layout(path) == before
    monkeypatch.undo()
    with Ledger.open(path) as ledger:
        assert len(ledger.attempts()) == 1


@pytest.mark.parametrize(
    "opens", [CallBooks.open, lambda path: CallStore.open(path, run="r", stage="s", fingerprint="f")]
)
def test_a_newer_file_is_refused_by_all_who_open_it(tmp_path, opens):
    path = tmp_path / "calls.sqlite"
    Ledger.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(DataError, match=r"newer Charter.*schema 99"):
        opens(path)
