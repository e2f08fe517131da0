"""Make the synthetic spot traces of `charter.resilience`: alternating lognormal times up and down, 28 days each.

Targets are statistics of public traces (availability, mean time up, median time up; for a gang the number of
machines). The first seed whose realised availability and mean time up are within 8 % of the targets is taken, since
28 days of heavy tails vary by tens of percent. Run without arguments; the files are committed.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from charter.resilience.spot import DATA, LogNormal, Trace, trace_statistics

GAP_SECONDS = 600
TICKS = 28 * 86400 // GAP_SECONDS
TOLERANCE = 0.08
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a synthetic trace should look like."""

    name: str
    machines: int
    availability: float
    mean_up_hours: float
    median_up_hours: float
    median_down_hours: float


TARGETS = (
    Target(
        name="synthetic-steady",
        machines=1,
        availability=0.90,
        mean_up_hours=8.0,
        median_up_hours=1.2,
        median_down_hours=0.4,
    ),
    Target(
        name="synthetic-usual",
        machines=1,
        availability=0.65,
        mean_up_hours=2.75,
        median_up_hours=0.7,
        median_down_hours=0.5,
    ),
    Target(
        name="synthetic-scarce",
        machines=1,
        availability=0.20,
        mean_up_hours=0.9,
        median_up_hours=0.4,
        median_down_hours=0.6,
    ),
    Target(
        name="synthetic-gang-16",
        machines=16,
        availability=0.42,
        mean_up_hours=1.8,
        median_up_hours=0.5,
        median_down_hours=0.7,
    ),
)


def make(target: Target, seed: int) -> Trace:
    """One candidate: the gang is whole or not; while it is not, what is left wanders between none and all but one."""
    random = np.random.Generator(np.random.Philox(seed))
    mean_down = target.mean_up_hours * (1 - target.availability) / target.availability
    up = LogNormal(mean_seconds=target.mean_up_hours * HOUR, median_seconds=target.median_up_hours * HOUR)
    down = LogNormal(mean_seconds=mean_down * HOUR, median_seconds=target.median_down_hours * HOUR)
    counts: list[int] = []
    while len(counts) < TICKS:
        ticks_up, ticks_down = (max(1, round(float(x.draw(random, 1)[0]) / GAP_SECONDS)) for x in (up, down))
        counts += [target.machines] * min(ticks_up, TICKS)
        left = target.machines - 1
        for _ in range(min(ticks_down, TICKS)):
            left = int(np.clip(left + random.integers(-2, 3), 0, target.machines - 1))
            counts.append(left)
    return Trace(name=target.name, gap_seconds=GAP_SECONDS, available=tuple(counts[:TICKS]))


def fits(target: Target, trace: Trace) -> bool:
    """Whether the realised statistics are near the target."""
    if len(set(count >= target.machines for count in trace.available)) < 2:
        return False
    statistics = trace_statistics(trace, target.machines)
    near_share = abs(statistics.availability / target.availability - 1) < TOLERANCE
    return near_share and abs(statistics.mean_up_seconds / HOUR / target.mean_up_hours - 1) < TOLERANCE


def text(target: Target) -> str:
    """The JSON of a synthetic trace."""
    seed = next(seed for seed in range(100_000) if fits(target, make(target, seed)))
    metadata = {"gap_seconds": GAP_SECONDS, "note": "synthetic: made by tools/spot_traces.py", "seed": seed}
    data = list(make(target, seed).available)
    return json.dumps({"metadata": metadata, "data": data}, separators=(",", ":")) + "\n"


def main(directory: Path = DATA) -> None:
    """Write every trace."""
    directory.mkdir(parents=True, exist_ok=True)
    for target in TARGETS:
        (directory / f"{target.name}.json").write_text(text(target), encoding="utf-8")


if __name__ == "__main__":
    main(*[Path(argument) for argument in sys.argv[1:2]])
