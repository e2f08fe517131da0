"""Constants that measurements moved, widths of intervals and paces: what a plan reads of validation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, Literal

from charter.errors import DataError, loads_json
from charter.physics.columns import array
from charter.physics.constants import moved
from charter.physics.terms import Interval

# -------- Widths of the intervals around a prediction, by what is predicted and by how much is known of the stack.
#
# `charter.validation.intervals` measures them; here they are read. Four situations are kept apart: a stack that nobody
# measured, a stack seen in another source, a source with a few rows of its own, and a source with many.

Knowledge = Literal["unseen", "seen", "calibrated", "source"]
"""Of the stack: nobody measured it; another source did; a few rows of this source were fitted; many rows were."""
SITUATIONS: tuple[Knowledge, ...] = ("unseen", "seen", "calibrated", "source")
"""From the least known to the best."""
NARROWEST, WIDEST = 0.02, 1.2
"""Half-widths in logarithms: below the repeatability of the measurements themselves (3.6 % between re-measurements,
docs/concepts/accuracy.md) no interval is honest; above a factor of 3.3 it says nothing."""


UNKNOWN = "unknown"
"""How a group of rows ends that do not say what decides their figure: other groups know nothing of its width."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Half-widths of the 80 % interval in logarithms: by group and knowledge, `*` for all groups together."""

    half_widths: Mapping[str, Mapping[str, float]]

    def half_width(self, group: str, knowledge: Knowledge) -> float:
        """The half-width of a group, or of all groups; of less knowledge where too few measurements speak for so much.

        >>> Spread(half_widths={"totals": {"unseen": 0.4}}).half_width("totals", "calibrated")
        0.4
        """
        if group.endswith(UNKNOWN) and group not in self.half_widths:
            return WIDEST
        width = self._measured(group, knowledge)
        return WIDEST / 2 if width is None else width

    def is_measured(self, group: str, knowledge: Knowledge) -> bool:
        """Return True if measurements give the half-width, and not what stands where there are none."""
        return self._measured(group, knowledge) is not None

    def _measured(self, group: str, knowledge: Knowledge) -> float | None:
        levels = SITUATIONS[SITUATIONS.index(knowledge) :: -1]
        widths = [self.half_widths.get(name, {}) for name in (group, "*")]
        return next((each[situation] for each in widths for situation in levels if situation in each), None)

    def interval(self, predicted: float, group: str, knowledge: Knowledge, *, factor: float = 1.0) -> Interval:
        """p10, p50 and p90 around a prediction.

        >>> spread = Spread(half_widths={"*": {"unseen": 0.2}})
        >>> round(spread.interval(100.0, "totals", "unseen").p90, 1)
        122.1
        """
        width = min(max(self.half_width(group, knowledge) * factor, NARROWEST), WIDEST)
        return Interval(p10=predicted * exp(-width), p50=predicted, p90=predicted * exp(width))


# -------- Paces: what a stage of a run took per step, over what was estimated for the same stage on the same
# accelerator.

FEWEST_INTERVALS = 2
"""One interval may be a pause, or the first, slow step."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Measured over estimated seconds of one kind of stage on one accelerator."""

    accelerator: str
    kind: str
    factor: float
    steps: int
    """Steps it was measured on."""
    source: str

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Pace":
        """Read what `to_json` wrote."""
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def seconds_per_step(points: Sequence[tuple[int, float]], *, at_once: int = 1) -> tuple[float, int] | None:
    """Median seconds of a step from (step, clock) pairs, and how many intervals it rests on; None below two.

    A median passes over restarts and the first, slow step. Of `at_once` steps that are under way together several end
    together, and then none for a while: each is compared with the one that ended so many before.

    >>> seconds_per_step([(0, 0.0), (1, 9.0), (2, 10.0), (3, 11.0), (5, 13.0)])
    (1.0, 4)
    >>> seconds_per_step([(1, 0.0), (2, 0.5), (3, 12.0), (4, 12.5), (5, 24.0), (6, 24.5)], at_once=2)
    (6.0, 4)
    """
    pairs = zip(points, points[at_once:], strict=False)
    gaps = [(late - early) / (after - before) for (before, early), (after, late) in pairs if after > before]
    return (median(gaps), len(gaps)) if len(gaps) >= FEWEST_INTERVALS else None


def joined(paces: Sequence[Pace]) -> tuple[Pace, ...]:
    """One pace per accelerator and kind: the geometric mean, weighted by steps."""
    groups: dict[tuple[str, str], list[Pace]] = {}
    for pace in paces:
        groups.setdefault((pace.accelerator, pace.kind), []).append(pace)
    means = []
    for (accelerator, kind), members in sorted(groups.items()):
        steps = sum(pace.steps for pace in members)
        mean = sum(pace.steps * log(pace.factor) for pace in members) / steps
        source = "; ".join(sorted({pace.source for pace in members}))
        means.append(Pace(accelerator=accelerator, kind=kind, factor=exp(mean), steps=steps, source=source))
    return tuple(means)


