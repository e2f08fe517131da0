"""Studies of a user's small runs: a law as the JSON of `charter plan scale` (needs scipy), a pilot's learning curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from charter.errors import DataError, loads_json
from charter.physics.columns import Array, array
from charter.physics.scaling.fit import (
    FEWEST_RUNS,
    FEWEST_SIZES,
    Envelope,
    Form,
    SmallRun,
    Valley,
    envelope,
    fit_kaplan,
    fit_parametric,
    log_residuals,
)
from charter.physics.scaling.laws import FittedLaw, KaplanLaw, Law, ParametricLaw, Range, range_of
from charter.physics.terms import MOST_FREEDOM, Interval, t_quantile

# -------- A study of a user's small runs: fit, bootstrap, held-back test, IsoFLOP envelope (needs scipy).

HELD_BACK_SHARE = 0.2
"""Share of the runs, the largest by compute, that the test leaves out of the fit."""
DRAWS, HELD_BACK_DRAWS = 400, 100
FREEDOM = {"chinchilla": 5, "kaplan": 4}
"""Constants of each form."""
LAWS: dict[Form, Callable[..., tuple[ParametricLaw | KaplanLaw, Array]]] = {
    "chinchilla": fit_parametric,
    "kaplan": fit_kaplan,
}


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """One run that the smaller ones predict."""

    run: SmallRun
    predicted: float
    p10: float
    p90: float
    extrapolation: float
    """Its compute over the largest of the runs that were fitted."""

    @property
    def error(self) -> float:
        """`predicted / measured - 1`."""
        return self.predicted / self.run.loss - 1

    @property
    def inside(self) -> bool:
        """Return True if the measured loss lies in the 80 % band."""
        return self.p10 <= self.run.loss <= self.p90


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything `charter plan scale fit` found."""

    fitted: FittedLaw
    runs: tuple[SmallRun, ...]
    envelope: Envelope
    held_back: tuple[HeldBack, ...]
    """Empty when too few smaller runs are left to fit."""
    other: tuple[Form, float] | None
    """The other form and the root mean square of its log residuals, for comparison; None when it does not fit."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The best loss at one compute: of the law, and of the runs near it."""

    compute_flops: float
    loss: Interval
    best_run: float | None
    """The least loss of the runs within a quarter of a decade; None where there is none."""


def curve(fit: Study, *, per_decade: int = 2) -> tuple[CurvePoint, ...]:
    """Loss of the law's best size from the smallest fitted compute to two decades beyond the largest."""
    fitted = fit.fitted
    low, high = (math.log10(value) for value in fitted.fitted_on.compute_flops)
    points = []
    for index in range(math.floor((high - low + 2.0) * per_decade + 1e-9) + 1):
        compute = 10 ** (low + index / per_decade)
        near = [run.loss for run in fit.runs if abs(math.log10(run.compute_flops / compute)) <= 0.25]
        loss = fitted.predict(*fitted.law.optimal(compute)).loss
        points.append(CurvePoint(compute_flops=compute, loss=loss, best_run=min(near, default=None)))
    return tuple(points)


def study(runs: Sequence[SmallRun], *, form: Form = "chinchilla", seed: int = 0, draws: int = DRAWS) -> Study:
    """Fit a form to runs, resample them `draws` times, and predict the largest from the smaller ones."""
    fitted = fit_with_band(runs, form=form, seed=seed, draws=draws)
    return Study(
        fitted=replace(
            fitted,
            learning_rate=power_law([(run.compute_flops, run.learning_rate) for run in runs]),
            batch_tokens=power_law([(run.compute_flops, run.batch_tokens) for run in runs]),
        ),
        runs=tuple(runs),
        envelope=envelope(runs),
        held_back=_held_back(runs, form=form, seed=seed, draws=min(draws, HELD_BACK_DRAWS)),
        other=_other(runs, form),
    )


def fit_with_band(runs: Sequence[SmallRun], *, form: Form, seed: int, draws: int) -> FittedLaw:
    """A fit and the fits of resampled runs, drawn with replacement; resamples that cannot be fitted are left out."""
    fit = LAWS[form]
    law, point = fit(runs)
    generator = np.random.default_rng(seed)
    others = []
    for _ in range(draws):
        chosen = generator.integers(0, len(runs), len(runs))
        try:
            others.append(fit([runs[index] for index in chosen], starts=[point])[0])
        except DataError:
            continue
    residuals = log_residuals(law, runs)
    freedom = max(1, len(runs) - FREEDOM[form])
    return FittedLaw(
        law=law,
        draws=tuple(others),
        noise=float(np.sqrt((residuals**2).sum() / freedom)),
        fitted_on=range_of(
            [run.num_parameters for run in runs],
            [run.num_tokens for run in runs],
            [run.compute_flops for run in runs],
        ),
    )


