"""Errors of a forecast of the money of a run, after 1, 5, 20 and 50 % of it is spent.

    .venv/bin/python benchmarks/forecast_replay.py [FILE.jsonl] [--histories 10] [--seed 1]

FILE holds real runs (`tools/record_runs.py`). Each is replayed in histories into which starts, preemptions, drifts of
pace and long evaluations are injected, stages one after another in the order in which they began. What the product's
own forecast says at each share is compared with the end: |p50 - end| / end, and whether p10 to p90 holds it. Beside it
stand the histories without slow starts, and the same forecast with plans that are right to the cent but for what is
injected, so that the error left is that of the troubles. A second table has the stages beside their plans. The last
line is one JSON object.
"""

import argparse
import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from charter.artifacts.stage_dir import RecentPace
from charter.cost.forecast import StageSoFar, forecast
from charter.physics.terms import Interval

RECORDED = Path(__file__).with_name("recorded_runs.jsonl")
SHARES = (0.01, 0.05, 0.20, 0.50)
REQUIRED = {0.05: 0.25, 0.20: 0.12, 0.50: 0.05}
"""Issue 22: medians of the error."""


@dataclass(frozen=True, kw_only=True)
class AttemptTimes:
    """One process of a stage: when it ended each step, in seconds since its start, and when it ended."""

    steps: tuple[tuple[float, int], ...]
    seconds: float
    kept_step: int
    """Steps after it were done again by the next attempt."""

    @property
    def step_seconds(self) -> float:
        """Mean time from one step to the next."""
        (began, first), (ended, last) = self.steps[0], self.steps[-1]
        return (ended - began) / (last - first) if last > first else 0.0

    @property
    def start_seconds(self) -> float:
        """Time before the first step, which is marked at its end."""
        when, number = self.steps[0]
        return max(0.0, when - number * self.step_seconds)

    def at(self, elapsed: float) -> tuple[int, int, float]:
        """Return the last step, and the recent pace as steps and seconds, after some seconds of it."""
        pace, step = RecentPace(), 0
        for when, number in self.steps[: bisect_right(self.steps, (elapsed, 1 << 60))]:
            pace.note(when, number)
            step = number
        seconds, count = pace.recent()
        return step, count, seconds

    def kept_seconds(self, elapsed: float) -> float:
        """Return what of the time until then is not lost when it ends where it ended."""
        if self.kept_step >= self.steps[-1][1]:
            return elapsed
        saved_seconds = max((when for when, step in self.steps if step <= self.kept_step), default=0.0)
        return min(elapsed, saved_seconds)


@dataclass(frozen=True, kw_only=True)
class StageHistory:
    """One stage of a run that has ended."""

    plan: StageSoFar
    attempts: tuple[AttemptTimes, ...]
    usd_per_second: float

    @property
    def seconds(self) -> float:
        """Time of all attempts."""
        return sum(attempt.seconds for attempt in self.attempts)

    @property
    def usd(self) -> float:
        """Cost of all attempts."""
        return self.seconds * self.usd_per_second

    def so_far(self, elapsed: float) -> StageSoFar:
        """Return the stage as the ledger and its own files tell of it, some seconds after it began."""
        total, at, is_done = 0.0, self.plan, elapsed >= self.seconds
        for attempt in self.attempts:
            if elapsed <= 0:
                break
            is_over = elapsed >= attempt.seconds
            step, count, seconds = attempt.at(min(elapsed, attempt.seconds))
            mine = attempt.kept_seconds(attempt.seconds) if is_over else elapsed
            total += mine
            at = replace(at, step=max(at.step, min(step, attempt.kept_step) if is_over else step),
                         paced_steps=count, paced_seconds=seconds)  # fmt: skip
            elapsed -= attempt.seconds
        return replace(at, kept_seconds=total, kept_usd=total * self.usd_per_second, done=is_done)


def histories(line: Mapping[str, Any]) -> tuple[StageHistory, ...]:
    """Return a recorded run."""
    return tuple(_history(stage) for stage in line["stages"])


def _history(stage: Mapping[str, Any]) -> StageHistory:
    steps = tuple((float(when), int(step)) for step, when in stage["steps"])
    undisturbed = AttemptTimes(steps=steps, seconds=max(stage["seconds"], steps[-1][0]), kept_step=steps[-1][1])
    plan = StageSoFar(
        name=stage["name"],
        kind=stage["kind"],
        planned_seconds=Interval(**stage["planned_seconds"]),
        planned_usd=Interval(**stage["planned_usd"]),
        planned_start_seconds=stage["planned_start_seconds"],
        target_step=stage["target_step"],
    )
    return StageHistory(plan=plan, attempts=(undisturbed,), usd_per_second=stage["usd"] / undisturbed.seconds)


