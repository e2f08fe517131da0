"""Fits of a law to finished runs: the runs, parametric and Kaplan forms, IsoFLOP envelopes (needs scipy)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from charter.errors import DataError, needing
from charter.physics.columns import Array, array
from charter.physics.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN, KaplanLaw, ParametricLaw, effective_tokens

# -------- Finished training runs, read from a CSV: what a scaling law is fitted to.

NEEDED = ("parameters", "tokens", "loss")
OPTIONAL = ("flops", "learning_rate", "batch_tokens", "epochs", "unique_tokens")
FEWEST_RUNS = 6
"""Five constants need more than five runs."""
FEWEST_SIZES = 3


@dataclass(frozen=True, kw_only=True)
class SmallRun:
    """One finished run: its size, its tokens, its final loss in nats per token."""

    num_parameters: float
    num_tokens: float
    loss: float
    flops: float | None = None
    learning_rate: float | None = None
    batch_tokens: float | None = None
    unique_tokens: float | None = None
    """Tokens that differ; None when every token was seen once."""

    @property
    def compute_flops(self) -> float:
        """Operations of the run: as given, else `6 N D`."""
        return self.flops or FLOPS_PER_PARAMETER_AND_TOKEN * self.num_parameters * self.num_tokens

    @property
    def worth_tokens(self) -> float:
        """Tokens after discounting repeats (`laws.effective_tokens`)."""
        return self.num_tokens if self.unique_tokens is None else effective_tokens(self.num_tokens, self.unique_tokens)


def read_runs(text: str, file: str) -> tuple[SmallRun, ...]:
    """Runs of a CSV with the columns `parameters, tokens, loss` and any of `OPTIONAL`.

    DataError holds every problem of the file at once, each with its line.

    >>> read_runs("parameters,tokens,loss,epochs\\n1e8,2e9,3.1,2\\n", "runs.csv")[0].unique_tokens
    1000000000.0
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    heading = [(name or "").strip() for name in reader.fieldnames or ()]
    reader.fieldnames = heading
    if missing := [name for name in NEEDED if name not in heading]:
        raise DataError(
            f"{file}:1: no column {', '.join(missing)}; found {', '.join(heading) or 'nothing'}\n"
            f"  give the columns {', '.join(NEEDED)}, and any of {', '.join(OPTIONAL)}"
        )
    problems: list[str] = []
    runs = []
    for row in reader:
        if not any((value or "").strip() for value in row.values() if isinstance(value, str)):
            continue
        run = _run(row, f"{file}:{reader.line_num}", problems)
        if run is not None:
            runs.append(run)
    if problems:
        raise DataError("\n".join(problems))
    return tuple(runs)


def check_runs(runs: Sequence[SmallRun]) -> None:
    """Raise, with every reason at once, when the runs cannot tell the terms of a law apart."""
    problems = []
    if len(runs) < FEWEST_RUNS:
        noun = "run" if len(runs) == 1 else "runs"
        problems.append(f"{len(runs)} {noun} cannot fit five constants; give at least {FEWEST_RUNS}")
    if len({run.num_parameters for run in runs}) < FEWEST_SIZES or len({run.num_tokens for run in runs}) < FEWEST_SIZES:
        problems.append("the runs need at least 3 sizes and 3 numbers of tokens, else the two terms are one")
    elif len({round(math.log(run.num_tokens / run.num_parameters), 3) for run in runs}) == 1:
        problems.append("all runs have the same tokens per parameter: size and tokens cannot be told apart")
    if problems:
        raise DataError("\n  ".join(problems))


def _run(row: Mapping[str, str | None], where: str, problems: list[str]) -> SmallRun | None:
    before = len(problems)
    values = {name: _number(row, name, where, problems) for name in (*NEEDED, *OPTIONAL)}
    for name in NEEDED:
        if values[name] is None and not (row.get(name) or "").strip():
            problems.append(f"{where}: {name} is empty; every run needs it")
    if len(problems) > before:
        return None
    parameters, tokens, loss = (values[name] or 0.0 for name in NEEDED)
    unique, epochs = values["unique_tokens"], values["epochs"]
    if unique is None and epochs is not None:
        unique = tokens / max(epochs, 1.0)
    return SmallRun(
        num_parameters=parameters,
        num_tokens=tokens,
        loss=loss,
        flops=values["flops"],
        learning_rate=values["learning_rate"],
        batch_tokens=values["batch_tokens"],
        unique_tokens=None if unique is None or unique >= tokens else unique,
    )