def power_law(points: Sequence[tuple[float, float | None]]) -> tuple[float, float] | None:
    """`(k, p)` of `value = k C^p` by least squares of logarithms; None below three budgets.

    >>> k, p = power_law([(1e18, 1e-3), (1e20, 1e-4), (1e22, 1e-5)])
    >>> round(p, 3)
    -0.5
    """
    logarithms = [(math.log(compute), math.log(value)) for compute, value in points if value is not None]
    if len({round(compute, 2) for compute, _ in logarithms}) < 3:
        return None
    exponent, constant = (
        float(v) for v in np.polyfit(array([x for x, _ in logarithms]), array([y for _, y in logarithms]), 1)
    )
    return math.exp(constant), exponent


# -------- A learning curve: an evaluation's figure over one size (pairs, steps, parameters of a judge).

Scale = Literal["odds", "logarithm", "plain"]
"""In which a figure is a straight line over the logarithm of a size: a share by its odds and a loss by its logarithm
are power laws of the size, a difference is a line."""
Z95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class CurveRun:
    """One finished run of a pilot: the size that it had, and its figure."""

    size: float
    value: float
    half_width: float | None = None
    """Of the figure's own 95 % interval: how far the evaluation's sample may be off."""


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """A straight line through runs, `scale(figure) = level + slope ln(size)`, by least squares.

    It knows no floor: beyond the sizes that were run a figure that levels off gains less than the line says. So nobody
    may ask for more than `reach`.
    """

    runs: tuple[CurveRun, ...]
    scale: Scale
    level: float
    slope: float
    slope_error: float
    """Standard error of the slope by how far the runs lie from the line, with `len(runs) - 2` degrees of freedom."""
    sampling_error: float
    """The same by the figures' own intervals."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """Return the sizes that were run, each once."""
        return tuple(sorted({run.size for run in self.runs}))

    @property
    def reach(self) -> float:
        """Return the largest size that may be asked for: as far beyond the largest run as the runs span; judgement."""
        return self.sizes[-1] ** 2 / self.sizes[0]

    def gain(self, old: float, new: float, *, level: float) -> tuple[float, float, float]:
        """Return how much the figure rises from one size to another, with the ends of its interval.

        Student's t times the slope's standard error, the larger of the two, since three runs may lie on a line by
        chance. Where the scale is no plain one, the old size's figure is taken as the line has it.
        """
        by_runs = t_quantile(level, len(self.runs) - 2) * self.slope_error
        by_samples = t_quantile(level, MOST_FREEDOM) * self.sampling_error
        half, times = max(by_runs, by_samples), math.log(new / old)
        before = self.level + self.slope * math.log(old)
        ends = [
            _from_scale(before + slope * times, self.scale) - _from_scale(before, self.scale)
            for slope in (self.slope - half, self.slope + half)
        ]
        middle = _from_scale(before + self.slope * times, self.scale) - _from_scale(before, self.scale)
        return middle, min(ends), max(ends)


def learning_curve(runs: Sequence[CurveRun], scale: Scale) -> LearningCurve:
    """Fit a line to runs; DataError below three sizes, or where a figure has no place on the scale.

    >>> runs = [CurveRun(size=size, value=0.1 * math.log(size)) for size in (10, 100, 1000)]
    >>> [round(end, 3) for end in learning_curve(runs, "plain").gain(1000, 2000, level=0.95)]
    [0.069, 0.069, 0.069]
    """
    sizes = {run.size for run in runs}
    if len(sizes) < FEWEST_SIZES:
        raise DataError(f"{len(sizes)} sizes were run; a curve needs {FEWEST_SIZES}")
    logs = np.log(array([run.size for run in runs]))
    values = array([_on_scale(run.value, scale) for run in runs])
    away = logs - logs.mean()
    spread = float((away**2).sum())
    slope = float((away * values).sum()) / spread
    level = float(values.mean()) - slope * float(logs.mean())
    rest = float(((values - level - slope * logs) ** 2).sum())
    widths = array([(run.half_width or 0.0) / Z95 * _steepness(run.value, scale) for run in runs])
    return LearningCurve(
        runs=tuple(runs),
        scale=scale,
        level=level,
        slope=slope,
        slope_error=math.sqrt(rest / (len(runs) - 2) / spread),
        sampling_error=math.sqrt(float((away**2 * widths**2).sum())) / spread,
    )


def _on_scale(value: float, scale: Scale) -> float:
    if scale == "plain":
        return value
    if value <= 0 or (scale == "odds" and value >= 1):
        raise DataError(f"a figure of {value:g} has no {scale}")
    return math.log(value / (1 - value)) if scale == "odds" else math.log(value)


def _from_scale(value: float, scale: Scale) -> float:
    if scale == "plain":
        return value
    return 1 / (1 + math.exp(-value)) if scale == "odds" else math.exp(value)


def _steepness(value: float, scale: Scale) -> float:
    """Return how much the scale rises where the figure rises by one."""
    if scale == "plain":
        return 1.0
    return 1 / (value * (1 - value)) if scale == "odds" else 1 / value


def _held_back(runs: Sequence[SmallRun], *, form: Form, seed: int, draws: int) -> tuple[HeldBack, ...]:
    ordered = sorted(runs, key=lambda run: run.compute_flops)
    count = math.ceil(HELD_BACK_SHARE * len(ordered))
    smaller, largest = ordered[:-count], ordered[-count:]
    if len(smaller) < FEWEST_RUNS:
        return ()
    try:
        fitted = fit_with_band(smaller, form=form, seed=seed, draws=draws)
    except DataError:
        return ()
    checks = []
    for run in largest:
        prediction = fitted.predict(run.num_parameters, run.num_tokens, run.unique_tokens)
        checks.append(
            HeldBack(
                run=run,
                predicted=prediction.loss.p50,
                p10=prediction.loss.p10,
                p90=prediction.loss.p90,
                extrapolation=run.compute_flops / fitted.fitted_on.compute_flops[1],
            )
        )
    return tuple(checks)


def _other(runs: Sequence[SmallRun], form: Form) -> tuple[Form, float] | None:
    other: Form = "kaplan" if form == "chinchilla" else "chinchilla"
    try:
        law, _ = LAWS[other](runs)
    except DataError:
        return None
    return other, float(np.sqrt((log_residuals(law, runs) ** 2).mean()))


# -------- A fitted law as JSON: what `charter plan scale fit` writes and `predict` and `plan` read.

SCHEMA = "charter.scaling-law/1"
FORMS: dict[str, type[ParametricLaw] | type[KaplanLaw]] = {"chinchilla": ParametricLaw, "kaplan": KaplanLaw}


def study_json(study: Study, *, source: str) -> dict[str, Any]:
    """Everything of a study; `read_law` needs the first half, the rest is for people and charts."""
    fitted = study.fitted
    constants = constants_of(fitted.law.form)
    return {
        "schema": SCHEMA,
        "form": fitted.law.form,
        "source": source,
        "constants": {name: getattr(fitted.law, name) for name in constants},
        "bands": {
            name: {"p10": band.p10, "p90": band.p90}
            for name in constants
            for band in [fitted.band(lambda law, name=name: float(getattr(law, name)))]  # type: ignore[misc]
        },
        "draws": [[getattr(draw, name) for name in constants] for draw in fitted.draws],
        "noise": fitted.noise,
        "range": {name: list(getattr(fitted.fitted_on, name)) for name in ("parameters", "tokens", "compute_flops")},
        "learning_rate": fitted.learning_rate,
        "batch_tokens": fitted.batch_tokens,
        "runs": [
            {"parameters": run.num_parameters, "tokens": run.num_tokens, "loss": run.loss, "flops": run.compute_flops}
            for run in study.runs
        ],
        "held_back": [_held_back_json(item) for item in study.held_back],
        "isoflop": {
            "size_exponent": study.envelope.size_exponent,
            "size_coefficient": study.envelope.size_coefficient,
            "budgets": [_budget(valley) for valley in study.envelope.valleys],
        },
        "other_form": None if study.other is None else {"form": study.other[0], "rms": study.other[1]},
    }


def _held_back_json(item: HeldBack) -> dict[str, Any]:
    return {
        "parameters": item.run.num_parameters,
        "tokens": item.run.num_tokens,
        "measured": item.run.loss,
        "predicted": item.predicted,
        "p10": item.p10,
        "p90": item.p90,
        "error": item.error,
        "extrapolation": item.extrapolation,
        "inside": item.inside,
    }


def _budget(valley: Valley) -> dict[str, Any]:
    return {
        "flops": valley.compute_flops,
        "runs": valley.num_runs,
        "parameters": valley.best_parameters,
        "tokens": valley.best_tokens,
        "loss": valley.loss,
        "inside": valley.inside,
    }


def read_law(text: str | bytes, file: str) -> FittedLaw:
    """The law of a file; DataError when it is not one."""
    try:
        document = loads_json(text)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA!r}")
        form, constants, source = document["form"], document["constants"], str(document["source"])
        limits = document["range"]
        return FittedLaw(
            law=_law(form, [constants[name] for name in constants_of(form)], source),
            draws=tuple(_law(form, row, source) for row in document["draws"]),
            noise=float(document["noise"]),
            fitted_on=Range(
                parameters=_pair(limits["parameters"]),
                tokens=_pair(limits["tokens"]),
                compute_flops=_pair(limits["compute_flops"]),
            ),
            learning_rate=_pair(document["learning_rate"]) if document.get("learning_rate") else None,
            batch_tokens=_pair(document["batch_tokens"]) if document.get("batch_tokens") else None,
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            f"{file} is not a scaling law ({error}); `charter plan scale fit FILE.csv` writes one"
        ) from None


def constants_of(form: str) -> list[str]:
    """The constants of a form, in the order of its formula."""
    return [item.name for item in fields(FORMS[form]) if item.name != "source"]


def _law(form: str, values: list[float], source: str) -> Law:
    constants: dict[str, Any] = dict(zip(constants_of(form), (float(value) for value in values), strict=True))
    return FORMS[form](**constants, source=source)


def _pair(values: list[float]) -> tuple[float, float]:
    low, high = (float(value) for value in values)
    return low, high