# -------- Fitted constants and interval widths of every quantity, with what they were fitted on; written and read as
# JSON.

DATA = Path(__file__).parent / "data"
FITTED = DATA / "fitted.json"


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Shifts of the logarithms of constants: shared, and per stack."""

    shared: Mapping[str, float] = field(default_factory=dict)
    stacks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    noise: float = 0.15
    """Standard deviation of what remains, in logarithms."""

    def shift(self, stack: str) -> dict[str, float]:
        """Shift of each constant for a stack; a stack nobody measured gets the shared one."""
        own = self.stacks.get(stack, {})
        names = {**self.shared, **own}
        return {name: self.shared.get(name, 0.0) + own.get(name, 0.0) for name in names}

    def apply(self, constants: Any, stacks: Sequence[str]) -> Any:
        """Constants as arrays, one value per case."""
        shifts = {stack: self.shift(stack) for stack in set(stacks)}
        names = {name for shift in shifts.values() for name in shift}
        factors = {name: array([shifts[stack].get(name, 0.0) for stack in stacks]) for name in sorted(names)}
        return moved(constants, factors)


@dataclass(frozen=True, kw_only=True)
class QuantityFit:
    """Fit of one quantity: constants, constants without each source, interval widths."""

    fitted: Fitted
    without: Mapping[str, Fitted] = field(default_factory=dict)
    spread: Spread = field(default_factory=lambda: Spread(half_widths={}))
    sources: Mapping[str, int] = field(default_factory=dict)
    """Rows of each source."""
    measured_stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Stack -> sources it was measured in."""
    calibrated_stacks: tuple[str, ...] = ()
    """Stacks whose constants were moved to a user's own rows."""
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Typical error by group and knowledge: the median of a stack's or source's rows, mean over those left out."""
    left_out: Mapping[str, float] = field(default_factory=dict)
    """Median error of each source, predicted without it."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """All quantities, and where the numbers come from."""

    quantities: Mapping[str, QuantityFit]
    source: str
    as_of: str
    sha256: str
    """Of the measurements (`charter.validation.alarms.fingerprint`)."""
    paces: tuple[Pace, ...] = ()
    """What a run's own steps took over their estimate."""


def save(bundle: Bundle, path: Path) -> None:
    """Write a bundle; logarithms with four digits after the point, finer than any of them is known."""
    path.write_text(json.dumps(_as_json(bundle), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: Path) -> Bundle:
    """Read a bundle; DataError when the file is not one."""
    try:
        document = loads_json(path.read_text(encoding="utf-8"))
        return Bundle(
            quantities={name: _read_fit(item) for name, item in document["quantities"].items()},
            source=document["source"],
            as_of=document["as_of"],
            sha256=document["sha256"],
            paces=tuple(Pace.from_json(item) for item in document.get("paces", ())),
        )
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; `charter validate calibrate FILE.csv -o PATH` writes one"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a calibration ({error!r}); `charter validate calibrate FILE.csv -o PATH` writes one"
        ) from error


@cache
def bundled() -> Bundle:
    """The calibration that Charter ships."""
    return load(FITTED)


def _as_json(bundle: Bundle) -> dict[str, Any]:
    return {
        "source": bundle.source,
        "as_of": bundle.as_of,
        "sha256": bundle.sha256,
        "paces": [pace.to_json() for pace in bundle.paces],
        "quantities": {
            name: {
                "fitted": _fitted_json(item.fitted),
                "without": {prefix: _fitted_json(fitted) for prefix, fitted in item.without.items()},
                "half_widths": {group: dict(widths) for group, widths in item.spread.half_widths.items()},
                "left_out": dict(item.left_out),
                "errors": {group: dict(errors) for group, errors in item.errors.items()},
                "calibrated_stacks": list(item.calibrated_stacks),
                "sources": dict(item.sources),
                "measured_stacks": {stack: list(prefixes) for stack, prefixes in item.measured_stacks.items()},
            }
            for name, item in bundle.quantities.items()
        },
    }


def _fitted_json(fitted: Fitted) -> dict[str, Any]:
    return {
        "common": {name: round(value, 4) for name, value in fitted.shared.items()},
        "stacks": {
            stack: {name: round(value, 4) for name, value in shift.items()} for stack, shift in fitted.stacks.items()
        },
        "noise": round(fitted.noise, 4),
    }


def _read_fit(document: Mapping[str, Any]) -> QuantityFit:
    return QuantityFit(
        fitted=_read_fitted(document["fitted"]),
        without={prefix: _read_fitted(fitted) for prefix, fitted in document["without"].items()},
        spread=Spread(half_widths=document["half_widths"]),
        sources=document["sources"],
        measured_stacks={stack: tuple(names) for stack, names in document["measured_stacks"].items()},
        left_out=document["left_out"],
        errors=document.get("errors", {}),
        calibrated_stacks=tuple(document.get("calibrated_stacks", ())),
    )


def _read_fitted(document: Mapping[str, Any]) -> Fitted:
    return Fitted(shared=document["common"], stacks=document["stacks"], noise=document["noise"])
