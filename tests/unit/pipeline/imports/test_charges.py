"""A run as attempts of the ledger: times by log and options, all missing options at once, prices, the first step."""

import pytest

from charter.engines.common.adapter import LoggedStep
from charter.errors import SpecError, UsageError
from charter.run.imports.charges import Belongs, Machines, imported_attempts
from charter.run.imports.logs import FoundAttempt, FoundRun

BELONGS = Belongs(
    run="demo", stage="sft", kind="sft", fingerprint="f" * 64, owner="b", tags="{}", imported_at=1_782_896_400.0
)
H100 = Machines(accelerators="H100:8", nodes=2, usd_per_hour=2.5, started_at=1000.0)


def found(*spans, target=None, starts=None):
    """Processes as (first step, last step, seconds)."""
    attempts = tuple(
        FoundAttempt(
            first_step=first,
            steps=(LoggedStep(step=last, tokens=7),),
            seconds=seconds,
            started_at=starts[number] if starts else None,
        )
        for number, (first, last, seconds) in enumerate(spans)
    )
    return FoundRun(format="trl", source="state.json", content="c" * 64, attempts=attempts, target_step=target)


def test_an_attempt_has_all_that_the_log_and_the_options_say():
    (made,) = imported_attempts(found((0, 10, 60.0), target=10), H100, BELONGS)
    assert (made.accelerator, made.count, made.price_micro_usd_per_hour) == ("H100-SXM-80GB", 16, 2_500_000)
    assert (made.started_at, made.duration_milliseconds, made.tokens) == (1000.0, 60_000, 7)
    assert (made.first_step, made.last_step, made.outcome) == (0, 10, "done")
    assert (made.run, made.stage, made.fingerprint, made.owner) == ("demo", "sft", "f" * 64, "b")
    assert made.price_source == "--usd-per-hour of charter artifacts import"
    assert made.note == "imported from state.json (trl) at 2026-07-01T09:00:00Z"


def test_processors_count_by_nodes_and_no_price_is_no_price():
    machines = Machines(accelerators="cpu:4", nodes=3, started_at=1.0)
    (made,) = imported_attempts(found((0, 1, 1.0)), machines, BELONGS)
    assert (made.accelerator, made.count) == ("cpu", 3)
    assert (made.price_micro_usd_per_hour, made.price_source) == (None, None)


def test_processes_follow_each_other_and_only_the_last_one_can_be_done():
    made = imported_attempts(found((0, 5, 10.0), (4, 9, 20.0), target=9), H100, BELONGS)
    assert [item.outcome for item in made] == ["killed", "done"]
    assert [item.started_at for item in made] == [1000.0, 1010.0]
    assert [item.key[-2:] for item in made] == [":0", ":1"]
    (made,) = imported_attempts(found((0, 5, 10.0), target=9), H100, BELONGS)
    assert made.outcome == "interrupted"


def test_the_logs_own_clock_holds_unless_another_start_is_given():
    run = found((0, 5, 10.0), (5, 9, 20.0), starts=[50.0, 90.0])
    own = Machines(accelerators="cpu")
    assert [item.started_at for item in imported_attempts(run, own, BELONGS)] == [50.0, 90.0]
    assert [item.started_at for item in imported_attempts(run, H100, BELONGS)] == [1000.0, 1010.0]


def test_hours_go_to_those_whose_time_is_not_known_by_their_steps():
    hour = Machines(accelerators="cpu", started_at=0.5, hours=1.0)
    made = imported_attempts(found((0, 10, None), (10, 40, None), (40, 50, 1600.0)), hour, BELONGS)
    assert [item.duration_milliseconds for item in made] == [500_000, 1_500_000, 1_600_000]
    made = imported_attempts(found((0, 10, 10.0), (10, 40, 30.0)), hour, BELONGS)
    assert [item.duration_milliseconds for item in made] == [900_000, 2_700_000], "hours of the whole run win"


def test_everything_that_is_missing_is_said_at_once_with_its_option():
    with pytest.raises(SpecError) as caught:
        imported_attempts(found((0, 10, None)), Machines(), BELONGS)
    text = str(caught.value)
    for wanted in ("--accelerators H100:8", "--started-at", "--hours", "its steps 0 to 10"):
        assert wanted in text
    assert len(caught.value.problems) == 3


def test_hours_below_what_the_log_tells_are_refused():
    machines = Machines(accelerators="cpu", started_at=1.0, hours=0.001)
    with pytest.raises(SpecError, match="less than the 0"):
        imported_attempts(found((0, 10, None), (10, 20, 10.0)), machines, BELONGS)


def test_another_run_with_the_same_first_step_has_another_key():
    run = found((0, 10, 1.0))
    (same,) = imported_attempts(run, H100, BELONGS)
    (other,) = imported_attempts(run, H100, BELONGS, another=True)
    assert same.key.split(":")[0] == run.identity[:20] != other.key.split(":")[0]


@pytest.mark.parametrize("machines", [Machines(market="black"), Machines(accelerators="H1000:8")])
def test_unknown_names_are_refused(machines):
    with pytest.raises(UsageError):
        machines.check()
