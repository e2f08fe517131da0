"""What a ledger of attempts promises, on any database; a test module gives `where` and imports all of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.ledger import Ledger, stage_totals

STAGE = dict(run="demo", stage="sft", kind="sft", fingerprint="f" * 64)
HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["sft", "ppo"]),
        st.sampled_from(["done", "failed", "interrupted", None]),
        st.integers(0, 100),
        st.none() | st.integers(0, 10**8),
        st.floats(0, 1e6),
    ),
    max_size=8,
)


@pytest.fixture
def ledger(where):
    with Ledger.open(where) as opened:
        yield opened


def charged(ledger, columns):
    """Columns of the charges, in the order of the attempts."""
    names = ", ".join(f'"{name}"' for name in columns)
    with ledger._database.transaction(reading=True) as connection:
        rows = connection.exec_driver_sql(f'SELECT {names} FROM charges ORDER BY "x_AttemptId"')
        return [tuple(row) for row in rows]


@pytest.mark.smoke
def test_an_attempt_comes_back_as_it_was_recorded(ledger, where):
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
    with Ledger.open(where) as again:
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


@pytest.mark.parametrize("scale", [1, 1000])
def test_large_numbers_fit(ledger, scale):
    price, tokens = 3_000 * 10**6 * scale, 10**7 * scale
    attempt_id = ledger.begin(**STAGE, at=0.0, price_micro_usd_per_hour=price, count=8)
    ledger.end(attempt_id, at=40 * 86_400.0, outcome="done", step=10**6, tokens=tokens)
    (found,) = ledger.accounted()
    assert (found.attempt.price_micro_usd_per_hour, found.attempt.tokens) == (price, tokens)
    assert charged(ledger, ["EffectiveCost"]) == [(found.cost_micro_usd,)]


def test_charges_on_disk_are_those_of_the_pure_account(ledger):
    @settings(max_examples=20, deadline=None)
    @given(HISTORIES)
    def check(history):
        run = f"run {len(ledger.attempts())}"
        for index, (stage, outcome, step, price, seconds) in enumerate(history):
            at = index * 10.0
            attempt_id = ledger.begin(
                **STAGE | {"stage": stage, "run": run}, at=at, first_step=step // 2, price_micro_usd_per_hour=price
            )
            ledger.heartbeat(attempt_id, at=at + seconds, step=step)
            if outcome is not None:
                ledger.end(attempt_id, at=at + seconds, outcome=outcome, step=step)
            else:
                ledger.close_abandoned(now=1e9)
        expected = [
            (item.attempt.attempt_id, item.cost_micro_usd, item.lost_milliseconds / 1000) for item in ledger.accounted()
        ]
        assert charged(ledger, ["x_AttemptId", "EffectiveCost", "x_LostSeconds"]) == expected
        parts = stage_totals(ledger.accounted(run=run)).values()
        assert sum(part.micro_usd for part in parts) == ledger.totals(run=run).micro_usd

    check()


def test_the_loss_of_a_killed_attempt_is_charged_as_soon_as_the_next_one_begins(ledger):
    first = ledger.begin(**STAGE, at=0.0)
    ledger.end(first, at=10.0, outcome="killed", step=10, kept_step=8)
    ledger.begin(**STAGE, at=20.0, first_step=5)
    assert charged(ledger, ["x_AttemptId", "x_UsefulSeconds", "x_LostSeconds"]) == [(first, 5.0, 5.0)]


def test_a_write_that_fails_in_the_middle_leaves_nothing_behind(ledger, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("between the attempt and its charges")

    first = ledger.begin(**STAGE, at=0.0)
    monkeypatch.setattr("charter.ledger.rows.write_charges", fail)
    with pytest.raises(RuntimeError):
        ledger.begin(**STAGE, at=1.0)
    with pytest.raises(RuntimeError):
        ledger.end(first, at=2.0, outcome="done", step=3)
    (attempt,) = ledger.attempts()
    assert (attempt.outcome, attempt.last_step, attempt.duration_milliseconds) == ("running", 0, 0)
