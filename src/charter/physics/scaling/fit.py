"""Fits of a law to runs: Huber loss of the logarithm, L-BFGS from many starts (needs scipy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal

import numpy as np

from charter.errors import DataError, MissingExtraError
from charter.physics.arrays import Array, array
from charter.physics.scaling.laws import KaplanLaw, ParametricLaw
from charter.physics.scaling.runs import SmallRun, check_runs

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
    try:
        from scipy.optimize import minimize
    except ModuleNotFoundError:
        raise MissingExtraError(
            'fitting a scaling law needs scipy: pip install "charter-plan[scale]" (predict and plan work without it)'
        ) from None
    options = {"maxiter": 2000, "maxfun": 20000, "ftol": 1e-13, "gtol": 1e-9}
    ends = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options) for start in starts]
    best = min(ends, key=lambda end: float(end.fun), default=None)
    if best is None or not np.isfinite(best.fun):
        raise DataError("no law fits these runs: losses must fall with size and with tokens")
    return array(best.x)
