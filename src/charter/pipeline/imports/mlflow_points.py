"""What an MLflow run is, wherever it is kept, and how its points become steps. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from charter.errors import DataError
from charter.hosted.logged import LoggedStep
from charter.hosted.logs.huggingface import NAMES
from charter.pipeline.imports.found import FoundAttempt, FoundRun, attempts_of

SYSTEM = "system/"
"""Samples of the machine, which count samples and not steps."""
FACTS: Mapping[str, str] = {
    "per_device_train_batch_size": "mbs",
    "max_length": "seq",
    "max_seq_length": "seq",
}
"""Parameters that transformers and TRL log to MLflow, by the column of a measurement that they fill."""
COUNTERS = ("num_input_tokens_seen", "num_tokens")
ABSENT = frozenset({"", "None", "-1", "0"})


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of one metric."""

    step: int
    value: float
    time: float


@dataclass(frozen=True, kw_only=True)
class MlflowRun:
    """One run: its points by metric, its parameters."""

    run_id: str
    source: str
    content: str
    started_at: float | None
    ended_at: float | None
    points: Mapping[str, Sequence[Point]]
    parameters: Mapping[str, str]
    finished: bool
    """As the run says of itself; one that still runs has not."""


def found_run(run: MlflowRun, *, notes: tuple[str, ...] = ()) -> FoundRun:
    """The run as processes with steps; times are those at which its metrics were logged."""
    attempts = _with_bounds(attempts_of(_steps(run.points)), run)
    if not attempts:
        raise DataError(f"{run.source}: the MLflow run {run.run_id} has no metric with steps of training")
    target = run.parameters.get("max_steps", "")
    return FoundRun(
        format="mlflow",
        source=run.source,
        content=run.content,
        attempts=attempts,
        target_step=int(target) if target.isdecimal() and int(target) else None,
        finished=run.finished,
        facts={
            column: run.parameters[name] for name, column in FACTS.items() if run.parameters.get(name, "") not in ABSENT
        },
        notes=notes,
    )


def _steps(points: Mapping[str, Sequence[Point]]) -> list[LoggedStep]:
    """Steps in the order in which they were logged: one that comes again was logged by a resumed run."""
    rows: dict[tuple[float, int], dict[str, float]] = {}
    for name, series in points.items():
        if name.startswith(SYSTEM):
            continue
        for point in series:
            if point.step > 0 and math.isfinite(point.value):
                rows.setdefault((point.time, point.step), {})[NAMES.get(name, name)] = point.value
    found: list[LoggedStep] = []
    for (time, step), values in sorted(rows.items()):
        if found and found[-1].step == step:
            found[-1] = replace(found[-1], metrics={**found[-1].metrics, **values})
        else:
            found.append(LoggedStep(step=step, metrics=values, time=time))
    return _with_tokens(found)


def _with_tokens(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """The counter of tokens that TRL logs, as tokens of each step; a process that resumes may count from 0."""
    found, before = [], 0.0
    for step in steps:
        metrics = dict(step.metrics)
        count = next((metrics.pop(name) for name in COUNTERS if name in metrics), None)
        tokens = None if count is None else round(count - before if count >= before else count)
        before = before if count is None else count
        found.append(replace(step, metrics=metrics, tokens=tokens))
    return found


def _with_bounds(attempts: tuple[FoundAttempt, ...], run: MlflowRun) -> tuple[FoundAttempt, ...]:
    """The first process begins, and the last one ends, when the run does."""
    if not attempts:
        return ()
    first = attempts[0]
    made = list(attempts)
    if run.started_at is not None and first.started_at is not None and first.seconds is not None:
        seconds = first.started_at + first.seconds - run.started_at
        made[0] = replace(first, first_step=0, started_at=run.started_at, seconds=seconds)
    if run.ended_at is not None and (began := made[-1].started_at) is not None and run.ended_at > began:
        made[-1] = replace(made[-1], seconds=run.ended_at - began)
    return tuple(made)
