"""Uncertainty of a prediction: split-conformal intervals over sources, by how much is known of the stack.

The score of a measured row is |log(predicted / measured)|, predicted without its source. The half-width of the 80 %
interval is a quantile of these scores in which every source has the same weight, because the next row comes from a new
source, not from the same pool (Vovk, Gammerman and Shafer 2005, ch. 4; hierarchical form: Lee, Barber and Willett
2023, arXiv:2306.06342). Four situations are kept apart: a stack that nobody measured, a stack seen in another source,
a source with a few rows of its own, and a source with many. Where it stops being true: a source that differs from all
others more than they differ among themselves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Literal

import numpy as np

from charter.estimate.terms import Interval

if TYPE_CHECKING:
    from charter.calibration.rows.measurement import Measurement
    from charter.calibration.score import Scored

Knowledge = Literal["unseen", "seen", "calibrated", "source"]
"""Of the stack: nobody measured it; another source did; a few rows of this source were fitted; many rows were."""
COVERAGE = 0.8
NARROWEST, WIDEST = 0.02, 1.2
"""Half-widths in logarithms: below the repeatability of the measurements themselves (3.6 % between re-measurements,
docs/concepts/accuracy.md) no interval is honest; above a factor of 3.3 it says nothing."""
CHOSEN_BY_EYE = {"unseen": 1.3, "seen": 1.2, "calibrated": 1.1, "source": 1.05}
"""Factor on measured half-widths. Leaving a source out of the fit does not undo that the priors and the rules that fill
gaps were chosen by people who had read its rows; a source that nobody here has read scatters more. Resetting what was
chosen for single stacks and devices to generic values raised the error of dense steps by about 1.3 in an experiment
that was not kept; all four are judgement: the least known is widened most."""
FLOORS = {"unseen": 0.08, "seen": 0.03, "calibrated": 0.02, "source": 0.02}
"""Least half-width of each situation. Judgement: a stack nobody measured is not known to better than 8 %."""
PRIOR_ROWS = 5.0
"""How many rows the spread of other sources is worth against the scatter seen in a source's own rows. Judgement."""
FEWEST_SOURCES = 2
FEWEST_ROWS = 8


def group_of(row: "Measurement") -> str:
    """Rows whose errors are alike: what was trained or run, by what was measured.

    >>> from charter.calibration.rows.measurement import Measurement
    >>> group_of(Measurement(id="A-1", metric="step_time_s", value=1.0, kind="pretrain", n_experts=8))
    'training moe'
    """
    measured = "memory" if row.metric.startswith("peak_mem") or row.metric == "oom" else "time"
    if row.kind == "run_total" or row.metric in ("wall_hours", "wall_days", "gpu_hours", "cost_usd"):
        return "totals"
    if row.kind == "ppo":
        return f"rl {measured}"
    if row.kind == "inference":
        return f"inference {measured}"
    if measured == "memory":
        return "adapter memory" if row.kind == "lora" else "training memory"
    return "training moe" if row.n_experts or row.moe else "training " + ("adapter" if row.kind == "lora" else "dense")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Half-widths of the 80 % interval in logarithms: by group and knowledge, `*` for all groups together."""

    half_widths: Mapping[str, Mapping[str, float]]

    def half_width(self, group: str, knowledge: Knowledge) -> float:
        """The half-width of a group; of all groups where it was not measured on enough rows."""
        for name in (group, "*"):
            widths = self.half_widths.get(name, {})
            if knowledge in widths:
                return widths[knowledge]
        return WIDEST / 2

    def interval(self, predicted: float, group: str, knowledge: Knowledge, *, factor: float = 1.0) -> Interval:
        """p10, p50 and p90 around a prediction.

        >>> spread = Spread(half_widths={"*": {"unseen": 0.2}})
        >>> round(spread.interval(100.0, "totals", "unseen").p90, 1)
        122.1
        """
        width = min(max(self.half_width(group, knowledge) * factor, NARROWEST), WIDEST)
        return Interval(p10=predicted * exp(-width), p50=predicted, p90=predicted * exp(width))


def half_width(rows: "Sequence[Scored]", *, coverage: float = COVERAGE) -> float:
    """The quantile of |log error| with one vote per source, shared evenly by its configurations."""
    sources: dict[str, dict[str, list[float]]] = {}
    for item in rows:
        if not item.used:
            configurations = sources.setdefault(item.row.prefix, {})
            configurations.setdefault(item.row.config_id or item.row.id, []).append(abs(item.log_error))
    scores, weights = [], []
    for configurations in sources.values():
        # One vote per source, but a source of a few rows says less than a whole one.
        vote = min(1.0, len(configurations) / FEWEST_ROWS)
        for errors in configurations.values():
            scores.append(float(np.median(errors)))
            weights.append(vote / len(configurations))
    order = np.argsort(scores)
    share = np.cumsum(np.array(weights)[order]) / sum(weights)
    position = min(int(np.searchsorted(share, coverage)), len(order) - 1)
    return float(min(max(np.array(scores)[order][position], NARROWEST), WIDEST))


def spreads(situations: Mapping[Knowledge, "Iterable[Scored]"]) -> Spread:
    """Half-widths from scored rows of each situation."""
    widths: dict[str, dict[str, float]] = {}
    for knowledge, rows in situations.items():
        groups: dict[str, list[Scored]] = {"*": []}
        for item in rows:
            groups["*"].append(item)
            groups.setdefault(group_of(item.row), []).append(item)
        for name, members in groups.items():
            if (name == "*" and members) or _enough(members):
                width = half_width(members) * CHOSEN_BY_EYE[knowledge]
                widths.setdefault(name, {})[knowledge] = round(max(width, FLOORS[knowledge]), 4)
    return Spread(half_widths={name: _ordered(width) for name, width in sorted(widths.items())})


def _enough(rows: "Sequence[Scored]") -> bool:
    voters = [item for item in rows if not item.used]
    return len({item.row.config_id for item in voters}) >= FEWEST_ROWS


def _ordered(widths: Mapping[str, float]) -> dict[str, float]:
    """More knowledge never widens: from a stack unseen over one seen and one calibrated to a source with many rows."""
    limit, ordered = WIDEST, {}
    for knowledge in ("unseen", "seen", "calibrated", "source"):
        if knowledge in widths:
            limit = min(limit, widths[knowledge])
            ordered[knowledge] = limit
    return ordered


def scatter_factor(own: "Sequence[Scored]", expected_half_width: float) -> float:
    """Return how much wider or narrower a source's rows scatter than expected, by the few that calibrated it.

    `sqrt((n0 + sum of squared scaled errors) / (n0 + n))`: the usual update of a scale with a prior of n0 rows. The
    rows were fitted, so their errors are small on average; the factor never goes below 0.7.
    """
    errors = [item.log_error / (expected_half_width / 1.2816) for item in own if item.used]
    if not errors:
        return 1.0
    squares = sum(error * error for error in errors)
    return float(max(0.7, ((PRIOR_ROWS + squares) / (PRIOR_ROWS + len(errors))) ** 0.5))
