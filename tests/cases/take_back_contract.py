"""What taking an import back promises, on any database; a test module gives `where` and imports all of it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imported_attempts import KILLED
from sqlalchemy import select

from charter.ledger import Ledger
from charter.ledger.imported import note_of
from charter.ledger.schema import attempts, charges, spend_sums
from charter.ledger.sums import DIMENSIONS

OWN = dict(run="demo", stage="sft", kind="sft", fingerprint="f" * 64, price_micro_usd_per_hour=3_600_000)
FOREIGN = replace(KILLED, note=note_of("outputs/sft", "trl", at=1_782_896_400.0))
SECOND = replace(FOREIGN, key="abc:1", first_step=8, last_step=20, outcome="done", started_at=90_000.0)


@pytest.fixture
def ledger(where):
    with Ledger.open(where) as opened:
        yield opened


def rows_of(ledger, table):
    """A table as it lies there, nothing left out."""
    with ledger._database.engine.connect() as connection:
        return sorted(tuple(row) for row in connection.execute(select(table)))


def own_attempt(ledger, *, at=1.0, outcome="killed", step=12, **changes):
    attempt = ledger.begin(**OWN | changes, at=at)
    ledger.end(attempt, at=at + 60.0, outcome=outcome, step=step, tokens=7)
    return attempt


def all_of(ledger):
    return {table.name: rows_of(ledger, table) for table in (attempts, charges, spend_sums)}


def test_what_is_taken_back_leaves_the_books_as_they_were(ledger):
    own_attempt(ledger)
    ledger.record_imported([replace(FOREIGN, key="other:0", market="owned", started_at=500.0)])
    before = all_of(ledger)
    assert ledger.record_imported([FOREIGN, SECOND]) == ("added", "added")
    assert all_of(ledger) != before
    assert ledger.take_back_import("abc", run="demo") == 2
    assert all_of(ledger) == before, "row for row, with checks, losses and no sum of zero"
    ledger.check_sums()
    ledger.rebuild_sums()
    assert all_of(ledger) == before
    assert ledger.take_back_import("abc", run="demo") == 0


def test_the_same_import_may_come_again(ledger):
    ledger.record_imported([FOREIGN, SECOND])
    sums = rows_of(ledger, spend_sums)
    ids = {item.attempt_id for item in ledger.attempts()}
    ledger.take_back_import("abc", run="demo")
    assert all_of(ledger) == {"attempts": [], "charges": [], "spend_sums": []}
    assert ledger.record_imported([FOREIGN, SECOND]) == ("added", "added")
    assert rows_of(ledger, spend_sums) == sums
    assert ids.isdisjoint(item.attempt_id for item in ledger.attempts()), "a bill that names an old one names no other"


def test_nothing_else_is_ever_removed(ledger):
    own_attempt(ledger, job_id="imported:abc:7")
    others = [
        replace(FOREIGN, key="abcd:0"),
        replace(FOREIGN, key="a_c:0"),
        replace(FOREIGN, run="another"),
        replace(FOREIGN, key="xabc:0", stage="dpo"),
    ]
    for item in others:
        ledger.record_imported([item])
    ledger.record_imported([FOREIGN])
    assert ledger.take_back_import("a", run="demo") == 0
    assert ledger.take_back_import("a%", run="demo") == 0
    assert ledger.take_back_import("abc:0", run="demo") == 0
    assert ledger.take_back_import("a_c", run="demo") == 1
    assert ledger.take_back_import("abc", run="demo") == 1
    left = [(item.run, item.stage, item.job_id, item.is_imported) for item in ledger.attempts()]
    assert left == [
        ("demo", "sft", "imported:abc:7", False),
        ("demo", "sft", "imported:abcd:0", True),
        ("another", "sft", "imported:abc:0", True),
        ("demo", "dpo", "imported:xabc:0", True),
    ]
    ledger.check_sums()


def test_what_was_lost_is_decided_anew(ledger):
    own = own_attempt(ledger, step=12)
    ledger.record_imported([replace(FOREIGN, first_step=6)])
    assert {item.attempt.attempt_id: item.lost_milliseconds for item in ledger.accounted()}[own] == 30_000
    ledger.take_back_import("abc", run="demo")
    (left,) = ledger.accounted()
    assert left.lost_milliseconds == 60_000, "nobody goes on from step 6 any more"
    assert ledger.total().totals.lost_to_kills_milliseconds == 60_000
    ledger.check_sums()


def test_imports_are_listed_with_their_attempts(ledger):
    assert ledger.imports(run="demo") == ()
    own = own_attempt(ledger)
    ledger.settle(own, started_at=1.0, duration_milliseconds=1)
    later = note_of("elsewhere", "trl", at=1_782_896_500.0)
    ledger.record_imported([replace(FOREIGN, note=later), replace(SECOND, note=FOREIGN.note)])
    ledger.record_imported([replace(FOREIGN, key="def:0", stage="dpo", price_micro_usd_per_hour=None, note="by hand")])
    first, second = ledger.imports(run="demo")
    assert (first.import_id, first.stage, [item.number for item in first.attempts]) == ("abc", "sft", [2, 3])
    assert (first.source, first.format, first.imported_at) == ("outputs/sft", "trl", 1_782_896_500.0)
    assert (first.usd, first.totals.tokens) == (32.0, 1000)
    assert (second.import_id, second.source[:7], second.format, second.usd) == ("def", "by hand", None, None)
    assert second.imported_at is None
    assert ledger.imports(run="another") == ()


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["own", "abc", "def"]),
        st.sampled_from(["done", "failed", "interrupted", "killed"]),
        st.integers(0, 30),
        st.integers(0, 20),
        st.none() | st.integers(0, 10**8),
        st.integers(0, 3 * 86_400_000),
    ),
    max_size=8,
)


def test_the_books_are_those_of_a_history_without_it(ledger):
    @settings(max_examples=20, deadline=None)
    @given(HISTORY)
    def check(history):
        number = len(ledger.attempts())
        whole, without = f"whole {number}", f"without {number}"
        for index, (who, outcome, first, steps, price, milliseconds) in enumerate(history):
            for run in (whole, without) if who != "abc" else (whole,):
                write(ledger, run, index, who, outcome, first, steps, price, milliseconds)
        ledger.take_back_import("abc", run=whole)
        assert spend_of(ledger, whole) == spend_of(ledger, without)
        ledger.check_sums()

    check()


def write(ledger, run, index, who, outcome, first, steps, price, milliseconds):
    at = index * 40_000.0
    if who == "own":
        attempt = ledger.begin(**OWN | {"run": run, "price_micro_usd_per_hour": price}, at=at, first_step=first)
        ledger.end(attempt, at=at + milliseconds / 1000, outcome=outcome, step=first + steps)
        return
    item = replace(
        FOREIGN, key=f"{who}:{index}", run=run, outcome=outcome, first_step=first, last_step=first + steps,
        price_micro_usd_per_hour=price, duration_milliseconds=milliseconds, started_at=at,
    )  # fmt: skip
    ledger.record_imported([item])


def spend_of(ledger, run):
    return ledger.sums(run=run, by=DIMENSIONS[1:])