def _number(row: Mapping[str, str | None], name: str, where: str, problems: list[str]) -> float | None:
    text = (row.get(name) or "").strip().replace("_", "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        problems.append(f"{where}: {name} {text!r} is not a number; write it like 1.3e9")
        return None
    if not (math.isfinite(value) and value > 0):
        problems.append(f"{where}: {name} {text} must be a number above zero")
        return None
    return value


# -------- Fits of a law to runs: Huber loss of the logarithm, L-BFGS from many starts (needs scipy).

Form = Literal["chinchilla", "kaplan"]
HUBER_DELTA = 1e-3
"""Residuals of the logarithm above this count linearly. Hoffmann et al. 2022, section 3.3: the value that predicts
larger runs best. The losses are summed, not averaged: averages stop the optimizer early (Besiroglu et al. 2024)."""
START_EXPONENTS = tuple(float(value) for value in np.round(np.arange(0.05, 1.01, 0.05), 2))
"""Exponents of the starts; for each pair the other three constants follow by least squares, so that no grid over them
(Hoffmann's 4,500 starts) is needed."""
STARTS = 8
"""Of all starts the best so many are descended from; judgement: more found no better optimum on synthetic runs."""
RIDGE = 1e-9
"""Keeps the least squares of a start solvable where two terms are nearly one; it moves starts only."""
MOST_EXPONENT = 3.0
LEAST_GAIN = 1e-3
"""By how much the law's loss must fall from the smallest to the largest size, and tokens; judgement."""
Objective = Callable[[Array], tuple[float, Array]]


def fit_parametric(runs: Sequence[SmallRun], *, starts: Sequence[Array] | None = None) -> tuple[ParametricLaw, Array]:
    """The Chinchilla form fitted to runs, and its point in the optimizer's coordinates (a start for a resample).

    Minimises the summed Huber loss of `log L - log(E + A / N^alpha + B / D^beta)` by L-BFGS-B. Source: Hoffmann et
    al. 2022, section 3.3 (approach 3), as corrected by Besiroglu et al. 2024. Tokens seen again count as
    `laws.effective_tokens`. Raises DataError when the runs cannot tell the terms apart.
    """
    check_runs(runs)
    sizes, tokens, losses = _columns(runs)
    centre_n, centre_d = float(sizes.mean()), float(tokens.mean())
    objective = _parametric_objective(sizes - centre_n, tokens - centre_d, losses)
    points = starts if starts is not None else _parametric_starts(sizes - centre_n, tokens - centre_d, losses)
    point = _best(objective, points, bounds=[(-12.0, 6.0)] * 3 + [(0.005, MOST_EXPONENT)] * 2)
    log_e, log_a, log_b, alpha, beta = (float(value) for value in point)
    law = ParametricLaw(
        irreducible_loss=float(np.exp(log_e)),
        size_coefficient=float(np.exp(log_a + alpha * centre_n)),
        size_exponent=alpha,
        data_coefficient=float(np.exp(log_b + beta * centre_d)),
        data_exponent=beta,
        source=f"fit to {len(runs)} runs",
    )
    _check_falls(law, runs)
    return law, point


def fit_kaplan(runs: Sequence[SmallRun], *, starts: Sequence[Array] | None = None) -> tuple[KaplanLaw, Array]:
    """Kaplan's form fitted to runs with the same loss; its point is a start for a resample.

    Source of the form: Kaplan et al. 2020, equation 1.5; theirs was fitted by least squares to early-stopped runs.
    """
    check_runs(runs)
    sizes, tokens, losses = _columns(runs)

    def objective(point: Array) -> tuple[float, Array]:
        value = _kaplan_value(point, sizes, tokens, losses)
        steps = 1e-6 * np.maximum(1.0, np.abs(point))
        moves = np.diag(steps)
        ahead = array([_kaplan_value(point + move, sizes, tokens, losses) for move in moves])
        behind = array([_kaplan_value(point - move, sizes, tokens, losses) for move in moves])
        return value, (ahead - behind) / (2 * steps)

    if starts is None:
        scales, exponents = (20.0, 30.0, 40.0), (0.05, 0.2)
        starts = [array([n, a, d, b]) for n, d in product(scales, scales) for a, b in product(exponents, exponents)]
    best = sorted(starts, key=lambda start: objective(start)[0])[:STARTS]
    point = _best(objective, best, bounds=[(0.0, 90.0), (0.005, MOST_EXPONENT)] * 2)
    log_n, alpha, log_d, beta = (float(value) for value in point)
    law = KaplanLaw(
        size_scale=float(np.exp(log_n)),
        size_exponent=alpha,
        data_scale=float(np.exp(log_d)),
        data_exponent=beta,
        source=f"fit to {len(runs)} runs",
    )
    _check_falls(law, runs)
    return law, point


def log_residuals(law: ParametricLaw | KaplanLaw, runs: Sequence[SmallRun]) -> Array:
    """`log(measured / predicted)` of every run."""
    predicted = array([law.loss(run.num_parameters, run.worth_tokens) for run in runs])
    return array(np.log(array([run.loss for run in runs]) / predicted))


def _check_falls(law: ParametricLaw | KaplanLaw, runs: Sequence[SmallRun]) -> None:
    """Raise when the law sees no gain in size, or none in tokens: the runs say nothing of that term."""
    sizes, tokens = [run.num_parameters for run in runs], [run.worth_tokens for run in runs]
    worst = law.loss(min(sizes), min(tokens))
    for what, better in (
        ("size", law.loss(max(sizes), min(tokens))),
        ("tokens", law.loss(min(sizes), max(tokens))),
    ):
        if not better < (1 - LEAST_GAIN) * worst:
            raise DataError(f"no law with falling terms fits these runs: losses must fall with {what}")


def _columns(runs: Sequence[SmallRun]) -> tuple[Array, Array, Array]:
    sizes = np.log(array([run.num_parameters for run in runs]))
    tokens = np.log(array([run.worth_tokens for run in runs]))
    return array(sizes), array(tokens), array(np.log(array([run.loss for run in runs])))


def _huber(residuals: Array) -> tuple[float, Array]:
    """Summed Huber loss over delta squared, and its slope: of order one where the fit is good."""
    scaled = residuals / HUBER_DELTA
    size = np.abs(scaled)
    value = np.where(size <= 1, 0.5 * scaled**2, size - 0.5)
    return float(value.sum()), array(np.clip(scaled, -1, 1) / HUBER_DELTA)


def _parametric_objective(sizes: Array, tokens: Array, losses: Array) -> Objective:
    def objective(point: Array) -> tuple[float, Array]:
        """Huber loss of the logarithms at a point, and its gradient."""
        log_e, log_a, log_b, alpha, beta = point
        terms = np.stack([np.full_like(sizes, log_e), log_a - alpha * sizes, log_b - beta * tokens])
        top = terms.max(axis=0)
        weights = np.exp(terms - top)
        total = weights.sum(axis=0)
        value, slope = _huber(array(top + np.log(total) - losses))
        e, a, b = weights / total * slope
        return value, array([e.sum(), a.sum(), b.sum(), -(a * sizes).sum(), -(b * tokens).sum()])

    return objective


def _parametric_starts(sizes: Array, tokens: Array, losses: Array) -> list[Array]:
    """The best of a grid of exponents, the rest by least squares; terms that come out negative are held at a share."""
    measured = np.exp(losses)
    alphas, betas = (array(grid).ravel() for grid in np.meshgrid(START_EXPONENTS, START_EXPONENTS))
    size_terms, data_terms = np.exp(-np.outer(alphas, sizes)), np.exp(-np.outer(betas, tokens))
    columns = np.stack([np.ones_like(size_terms), size_terms, data_terms], axis=1)
    products = np.einsum("gin,gjn->gij", columns, columns) + RIDGE * np.eye(3)
    parts = np.linalg.solve(products, np.einsum("gin,n->gi", columns, measured)[..., None])[..., 0]
    logs = np.log(np.maximum(parts, 1e-3 * measured.min()))
    starts = [array([*log, alpha, beta]) for log, alpha, beta in zip(logs, alphas, betas, strict=True)]
    objective = _parametric_objective(sizes, tokens, losses)
    return sorted(starts, key=lambda start: objective(start)[0])[:STARTS]


def _kaplan_value(point: Array, sizes: Array, tokens: Array, losses: Array) -> float:
    log_n, alpha, log_d, beta = point
    terms = np.logaddexp(alpha / beta * (log_n - sizes), log_d - tokens)
    return _huber(array(beta * terms - losses))[0]


def _best(objective: Objective, starts: Sequence[Array], *, bounds: Sequence[tuple[float, float]]) -> Array:
    with needing("fitting a scaling law needs scipy", "scale", otherwise=" (predict and plan work without it)"):
        from scipy.optimize import minimize
    options = {"maxiter": 2000, "maxfun": 20000, "ftol": 1e-13, "gtol": 1e-9}
    ends = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options) for start in starts]
    best = min(ends, key=lambda end: float(end.fun), default=None)
    if best is None or not np.isfinite(best.fun):
        raise DataError("no law fits these runs: losses must fall with size and with tokens")
    return array(best.x)


