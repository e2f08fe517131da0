"""Widths of intervals from the errors of measured rows: an effect of the cluster and a residual.

The error of a measured row is log(predicted / measured), predicted without its cluster: its stack where the question
is a stack that nobody measured, else its source. It is the sum of an effect that all rows of a cluster share and of a
residual. The next row comes from a new cluster, so the 80 % interval is that of a new effect and a new residual:
Student's t with k - 1 degrees of freedom of k effects, more as far as the residual has a share (Satterthwaite 1946).
Four situations are kept apart: a stack that nobody measured, a stack seen in another source, a source with a few rows
of its own, and a source with many. Where it stops being true: a cluster that differs from all others more than they
differ among themselves, and two or three clusters that happen to agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from charter.physics.fitted import NARROWEST, SITUATIONS, WIDEST, Bundle, Fitted, Knowledge, QuantityFit, Spread
from charter.physics.terms import t_quantile
from charter.validation.alarms import fingerprint
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.metrics import rl_metric
from charter.validation.score import (
    Case,
    Quantity,
    ScoredRow,
    by,
    calibrated,
    cases_of,
    fitted_to,
    prepared_once,
    scored,
    summary,
)

if TYPE_CHECKING:
    from charter.validation.rows.measurement import Measurement
    from charter.validation.score import ScoredRow

COVERAGE = 0.8
NORMAL_QUANTILE = 1.2816
"""Standard deviations from the middle within which a normal error lies in `COVERAGE` of the cases."""
PRIOR_ROWS = 5.0
"""How many rows the spread of other sources is worth against the scatter seen in a source's own rows. Judgement."""
FEWEST_CLUSTERS = 2
"""Between fewer there is nothing to compare."""


def group_of(row: "Measurement") -> str:
    """Rows whose errors are alike: what was trained or run, by what was measured.

    >>> from charter.validation.rows.measurement import Measurement
    >>> group_of(Measurement(id="A-1", metric="step_time_s", value=1.0, kind="pretrain", n_experts=8))
    'training moe'
    >>> group_of(Measurement(id="A-2", metric="ppo_step_time_s", value=1.0, kind="ppo"))
    'rl time, lengths unknown'
    """
    measured = "memory" if row.metric.startswith("peak_mem") or row.metric == "oom" else "time"
    if row.kind == "run_total" or row.metric in ("wall_hours", "wall_days", "gpu_hours", "cost_usd"):
        return "totals" if row.says_lengths else "totals, lengths unknown"
    if row.kind == "ppo":
        if rl_metric(row) == "weight sync":
            return "weight transfer"
        return f"rl {measured}" if measured == "memory" or row.says_lengths else "rl time, lengths unknown"
    if row.kind == "inference":
        return f"inference {measured}"
    if measured == "memory":
        return "adapter memory" if row.kind == "lora" else "training memory"
    return "training moe" if _has_experts(row) else "training " + ("adapter" if row.kind == "lora" else "dense")


