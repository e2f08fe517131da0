"""Sweeps: one project over values of its fields and over seeds, as points that are ordinary projects."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import AT_LEAST_ONE, POSITIVE, Count, Names, Usd, check_ranges

Value = bool | int | float | str
SWEEP_TAG, POINT_TAG = "sweep", "point"
"""Tags of a point, on its jobs, in the ledger and in trackers."""
MOST_POINTS = 1000
"""Of one sweep: a larger one is a slip of the pen, or needs a search that Charter does not have."""


@dataclass(frozen=True, kw_only=True)
class SweepMetric:
    """Figure of an evaluation by which points are compared."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    stage: str
    """An `eval` stage."""
    figure: str
    """Key of a figure that it publishes: `exact_match.policy`."""
    goal: Literal["maximise", "minimise"] = "maximise"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Values of fields, and seeds, for which the project is planned, run and compared."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    over: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Fields, written as `--set` has them, with their values: `{pipeline.ppo.kl_coefficient: [0.01, 0.05]}`; every
    combination is a setting, and the first is what the others are compared with."""
    draws: Count | None = None
    """So many settings, drawn from all combinations without repetition; the first is always among them."""
    seeds: Count = 1
    """Repetitions of each setting: the project's seed, and those that follow it."""
    seeded: Names = ()
    """Stages whose draws differ between seeds; those that `over` touches and all that read from them unless given."""
    metric: SweepMetric | None = None
    """What `charter report --sweep` compares."""
    budget: Usd | None = None
    """Of all points together; it takes the place of `budget.limit` while the sweep runs."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting under one seed."""

    values: Mapping[str, Value]
    repetition: int
    """0 for the project's own seed."""
    overrides: tuple[str, ...]
    """As `--set` takes them: with them the project is this point."""

    @property
    def setting(self) -> str:
        """Return its values in words: `kl_coefficient 0.05`, or `as in the file`."""
        return (
            ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in self.values.items()) or "as in the file"
        )

    @property
    def label(self) -> str:
        """Return setting and seed in words."""
        return f"{self.setting}, seed +{self.repetition}"


def points_of(sweep: Sweep, *, seed: int, reads: Mapping[str, Sequence[str]]) -> tuple[Point, ...]:
    """Return the points, settings before seeds; `reads` has the stages that each stage reads from.

    >>> sweep = Sweep(over={"pipeline.ppo.kl_coefficient": (0.01, 0.05)}, seeds=2)
    >>> [point.overrides for point in points_of(sweep, seed=7, reads={"sft": (), "ppo": ("sft",)})][2:]
    [('pipeline.ppo.kl_coefficient=0.05',), ('pipeline.ppo.kl_coefficient=0.05', 'pipeline.ppo.seed=8')]
    """
    seeded = sweep.seeded or _downstream(sweep, reads)
    points = []
    for values in _settings(sweep):
        written = tuple(f"{name}={_text(value)}" for name, value in values.items())
        for repetition in range(sweep.seeds):
            draws = seed + repetition
            seeds = [f"pipeline.{name}.seed={draws}" for name in seeded] if seeded else [f"seed={draws}"]
            points.append(
                Point(values=values, repetition=repetition, overrides=(*written, *(seeds if repetition else ())))
            )
    return tuple(points)


def check_sweeps(sweeps: Mapping[str, Sweep], kinds: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong with the sweeps of a project whose stages have these kinds."""
    for name, sweep in sweeps.items():
        where = f"sweeps.{name}"
        counts = [("draws", AT_LEAST_ONE), ("seeds", AT_LEAST_ONE), ("budget", POSITIVE)]
        yield from check_ranges(sweep, where, counts)
        for path, values in sweep.over.items():
            if not values:
                yield Problem(message="a field without values makes no point", path=f"{where}.over.{path}")
            if len(set(values)) < len(values):
                yield Problem(message="a value stands there twice", path=f"{where}.over.{path}")
            if path.partition(".")[0] in ("sweeps", "name"):
                yield Problem(message=f"{path} is no field that a sweep can change", path=f"{where}.over")
        for stage in sweep.seeded:
            if stage not in kinds:
                yield Problem(
                    message=f"there is no stage {stage!r}; there are {', '.join(kinds)}", path=f"{where}.seeded"
                )
        if sweep.metric is not None and kinds.get(sweep.metric.stage) != "eval":
            evals = ", ".join(stage for stage, kind in kinds.items() if kind == "eval") or "none"
            message = f"{sweep.metric.stage!r} is no stage of kind eval; of that kind: {evals}"
            yield Problem(message=message, path=f"{where}.metric.stage")
        if (count := _combinations(sweep) * sweep.seeds) > MOST_POINTS:
            yield Problem(message=f"{count:,} points; at most {MOST_POINTS:,}", path=where, hint="give `draws`")


def _settings(sweep: Sweep) -> list[dict[str, Value]]:
    combinations = [dict(zip(sweep.over, values, strict=True)) for values in itertools.product(*sweep.over.values())]
    if sweep.draws is None or sweep.draws >= len(combinations):
        return combinations
    # A generator of its own, and settings in the order of the grid: a sweep is the same wherever it is asked for.
    chosen = sorted(random.Random(0).sample(range(1, len(combinations)), sweep.draws - 1))
    return [combinations[index] for index in (0, *chosen)]


def _combinations(sweep: Sweep) -> int:
    count = 1
    for values in sweep.over.values():
        count *= len(values)
    return min(count, sweep.draws or count)


def _downstream(sweep: Sweep, reads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Stages that `over` touches with all that read from them; none where it touches what every stage reads."""
    paths = [path.split(".") for path in sweep.over]
    if not paths or any(path[0] != "pipeline" or len(path) < 3 for path in paths):
        return ()
    touched = {path[1] for path in paths}
    while more := {name for name, inputs in reads.items() if touched & set(inputs)} - touched:
        touched |= more
    return tuple(name for name in reads if name in touched)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
