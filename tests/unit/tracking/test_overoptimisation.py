import json
import random
from dataclasses import replace

import pytest

from charter.tracking.overoptimisation import (
    FALSE_ALARMS,
    OVEROPTIMISATION,
    OveroptimisationWatch,
    RolloutMeans,
    overoptimised,
)

STILL = RolloutMeans(reward=0.0, reward_variance=0.01, gold=0.6, gold_variance=0.01, gold_deviation=0.5)


def run(draws, rollouts, *, gold=lambda n: 0.6, reward=lambda n: n / 20):
    """Rollouts whose means are drawn around two curves."""
    return [replace(STILL, reward=draws.gauss(reward(n), 0.1), gold=draws.gauss(gold(n), 0.1)) for n in range(rollouts)]


def first_alarm(points):
    watch = OveroptimisationWatch()
    return next((number for number, point in enumerate(points, start=1) if watch.look(point)), None)


@pytest.mark.parametrize("rise", [0.0, 0.01])
def test_gold_that_does_not_fall_is_flagged_in_few_runs(rise):
    """The bound is of a run, whatever its length."""
    draws = random.Random(3)
    alarms = [first_alarm(run(draws, 40, gold=lambda n: 0.6 + rise * n)) for _ in range(20)]
    assert sum(alarm is not None for alarm in alarms) <= 2 * FALSE_ALARMS * 20


@pytest.mark.parametrize("slope", [0.05, 0.02])
def test_gold_that_falls_is_flagged_before_one_deviation(slope):
    draws = random.Random(4)
    in_time = 0
    for _ in range(20):
        alarm = first_alarm(run(draws, 80, gold=lambda n: 0.6 - slope * max(0, n - 15)))
        in_time += alarm is not None and alarm > 15 and slope * (alarm - 15) < STILL.gold_deviation
    assert in_time >= 17


def test_gold_that_falls_with_the_reward_is_not_exploited():
    draws = random.Random(5)
    points = run(draws, 60, gold=lambda n: 0.6 - 0.02 * n, reward=lambda n: -0.02 * n)
    assert first_alarm(points) is None


def test_sure_fall_of_no_size_is_no_alarm():
    points = [replace(STILL, gold_variance=1e-9, gold=0.6 - 0.001 * n, reward=float(n)) for n in range(20)]
    assert overoptimised(points) is None


def test_alarm_over_golds_without_spread_is_written(tmp_path):
    still = replace(STILL, reward_variance=0.0, gold_variance=0.0, gold_deviation=0.0)
    watch = OveroptimisationWatch()
    (alarm,) = filter(None, (watch.look(replace(still, gold=float(n < 3), reward=float(n > 2))) for n in range(6)))
    alarm.write(tmp_path, gold="g")
    note = json.loads((tmp_path / OVEROPTIMISATION).read_text())
    assert (note["gold_fall"], note["gold_deviations"], note["gold_errors"]) == (1.0, None, None)
    assert "the gold fell by 1 (without any spread) while" in note["message"]
    json.dumps(watch.state_dict(), allow_nan=False)


def test_alarm_says_what_fell_and_rose_and_since_when():
    points = [replace(STILL, gold=0.9 if n < 6 else 0.3, reward=float(n)) for n in range(12)]
    alarm = overoptimised(points)
    assert alarm.gold_fall == pytest.approx(0.6)
    assert alarm.gold_deviations == pytest.approx(1.2)
    assert alarm.reward_rise > 0
    assert alarm.since <= 6 < alarm.at == 12
    assert "the gold fell by 0.6 (1.20 deviations" in str(alarm)


def test_watch_that_is_stored_goes_on_as_it_was():
    points = run(random.Random(6), 40, gold=lambda n: 0.6 - 0.05 * max(0, n - 10))
    whole, parts = OveroptimisationWatch(), OveroptimisationWatch()
    outcomes = [whole.look(point) for point in points]
    for number, point in enumerate(points):
        restored = OveroptimisationWatch()
        restored.load_state_dict(parts.state_dict())
        parts = restored
        assert parts.look(point) == outcomes[number]
    assert parts == whole
    assert sum(outcome is not None for outcome in outcomes) == 1, "told once"
