"""The kept sums in a SQLite file, and how sums are grouped."""

import pytest

pytest.importorskip("sqlalchemy")

from sums_contract import *  # noqa: F403
from sums_contract import STAGE

from charter.ledger import Ledger
from charter.ledger.account import Totals, by_day
from charter.ledger.call import CallSums
from charter.ledger.sums import DIMENSIONS, Sums
from charter.ledger.sums import DIMENSIONS as KEPT


@pytest.fixture
def where(tmp_path):
    return tmp_path / "ledger.sqlite"


def test_what_can_be_asked_is_what_is_kept():
    assert DIMENSIONS == KEPT


def test_what_may_have_been_billed_and_what_was_for_nothing():
    totals = Totals(micro_usd=100, lost_to_kills_micro_usd=1, lost_to_failures_micro_usd=20, idle_micro_usd=30)
    sums = Sums(totals=totals, calls=CallSums(settled_micro_usd=3000, unknown_micro_usd=40_000), other_micro_usd=500)
    assert (sums.micro_usd, sums.most_micro_usd, sums.waste_micro_usd) == (3600, 43_600, 51)
    assert Sums(calls=CallSums(unknown_micro_usd=1)).is_priced


def test_what_ends_at_midnight_leaves_the_next_day_alone():
    spread = list(by_day(Totals(attempts=1, micro_usd=10), started_at=86_400.0 - 4, milliseconds=4000))
    assert [(day, part.attempts, part.micro_usd) for day, part in spread] == [("1970-01-01", 1, 10)]


def plan_of(ledger, ask, word):
    """What SQLite does for the statement of `ask` that has a word."""
    from sqlalchemy import event

    asked = []
    engine = ledger._database.engine
    event.listen(engine, "before_cursor_execute", lambda *given: asked.append((given[2], given[3])))
    ask()
    with engine.connect() as connection:
        statement, values = next(item for item in list(asked) if word in item[0])
        return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).fetchall())


@pytest.mark.parametrize("stage", [None, "sft"])
def test_the_newest_attempts_are_read_without_sorting_all(where, stage):
    with Ledger.open(where) as ledger:
        for number in range(3):
            ledger.end(ledger.begin(**STAGE, at=float(number)), at=number + 1.0, outcome="done", step=1)
        assert [item.attempt.number for item in ledger.recent(run="demo", stage=stage, limit=2)] == [2, 3]
        plan = plan_of(ledger, lambda: ledger.recent(run="demo", stage=stage, limit=2), "DESC")
    assert "TEMP B-TREE" not in plan
    assert "USING INDEX" in plan


def test_the_newest_of_a_stage_are_read_from_an_index(where):
    """A file is asked for all its runs, of which a renamed project has two."""
    with Ledger.open(where) as ledger:
        for number in range(40):
            run = "demo" if number < 38 else "renamed"
            attempt = ledger.begin(**STAGE | {"run": run}, at=float(number))
            ledger.end(attempt, at=number + 1.0, outcome="killed", step=1)
        newest = ledger.recent(stage="sft", limit=3)
        assert [item.attempt.attempt_id for item in newest] == [38, 39, 40]
        assert newest == ledger.accounted()[-3:]
        plan = plan_of(ledger, lambda: ledger.recent(stage="sft", limit=3), "DESC")
        shard = plan_of(ledger, lambda: ledger.recent(stage="sft", limit=3), "attempts.attempt_id >= ")
    assert ("SCAN" in plan, "USING INDEX" in plan) == (False, True)
    assert "rowid>?" in shard


def test_a_first_attempt_that_runs_is_the_newest(where):
    with Ledger.open(where) as ledger:
        ledger.begin(**STAGE, at=1.0)
        assert [item.attempt.outcome for item in ledger.recent(stage="sft", limit=3)] == ["running"]


def test_running_attempts_are_found_by_an_index_of_their_own(where):
    with Ledger.open(where) as ledger:
        plan = plan_of(ledger, lambda: ledger.running(run="demo"), "outcome = 'running'")
    assert "attempts_running" in plan
