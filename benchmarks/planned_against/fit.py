"""By which factors the constants of the planner's time on processors are off, from measured configurations.

Of every phase the planner adds up seconds of operations, arithmetic and memory traffic. The factors are those that
make the squared relative errors least, each drawn a little towards 1 so that what the rows cannot tell stays as it is.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

FITTED = frozenset({"0.1M", "4M", "16M-wide-vocabulary"})
"""Shapes whose rows constants may be fitted to; the others judge them."""
PULL = 0.1
"""Weight of a factor's distance from 1 beside one row's relative error."""
STEPS = 20_000


def is_fitted(case: str) -> bool:
    """Return True if constants may be fitted to a configuration."""
    return case.split()[1] in FITTED


def factors(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Measured over planned, by kind of work and term."""
    points = [point for row in rows if "seconds" in row and is_fitted(row["case"]) for point in _points(row)]
    names = sorted({name for terms, _ in points for name in terms})
    shares = np.array([[terms.get(name, 0.0) / measured for name in names] for terms, measured in points])
    solution = np.ones(len(names))
    size = 1.0 / (np.linalg.norm(shares, 2) ** 2 + PULL**2)
    for _ in range(STEPS):
        downhill = shares.T @ (shares @ solution - 1) + PULL**2 * (solution - 1)
        solution = np.maximum(solution - size * downhill, 0.05)
    return dict(zip(names, solution.round(3).tolist(), strict=True))


def _points(row: Mapping[str, Any]) -> Iterable[tuple[dict[str, float], float]]:
    """Planned seconds by term, and what was measured: of each phase in PPO, else of the whole step."""
    wanted = {"generate": "generate", "score": "score", "update": "train"} if row["kind"] == "ppo" else {"step": ""}
    for phase, work in wanted.items():
        terms: dict[str, float] = {}
        for name, value in row["planned"]["terms"].items():
            of, _, what = name.partition(": ")
            if of.startswith(work):
                key = f"{of.split()[0]}: {what}"
                terms[key] = terms.get(key, 0.0) + value
        yield terms, row["seconds"][phase]
