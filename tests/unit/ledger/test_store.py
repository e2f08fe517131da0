"""The ledger on disk: what is acknowledged is there; damaged and foreign files are refused."""

import sqlite3
import sys

import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import DataError, MissingExtraError, UsageError
from charter.ledger import Ledger

STAGE = dict(run="demo", stage="sft", kind="sft", fingerprint="f" * 64)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger.open(path) as opened:
        yield opened


def test_an_attempt_comes_back_as_it_was_recorded(ledger, path):
    attempt_id = ledger.begin(
        **STAGE,
        at=100.0,
        monotonic=5.0,
        accelerator="H100-SXM-80GB",
        count=8,
        infra="aws",
        market="spot",
        price_micro_usd_per_hour=2_500_000,
        price_source="catalog",
        price_as_of="2026-07-01",
        host="node-1",
        pid=4242,
    )
    ledger.heartbeat(attempt_id, at=110.0, monotonic=15.0, step=10, kept_step=8, tokens=1000)
    ledger.end(attempt_id, at=120.0, monotonic=25.0, outcome="done", step=20, tokens=2000, pairs=3)
    ledger.close()
    with Ledger.open(path) as again:
        (attempt,) = again.attempts()
    assert (attempt.number, attempt.outcome, attempt.duration_milliseconds) == (1, "done", 20_000)
    assert (attempt.last_step, attempt.kept_step, attempt.tokens, attempt.pairs) == (20, 8, 2000, 3)
    assert (attempt.infra, attempt.market, attempt.host, attempt.pid) == ("aws", "spot", "node-1", 4242)
    assert attempt.ended_at == 120.0


def test_attempts_of_a_stage_are_numbered_from_one(ledger):
    for stage in ("sft", "ppo", "sft"):
        ledger.begin(**STAGE | {"stage": stage}, at=1.0)
    assert [(attempt.stage, attempt.number) for attempt in ledger.attempts()] == [
        ("sft", 1),
        ("ppo", 1),
        ("sft", 2),
    ]


def test_a_clock_set_back_never_makes_a_duration_negative(ledger):
    attempt_id = ledger.begin(**STAGE, at=1_000_000.0)
    ledger.heartbeat(attempt_id, at=1_000_005.0)
    ledger.heartbeat(attempt_id, at=10.0)
    ledger.end(attempt_id, at=11.0, outcome="done")
    (attempt,) = ledger.attempts()
    assert (attempt.duration_milliseconds, attempt.clock) == (5000, "wall_backwards")
    assert attempt.ended_at == 1_000_005.0


def test_abandoned_attempts_end_as_killed_at_their_last_heartbeat(ledger):
    kept = ledger.begin(**STAGE, at=1.0)
    ledger.end(kept, at=2.0, outcome="done")
    left = ledger.begin(**STAGE | {"stage": "ppo"}, at=10.0, monotonic=0.0)
    ledger.heartbeat(left, at=14.0, monotonic=4.0, step=7)
    (closed,) = ledger.close_abandoned(now=5000.0)
    assert (closed.stage, closed.outcome, closed.ended_at) == ("ppo", "killed", 14.0)
    assert ledger.close_abandoned(now=5001.0) == ()