def injected(run: Sequence[StageHistory], draws: random.Random) -> "InjectedRun":
    """Return the run with troubles, each with an even chance: slow starts, a drift, a long evaluation, a preemption."""
    stages, starts_slowly = list(run), draws.random() < 0.5
    if starts_slowly:
        stages = [_paused(stage, 0, draws.uniform(0.2, 1.0) * stage.seconds) for stage in stages]
    if draws.random() < 0.5:
        factor = draws.uniform(0.7, 1.6)
        stages = [_drifted(stage, draws.random(), factor) for stage in stages]
    if draws.random() < 0.5:
        index = _by_money(stages, draws)
        step = int(draws.random() * stages[index].attempts[0].steps[-1][1])
        stages[index] = _paused(stages[index], step, draws.uniform(0.1, 0.5) * stages[index].seconds)
    if draws.random() < 0.5:
        index = _by_money(stages, draws)
        stages[index] = preempted(stages[index], draws.random())
    return InjectedRun(stages=tuple(stages), recorded=tuple(run), starts_slowly=starts_slowly)


def _by_money(stages: Sequence[StageHistory], draws: random.Random) -> int:
    return draws.choices(range(len(stages)), [stage.usd for stage in stages])[0]


def _paused(stage: StageHistory, after_step: int, seconds: float) -> StageHistory:
    (only,) = stage.attempts
    steps = tuple((when + seconds if step > after_step else when, step) for when, step in only.steps)
    return replace(stage, attempts=(replace(only, steps=steps, seconds=only.seconds + seconds),))


def _drifted(stage: StageHistory, after_share: float, factor: float) -> StageHistory:
    (only,) = stage.attempts
    steps, shift = [only.steps[0]], 0.0
    for (before, _), (when, step) in pairwise(only.steps):
        if step > after_share * only.steps[-1][1]:
            shift += (factor - 1.0) * (when - before)
        steps.append((when + shift, step))
    return replace(stage, attempts=(replace(only, steps=tuple(steps), seconds=only.seconds + shift),))


def preempted(stage: StageHistory, at_share: float) -> StageHistory:
    """Lose a process after some share of its steps: the last fifth of them is done again, and so is the start."""
    (only,) = stage.attempts
    last = only.steps[-1][1]
    done = [mark for mark in only.steps if mark[1] <= at_share * last]
    if not done or done[-1][1] == last:
        return stage
    saved_step = int(0.8 * done[-1][1])
    first = AttemptTimes(steps=tuple(done), seconds=done[-1][0], kept_step=saved_step)
    began = max((when for when, step in only.steps if step <= saved_step), default=only.steps[0][0])
    start = only.steps[0][0]
    again = tuple((when - began + start, step) for when, step in only.steps if step > saved_step)
    second = AttemptTimes(steps=again, seconds=only.seconds - began + start, kept_step=last)
    return replace(stage, attempts=(first, second))


@dataclass(frozen=True, kw_only=True)
class InjectedRun:
    """A recorded run with troubles."""

    stages: tuple[StageHistory, ...]
    recorded: tuple[StageHistory, ...]
    starts_slowly: bool


@dataclass(frozen=True, kw_only=True)
class ForecastScore:
    """One forecast of one history."""

    share: float
    error: float
    is_held: bool
    exact_plan_error: float
    """Of the same forecast where the plan of every stage is what was recorded of it."""
    starts_slowly: bool


def planned_exactly(stage: StageSoFar, recorded: StageHistory) -> StageSoFar:
    """Give a stage the plan that its recording came to, as sure of it as its own plan was."""
    (only,) = recorded.attempts
    return replace(
        stage,
        planned_seconds=_as_wide(stage.planned_seconds, recorded.seconds),
        planned_usd=_as_wide(stage.planned_usd, recorded.usd),
        planned_start_seconds=only.start_seconds,
    )


def _as_wide(planned: Interval | None, amount: float) -> Interval:
    assert planned is not None
    return planned.scaled(amount / planned.p50)