@cache
def _has_experts(row: "Measurement") -> bool:
    """By the row's columns, else by its model, which may be named alone."""
    if row.n_experts or row.moe:
        return True
    try:
        return architecture_of(row).mixture is not None
    except Refusal:
        return False


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Variance between clusters, in squared logarithms, from the median errors of k clusters."""

    variance: float
    """Of a new cluster's median; holds `residual_share` of the variance within a cluster, or a little more."""
    freedom: float
    residual_share: float
    """Mean over clusters of one over the number of configurations."""

    @classmethod
    def of(cls, clusters: Mapping[str, Sequence[float]]) -> "Effect | None":
        """From errors by cluster, each predicted without its cluster; None below two clusters.

        `(1 - 1/k^2) x mean of squared medians`. A left-out cluster is predicted from k - 1 others and the next one from
        k, hence the factor: it makes the variance exact where constants follow the mean of all others, and leaves it
        on the safe side where priors hold them.
        """
        k = len(clusters)
        return cls._of(clusters, growth=1 - 1 / k**2, freedom=k - 1) if k >= FEWEST_CLUSTERS else None

    @classmethod
    def alone(cls, clusters: Mapping[str, Sequence[float]]) -> "Effect | None":
        """From the errors of one cluster that the priors predicted, since there is no other to learn from.

        Its distance from the priors is one draw of the effect, about a mean that is known: one degree of freedom. The
        next cluster may be predicted by constants that follow this one, which doubles the variance.
        """
        return cls._of(clusters, growth=2.0, freedom=1) if len(clusters) == 1 else None

    @classmethod
    def _of(cls, clusters: Mapping[str, Sequence[float]], *, growth: float, freedom: float) -> "Effect":
        squares = [median(errors) ** 2 for errors in clusters.values()]
        share = float(np.mean([1 / len(errors) for errors in clusters.values()]))
        return cls(variance=growth * float(np.mean(squares)), freedom=freedom, residual_share=share)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Variance of configurations within a cluster, in squared logarithms, pooled over clusters."""

    variance: float
    freedom: float

    @classmethod
    def of(cls, clusters: Mapping[str, Sequence[float]]) -> "Residual | None":
        """From errors by cluster; None where no cluster has two configurations.

        `(q / 1.2816)^2`, q the distance from its cluster's median that eight in ten configurations keep: what the width
        is asked for. Published errors have long tails, and squares of them say more of one misread row than of eighty
        sound ones. A median is nearer to few configurations than the next one is, hence `sqrt(n / (n - 1))`.
        """
        freedom = sum(len(errors) - 1 for errors in clusters.values())
        if freedom == 0:
            return None
        distances = [
            abs(error - median(errors)) * (len(errors) / (len(errors) - 1)) ** 0.5
            for errors in clusters.values()
            if len(errors) > 1
            for error in errors
        ]
        within = float(np.quantile(distances, COVERAGE, method="inverted_cdf"))
        return cls(variance=(within / NORMAL_QUANTILE) ** 2, freedom=freedom)


def half_width(effect: Effect, residual: Residual | None) -> float:
    """Half-width, in logarithms, of the interval that holds a new configuration of a new cluster.

    `t x sqrt(V)`, `V = effect + (1 - residual_share) x residual`, with the degrees of freedom of such a sum,
    `V^2 / sum(v_i^2 / freedom_i)` (Satterthwaite 1946, Biometrics Bulletin 2:110). Limit: effects and residuals are
    taken to be normal as far out as the 80 % that is asked; a heavy tail covers less beyond.

    >>> effect = Effect(variance=0.04, freedom=1, residual_share=0.1)
    >>> round(half_width(effect, None), 3), round(half_width(effect, Residual(variance=0.04, freedom=50)), 3)
    (0.616, 0.432)
    """
    parts = [(effect.variance, effect.freedom)]
    if residual is not None:
        parts.append(((1 - effect.residual_share) * residual.variance, residual.freedom))
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return NARROWEST
    freedom = total**2 / sum(variance**2 / freedom for variance, freedom in parts)
    width = t_quantile(COVERAGE, round(freedom, 1)) * total**0.5
    return float(min(max(width, NARROWEST), WIDEST))


def spreads(situations: Mapping[Knowledge, "Iterable[ScoredRow]"]) -> Spread:
    """Half-widths from scored rows of each situation.

    A group of rows that only one cluster has keeps its residual, and takes the effect between clusters of all groups
    or, of stacks that nobody measured, its own distance from the priors: the one that makes the width larger. Where a
    single stack is all there is, that distance alone stands for the effect.
    """
    widths: dict[str, dict[str, float]] = {}
    for knowledge, rows in situations.items():
        voters = [item for item in rows if not item.used]
        groups: dict[str, list[ScoredRow]] = {}
        for item in voters:
            groups.setdefault(group_of(item.row), []).append(item)
        everything = _clusters(voters, knowledge)
        common, shared = Effect.of(everything), Residual.of(everything)
        if common is None and knowledge == "unseen":
            common = Effect.alone(everything)
        if common is None:
            continue
        widths.setdefault("*", {})[knowledge] = round(half_width(common, shared), 4)
        for name, members in groups.items():
            own = _clusters(members, knowledge)
            effects = [Effect.of(own) or common, Effect.alone(own) if knowledge == "unseen" else None]
            residual = Residual.of(own) or shared
            width = max(half_width(effect, residual) for effect in effects if effect is not None)
            widths.setdefault(name, {})[knowledge] = round(width, 4)
    return Spread(half_widths={name: _ordered(width) for name, width in sorted(widths.items())})


def beside_device(width: float, unseen: float, *, measured: bool) -> float:
    """A half-width on a kind of device that no row measured: a new device's effect, taken as large as a new stack's.

    >>> beside_device(0.3, 0.4, measured=True), round(beside_device(0.3, 0.4, measured=False), 6)
    (0.3, 0.5)
    """
    return width if measured else float(np.hypot(width, unseen))


def typical_errors(situations: Mapping[Knowledge, "Iterable[ScoredRow]"]) -> dict[str, dict[str, float]]:
    """Typical |predicted / measured - 1| by group and situation: the median of a cluster, mean over clusters."""
    errors: dict[str, dict[str, float]] = {}
    for knowledge, rows in situations.items():
        groups: dict[str, list[ScoredRow]] = {}
        for item in rows:
            if not item.used:
                groups.setdefault(group_of(item.row), []).append(item)
        for name, members in sorted(groups.items()):
            clusters = _clusters(members, knowledge).values()
            medians = [float(np.median(np.abs(np.expm1(logs)))) for logs in clusters]
            errors.setdefault(name, {})[knowledge] = round(float(np.mean(medians)), 4)
    return errors


def _clusters(rows: "Sequence[ScoredRow]", knowledge: Knowledge) -> dict[str, list[float]]:
    """Errors by what the next row will be new in, its stack or its source; one error per configuration."""
    by_cluster: dict[str, dict[str, list[float]]] = {}
    for item in rows:
        configurations = by_cluster.setdefault(item.stack if knowledge == "unseen" else item.row.prefix, {})
        configurations.setdefault(item.row.config_id or item.row.id, []).append(item.log_error)
    return {name: [median(errors) for errors in each.values()] for name, each in sorted(by_cluster.items())}


def _ordered(widths: Mapping[str, float]) -> dict[str, float]:
    """More knowledge never widens: from a stack unseen over one seen and one calibrated to a source with many rows."""
    limit = WIDEST
    ordered: dict[str, float] = {}
    for knowledge in SITUATIONS:
        if knowledge in widths:
            limit = min(limit, widths[knowledge])
            ordered[knowledge] = limit
    return ordered


def scatter_factor(own: "Sequence[ScoredRow]", expected_half_width: float) -> float:
    """Return how much wider or narrower a source's rows scatter than expected, by the few that calibrated it.

    `sqrt((n0 + sum of squared scaled errors) / (n0 + n))`: the usual update of a scale with a prior of n0 rows. The
    rows were fitted, so their errors are small on average; the factor never goes below 0.7.
    """
    errors = [item.log_error / (expected_half_width / NORMAL_QUANTILE) for item in own if item.used]
    if not errors:
        return 1.0
    squares = sum(error * error for error in errors)
    return float(max(0.7, ((PRIOR_ROWS + squares) / (PRIOR_ROWS + len(errors))) ** 0.5))


# -------- What makes or extends a bundle: fits of every quantity, and the widths that leaving sources out shows.

FEW_ROWS = 5
FEWEST_SOURCES = 2
"""Below, leaving a source out says nothing, and the widest interval stands."""
FOLDS = 5


def make(quantities: Sequence[Quantity], rows: Sequence[Measurement], *, source: str, as_of: str) -> Bundle:
    """Fit every quantity that has rows, and measure its intervals by leaving sources out."""
    fits = ((quantity.name, fit_quantity(quantity, rows)) for quantity in quantities)
    return Bundle(
        quantities={name: fit for name, fit in fits if fit.sources},
        source=source,
        as_of=as_of,
        sha256=fingerprint(rows),
    )


def extend(
    bundle: Bundle, quantities: Sequence[Quantity], rows: Sequence[Measurement], *, source: str, as_of: str
) -> Bundle:
    """The bundle with the constants of the stacks in `rows` moved to fit them, from where the published rows put them.

    What the rows do not speak for stays. The interval of such a stack is that of a source calibrated on a few rows.
    """
    fits = dict(bundle.quantities)
    for quantity in quantities:
        cases, _ = cases_of(quantity, rows)
        if cases:
            earlier = fits[quantity.name]
            own = {case.stack for case in cases}
            fits[quantity.name] = replace(
                earlier,
                fitted=calibrated(quantity, cases, earlier.fitted),
                calibrated_stacks=tuple(sorted({*earlier.calibrated_stacks, *own})),
                sources={**earlier.sources, **_counts(cases)},
                left_out={**earlier.left_out, **_errors(quantity, cases, earlier.fitted)},
            )
    return Bundle(quantities=fits, source=source, as_of=as_of, sha256=fingerprint(rows), paces=bundle.paces)


def _counts(cases: Sequence[Case]) -> dict[str, int]:
    prefixes = [case.row.prefix for case in cases]
    return {prefix: prefixes.count(prefix) for prefix in sorted(set(prefixes))}


def _errors(quantity: Quantity, cases: Sequence[Case], fitted: Fitted) -> dict[str, float]:
    """Median error of each source with the constants from before."""
    groups = by(scored(quantity, cases, fitted), lambda item: item.row.prefix)
    return {prefix: round(summary(items).median_error, 4) for prefix, items in groups.items()}


def fit_quantity(quantity: Quantity, rows: Iterable[Measurement]) -> QuantityFit:
    """Constants with all rows and without each source, and the widths that leaving out shows."""
    cases, _ = cases_of(quantity, rows)
    quantity = prepared_once(quantity, cases)
    prefixes = sorted({case.row.prefix for case in cases})
    stacks: dict[str, set[str]] = {}
    for case in cases:
        stacks.setdefault(case.stack, set()).add(case.row.prefix)
    without = {
        prefix: fitted_to(quantity, [case for case in cases if case.row.prefix != prefix]) for prefix in prefixes
    }
    left_out = {
        prefix: scored(quantity, [case for case in cases if case.row.prefix == prefix], fitted)
        for prefix, fitted in without.items()
    }
    elsewhere = [item for items in left_out.values() for item in items if len(stacks[item.stack]) > 1]
    situations: dict[Knowledge, list[ScoredRow]] = {
        "unseen": _stack_left_out(quantity, cases),
        "seen": elsewhere,
        "calibrated": _after_few(quantity, cases, without),
        "source": _folded(quantity, cases),
    }
    return QuantityFit(
        fitted=fitted_to(quantity, cases),
        without=without,
        spread=spreads(situations) if len(prefixes) >= FEWEST_SOURCES else Spread(half_widths={}),
        errors=typical_errors(situations),
        left_out={prefix: round(summary(items).median_error, 4) for prefix, items in left_out.items()},
        sources={prefix: sum(case.row.prefix == prefix for case in cases) for prefix in prefixes},
        measured_stacks={stack: tuple(sorted(situations)) for stack, situations in sorted(stacks.items())},
    )


def _after_few(quantity: Quantity, cases: Sequence[Case], without: Mapping[str, Fitted]) -> list[ScoredRow]:
    """Rows of each source predicted after a few of its own, where enough are left to predict."""
    predicted: list[ScoredRow] = []
    for prefix, fitted in without.items():
        own = [case for case in cases if case.row.prefix == prefix]
        if len(own) > 2 * FEW_ROWS:
            predicted += scored(quantity, own, fitted, rows=FEW_ROWS)
    return predicted


def _stack_left_out(quantity: Quantity, cases: Sequence[Case]) -> list[ScoredRow]:
    """Every row predicted from a fit without its stack: what a stack that nobody measured meets."""
    predicted: list[ScoredRow] = []
    for stack in sorted({case.stack for case in cases}):
        own = [case for case in cases if case.stack == stack]
        predicted += scored(quantity, own, fitted_to(quantity, [case for case in cases if case.stack != stack]))
    return predicted


def _folded(quantity: Quantity, cases: Sequence[Case]) -> list[ScoredRow]:
    """Every row predicted from a fit without its fold of configurations: what a new row of a known source meets."""
    configurations = sorted({case.row.config_id or case.row.id for case in cases})
    fold = {name: index % FOLDS for index, name in enumerate(configurations)}
    predictions: list[ScoredRow] = []
    for number in range(FOLDS):
        inside = [case for case in cases if fold[case.row.config_id or case.row.id] == number]
        outside = [case for case in cases if fold[case.row.config_id or case.row.id] != number]
        if inside and outside:
            predictions += scored(quantity, inside, fitted_to(quantity, outside))
    return predictions