def test_an_attempt_that_ended_takes_no_more_heartbeats(ledger):
    attempt_id = ledger.begin(**STAGE, at=1.0)
    ledger.end(attempt_id, at=2.0, outcome="failed")
    with pytest.raises(UsageError, match="already ended: failed"):
        ledger.heartbeat(attempt_id, at=3.0)
    with pytest.raises(UsageError, match="has no attempt 99"):
        ledger.heartbeat(99, at=3.0)
    with pytest.raises(UsageError, match="cannot end as running"):
        ledger.end(attempt_id, at=3.0, outcome="running")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sft", "ppo"]),
            st.sampled_from(["done", "failed", "interrupted", None]),
            st.integers(0, 100),
            st.none() | st.integers(0, 10**8),
            st.floats(0, 1e6),
        ),
        max_size=8,
    )
)
def test_charges_on_disk_are_those_of_the_pure_account(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        for index, (stage, outcome, step, price, seconds) in enumerate(history):
            attempt_id = ledger.begin(
                **STAGE | {"stage": stage},
                at=index * 10.0,
                first_step=step // 2,
                price_micro_usd_per_hour=price,
            )
            ledger.heartbeat(attempt_id, at=index * 10.0 + seconds, step=step)
            if outcome is not None:
                ledger.end(attempt_id, at=index * 10.0 + seconds, outcome=outcome, step=step)
            else:
                ledger.close_abandoned(now=1e9)
        expected = {
            item.attempt.attempt_id: (item.cost_micro_usd, item.lost_milliseconds / 1000) for item in ledger.accounted()
        }
        total = ledger.totals()
        assert sum(part.micro_usd for part in ledger.stage_totals().values()) == total.micro_usd
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT x_AttemptId, EffectiveCost, x_LostSeconds FROM charges").fetchall()
    connection.close()
    assert {row[0]: (row[1], row[2]) for row in rows} == expected


def test_the_loss_of_a_killed_attempt_is_charged_as_soon_as_the_next_one_begins(ledger, path):
    first = ledger.begin(**STAGE, at=0.0)
    ledger.end(first, at=10.0, outcome="killed", step=10, kept_step=8)
    ledger.begin(**STAGE, at=20.0, first_step=5)
    with sqlite3.connect(path) as connection:
        charged = connection.execute("SELECT x_AttemptId, x_UsefulSeconds, x_LostSeconds FROM charges").fetchall()
    connection.close()
    assert charged == [(first, 5.0, 5.0)]


def test_a_write_that_fails_in_the_middle_leaves_nothing_behind(ledger, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("between the attempt and its charges")

    first = ledger.begin(**STAGE, at=0.0)
    monkeypatch.setattr("charter.ledger.rows._settle", fail)
    with pytest.raises(RuntimeError):
        ledger.begin(**STAGE, at=1.0)
    with pytest.raises(RuntimeError):
        ledger.end(first, at=2.0, outcome="done", step=3)
    (attempt,) = ledger.attempts()
    assert (attempt.outcome, attempt.last_step, attempt.duration_milliseconds) == ("running", 0, 0)


def test_settings_are_those_that_survive_a_power_cut(ledger):
    with ledger._engine.connect() as connection:
        setting = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    assert setting == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 10_000, "foreign_keys": 1}


def test_a_newer_schema_is_refused_and_left_alone(ledger, path):
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(DataError, match=r"newer Charter.*schema 99"):
        Ledger.open(path)


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
    for name in [name for name in sys.modules if name.startswith("sqlalchemy") or name == "charter.ledger.rows"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "charter.ledger.schema", raising=False)
    monkeypatch.delattr("charter.ledger.rows", raising=False)
    monkeypatch.delattr("charter.ledger.schema", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtraError, match=r"charter-plan\[run\]"):
        Ledger.open(path)


def test_importing_the_ledger_does_not_import_sqlalchemy():
    import subprocess

    program = "import sys, charter.ledger, charter.ledger.focus; assert 'sqlalchemy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_ledger_held_by_another_program_is_said_after_waiting(path, monkeypatch):
    monkeypatch.setattr("charter.ledger.schema.BUSY_TIMEOUT_MILLISECONDS", 50)
    with Ledger.open(path) as ledger:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match="locked by another process"):
            ledger.begin(**STAGE, at=1.0)
        holder.close()
        assert ledger.begin(**STAGE, at=1.0) == 1


def test_a_ledger_of_the_first_schema_is_taken_over_with_its_attempts_and_charges(path):
    with Ledger.open(path) as ledger:
        attempt_id = ledger.begin(**STAGE, at=100.0, price_micro_usd_per_hour=3_600_000)
        ledger.end(attempt_id, at=110.0, outcome="killed", step=4)
        before = ledger.attempts()
    with sqlite3.connect(path) as connection:
        (old,) = connection.execute("select sql from sqlite_master where name = 'attempts'").fetchone()
        connection.executescript(
            f"""
            PRAGMA foreign_keys=OFF;
            CREATE TABLE kept AS SELECT * FROM attempts;
            DROP TABLE attempts;
            {old.replace(", 'hung'", "")};
            INSERT INTO attempts SELECT * FROM kept;
            DROP TABLE kept;
            PRAGMA user_version=1;
            """
        )
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("update attempts set outcome = 'hung'")
    connection.close()
    with Ledger.open(path) as ledger:
        assert ledger.attempts() == before
        second = ledger.begin(**STAGE, at=200.0, price_micro_usd_per_hour=3_600_000)
        ledger.end(second, at=220.0, outcome="hung", step=4)
        assert [attempt.outcome for attempt in ledger.attempts()] == ["killed", "hung"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("select EffectiveCost from charges order by x_AttemptId").fetchall() == [
            (10_000,),
            (20_000,),
        ]
    connection.close()