def scores(run: InjectedRun) -> Iterator[ForecastScore]:
    """Forecast a history of a recorded run after each share of its money."""
    end = sum(stage.usd for stage in run.stages)
    for share in SHARES:
        spent = left = share * end
        so_far = []
        for stage in run.stages:
            part = min(left, stage.usd)
            so_far.append(stage.so_far(stage.seconds if left >= stage.usd else part / stage.usd_per_second))
            left -= part
        rest = forecast(so_far).usd
        exact = forecast(list(map(planned_exactly, so_far, run.recorded))).usd
        assert rest is not None
        assert exact is not None
        yield ForecastScore(
            share=share,
            error=abs(spent + rest.p50 - end) / end,
            is_held=spent + rest.p10 <= end <= spent + rest.p90,
            exact_plan_error=abs(spent + exact.p50 - end) / end,
            starts_slowly=run.starts_slowly,
        )


def beside_run(runs: Iterable[Sequence[StageHistory]]) -> dict[str, tuple[float, float, float]]:
    """Return by stage, in the median of the runs: steps and start over their plans, and steps over those of their run.

    The last is what is left of a plan's error once what all stages of a run have in common, such as other programs on
    the machine, is taken out: the median of the run's stages.
    """
    by_stage: dict[str, list[tuple[float, float, float]]] = {}
    for run in runs:
        ratios = {}
        for stage in run:
            (only,), plan = stage.attempts, stage.plan
            assert plan.planned_seconds is not None
            steps = plan.planned_seconds.p50 - plan.planned_start_seconds
            if only.step_seconds and steps > 0 and plan.target_step and plan.planned_start_seconds:
                start = only.start_seconds / plan.planned_start_seconds
                ratios[plan.name] = (only.step_seconds * plan.target_step / steps, start)
        common = median(of_steps for of_steps, _ in ratios.values())
        for name, (of_steps, of_start) in ratios.items():
            by_stage.setdefault(name, []).append((of_steps, of_start, of_steps / common))
    return {
        name: (median(row[0] for row in rows), median(row[1] for row in rows), median(row[2] for row in rows))
        for name, rows in by_stage.items()
    }


def replayed(lines: Iterable[Mapping[str, Any]], *, count: int, seed: int) -> Iterator[InjectedRun]:
    """Yield `count` injected histories of every recorded run."""
    for number, line in enumerate(lines):
        run = histories(line)
        yield from (injected(run, random.Random(f"{seed}-{number}-{which}")) for which in range(count))


def main() -> None:
    """Replay, print a table, end with one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=RECORDED)
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.file.read_text().splitlines()]
    runs = list(replayed(lines, count=options.histories, seed=options.seed))
    by_share: dict[float, list[ForecastScore]] = {}
    for run in runs:
        for score in scores(run):
            by_share.setdefault(score.share, []).append(score)
    summary = {
        share: (
            median(item.error for item in items),
            median(item.error for item in items if not item.starts_slowly),
            median(item.exact_plan_error for item in items),
            median(item.exact_plan_error for item in items if not item.starts_slowly),
            sum(item.is_held for item in items) / len(items),
        )
        for share, items in by_share.items()
    }
    print(f"{len(lines)} recorded runs, {len(runs)} histories")
    print("        median error             with an exact plan")
    print("spent      all  no slow start       all  no slow start   required   interval holds the end")
    for share, (*errors, is_held) in summary.items():
        wanted = f"{100 * REQUIRED[share]:.0f} %" if share in REQUIRED else "-"
        columns = "".join(f"{100 * error:{width}.1f} %" for error, width in zip(errors, (7, 13, 8, 13), strict=True))
        print(f"{100 * share:4.0f} %{columns}   {wanted:>8}   {100 * is_held:.0f} %")
    print("measured over planned: steps, start; steps with the run's own median taken out")
    for name, (of_steps, of_start, alone) in beside_run(map(histories, lines)).items():
        print(f"  {name:12} {of_steps:5.2f} {of_start:5.2f}   {alone:5.2f}")
    figures = {}
    for share, (error, steady, exact, exact_steady, is_held) in summary.items():
        percent = f"at_{100 * share:.0f}_percent"
        figures[f"median_error_{percent}"] = round(error, 4)
        figures[f"median_error_without_slow_starts_{percent}"] = round(steady, 4)
        figures[f"median_error_with_exact_plans_{percent}"] = round(exact, 4)
        figures[f"median_error_with_exact_plans_without_slow_starts_{percent}"] = round(exact_steady, 4)
        figures[f"held_{percent}"] = round(is_held, 4)
    print(json.dumps({"benchmark": "forecast", "runs": len(lines), "histories": len(runs), **figures}))


if __name__ == "__main__":
    main()
