import pytest

from charter.errors import UsageError
from charter.train.checkpoint import TRIALS, SaveMode


def trial(mode: SaveMode, *, sync: float, stall: float, beside: float = 1.0) -> str:
    """Save until the choice is made; every save in the background slows one part."""
    for _ in range(2 * TRIALS + 1):
        if mode.next() == "sync":
            mode.saved("sync", sync)
            mode.worked(0, 1.0, beside_save=False)
        else:
            mode.saved("async", stall)
            mode.worked(0, beside, beside_save=True)
        mode.worked(0, 1.0, beside_save=False)
    return mode.next()


def test_both_are_tried_in_turn_and_the_cheaper_is_taken():
    mode = SaveMode("auto")
    assert mode.next() == "sync"
    assert trial(mode, sync=1.0, stall=0.2) == "async"
    assert len(mode.sync_seconds) == TRIALS
    assert "in the background: one costs 1 s of training when it waits, 0.2 s" in mode.describe()


def test_what_the_work_beside_it_lost_counts():
    assert trial(SaveMode("auto"), sync=1.0, stall=0.2, beside=1.3) == "async"
    assert trial(SaveMode("auto"), sync=1.0, stall=0.2, beside=1.5) == "sync"


def test_a_wait_for_the_one_in_flight_counts_against_the_background():
    mode = SaveMode("auto")
    for _ in range(2 * TRIALS):
        kind = mode.next()
        mode.saved(kind, 1.0 if kind == "sync" else 0.2)
        mode.waited(0.5)
    assert mode.next() == "sync"


def test_parts_are_compared_with_parts_of_their_number():
    mode = SaveMode("auto")
    for _ in range(2 * TRIALS):
        kind = mode.next()
        mode.saved(kind, 1.0 if kind == "sync" else 0.2)
        mode.worked(0, 9.0, beside_save=kind == "async")
        mode.worked(1, 1.0, beside_save=False)
    assert mode.next() == "async"


def test_what_is_asked_for_is_done_without_trying(monkeypatch):
    monkeypatch.setenv("CHARTER_SAVE", "async")
    assert SaveMode().next() == "async"
    assert SaveMode("sync").next() == "sync"
    with pytest.raises(UsageError, match="CHARTER_SAVE=quick is not known; use sync, async or auto"):
        SaveMode("quick")
