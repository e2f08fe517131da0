"""Imported attempts: counted once, brought up to date, never under two stages; charges and sums follow."""

from dataclasses import replace

import pytest
from imported_attempts import KILLED

from charter.errors import UsageError
from charter.ledger import Ledger

DONE = replace(KILLED, key="abc:1", first_step=8, last_step=20, outcome="done", started_at=9000.0)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def test_attempts_are_added_with_charges_and_what_was_lost(ledger):
    assert ledger.record_imported([KILLED, DONE]) == ("added", "added")
    first, second = ledger.accounted(run="demo")
    assert (first.attempt.clock, first.attempt.is_imported, first.attempt.outcome) == ("imported", True, "killed")
    assert (first.attempt.number, second.attempt.number) == (1, 2)
    assert (first.attempt.duration_milliseconds, first.attempt.last_heartbeat) == (3_600_000, 4600.0)
    assert (first.cost_micro_usd, first.lost_micro_usd) == (16_000_000, 3_200_000), "steps 8 to 10 were done again"
    assert "sha256 1111111111111111" in first.attempt.note
    assert ledger.total(run="demo").totals.micro_usd == 32_000_000
    ledger.check_sums()


def test_the_same_again_changes_nothing_wherever_it_was_read_from(ledger):
    ledger.record_imported([KILLED, DONE])
    assert ledger.record_imported([replace(KILLED, note="from another place"), DONE]) == ("known", "known")
    assert len(ledger.attempts()) == 2
    assert ledger.attempts()[0].note.startswith("from a log")


def test_a_log_that_has_grown_brings_its_attempts_up_to_date(ledger):
    ledger.record_imported([replace(KILLED, outcome="interrupted")])
    grown = replace(KILLED, content="2" * 64, last_step=30, duration_milliseconds=7_200_000, outcome="done", tokens=900)
    assert ledger.record_imported([grown]) == ("updated",)
    (found,) = ledger.accounted()
    assert (found.attempt.last_step, found.attempt.outcome, found.attempt.tokens) == (30, "done", 900)
    assert found.cost_micro_usd == 32_000_000
    assert found.attempt.ended_at == 1000.0 + 7200.0
    assert ledger.total().totals.micro_usd == 32_000_000
    assert "sha256 2222" in found.attempt.note
    ledger.check_sums()


def test_other_content_with_the_same_figures_is_noted(ledger):
    ledger.record_imported([KILLED])
    assert ledger.record_imported([replace(KILLED, content="3" * 64)]) == ("updated",)
    assert "sha256 3333" in ledger.attempts()[0].note


def test_what_a_log_tells_counts_as_kept_while_nobody_goes_on(ledger):
    ledger.record_imported([KILLED])
    (found,) = ledger.accounted()
    assert (found.attempt.kept_step, found.lost_milliseconds) == (10, 0)


def test_what_is_not_said_again_stays(ledger):
    ledger.record_imported([KILLED])
    assert ledger.record_imported([replace(KILLED, price_micro_usd_per_hour=None, price_source=None)]) == ("known",)
    assert ledger.attempts()[0].price_micro_usd_per_hour == 2_000_000
    assert ledger.record_imported([replace(KILLED, price_micro_usd_per_hour=3_000_000)]) == ("updated",)
    assert ledger.total().totals.micro_usd == 24_000_000
    later = replace(KILLED, fingerprint="e" * 64, kind="dpo", price_micro_usd_per_hour=3_000_000)
    assert ledger.record_imported([later]) == ("known",), "what it was imported as stays"
    ledger.check_sums()


def test_run_counted_under_two_stages_is_refused_without_a_write(ledger):
    ledger.record_imported([KILLED])
    with pytest.raises(UsageError, match="stage pretrain, but it is in the ledger as attempt 1 of stage sft"):
        ledger.record_imported([replace(DONE, stage="pretrain"), replace(KILLED, stage="pretrain")])
    assert [attempt.stage for attempt in ledger.attempts()] == ["sft"]
    ledger.record_imported([replace(KILLED, run="other")])
    assert len(ledger.attempts()) == 2, "another project may import it too"


def test_imported_attempts_stand_beside_charters_own(ledger):
    own = ledger.begin(run="demo", stage="sft", kind="sft", fingerprint="f" * 64, at=1.0)
    ledger.end(own, at=2.0, outcome="done", step=3)
    ledger.record_imported([KILLED])
    assert [(item.number, item.is_imported) for item in ledger.attempts()] == [(1, False), (2, True)]
    ledger.check_sums()