# -------- IsoFLOP envelope: at each compute budget the size with the least loss, and how it grows with compute.

SAME_BUDGET = 1.25
"""Runs whose compute differs by less than this factor share a budget; judgement."""
FEWEST_RUNS_OF_A_BUDGET = 4
"""A parabola through three runs has no residual to see noise in."""


@dataclass(frozen=True, kw_only=True)
class Valley:
    """One budget: the size at the bottom of its parabola."""

    compute_flops: float
    num_runs: int
    best_parameters: float
    loss: float
    inside: bool
    """Whether the bottom lies between the smallest and the largest size that was run."""

    @property
    def best_tokens(self) -> float:
        """Tokens of the best size at this budget."""
        return self.compute_flops / (FLOPS_PER_PARAMETER_AND_TOKEN * self.best_parameters)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The bottoms of all budgets and the line through them: `log N = log(coefficient) + exponent log C`."""

    valleys: tuple[Valley, ...]
    size_exponent: float | None
    """`a` of `N ~ C^a`; None below two budgets whose bottom was seen. Tokens grow with `1 - a`."""
    size_coefficient: float | None

    def optimal(self, compute_flops: float) -> tuple[float, float] | None:
        """Parameters and tokens for a budget; None when the line is not known."""
        if self.size_exponent is None or self.size_coefficient is None:
            return None
        num_parameters = self.size_coefficient * compute_flops**self.size_exponent
        return num_parameters, compute_flops / (FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters)


def envelope(runs: Sequence[SmallRun]) -> Envelope:
    """A parabola of loss over `log N` for every budget, and the power law through their bottoms.

    Source: Hoffmann et al. 2022, section 3.2 (approach 2). A parabola is a local picture: with sizes far to one side of
    the bottom, or exponents that differ much, its bottom is biased even without noise (arXiv:2603.22339).
    """
    valleys = tuple(parabola for group in _budgets(runs) if (parabola := _valley(group)) is not None)
    seen = [valley for valley in valleys if valley.inside]
    if len(seen) < 2:
        return Envelope(valleys=valleys, size_exponent=None, size_coefficient=None)
    compute = np.log(array([valley.compute_flops for valley in seen]))
    sizes = np.log(array([valley.best_parameters for valley in seen]))
    exponent, constant = (float(value) for value in np.polyfit(compute, sizes, 1))
    return Envelope(valleys=valleys, size_exponent=exponent, size_coefficient=math.exp(constant))


def _budgets(runs: Sequence[SmallRun]) -> list[list[SmallRun]]:
    groups: list[list[SmallRun]] = []
    for run in sorted(runs, key=lambda run: run.compute_flops):
        if groups and run.compute_flops <= SAME_BUDGET * groups[-1][0].compute_flops:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _valley(group: Sequence[SmallRun]) -> Valley | None:
    sizes = np.log(array([run.num_parameters for run in group]))
    if len(group) < FEWEST_RUNS_OF_A_BUDGET or len(set(sizes.tolist())) < 3:
        return None
    centre = float(sizes.mean())
    curve, slope, level = (float(v) for v in np.polyfit(sizes - centre, array([run.loss for run in group]), 2))
    if curve <= 0:
        return None
    bottom = -slope / (2 * curve)
    return Valley(
        compute_flops=math.exp(float(np.mean([math.log(run.compute_flops) for run in group]))),
        num_runs=len(group),
        best_parameters=math.exp(bottom + centre),
        loss=level - slope**2 / (4 * curve),
        inside=bool(sizes.min() <= bottom + centre <= sizes.max()),
    )
