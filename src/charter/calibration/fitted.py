"""Fitted constants and interval widths of every quantity, with what they were fitted on; written and read as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from charter.calibration.interval import Spread
from charter.calibration.pace import Pace
from charter.errors import DataError
from charter.physics.arrays import array
from charter.physics.constants import moved

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
    left_out: Mapping[str, float] = field(default_factory=dict)
    """Median error of each source, predicted without it."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """All quantities, and where the numbers come from."""

    quantities: Mapping[str, QuantityFit]
    source: str
    as_of: str
    sha256: str
    """Of the measurements (`charter.validation.bundled.fingerprint`)."""
    paces: tuple[Pace, ...] = ()
    """What a run's own steps took over their estimate."""


def save(bundle: Bundle, path: Path) -> None:
    """Write a bundle; logarithms with four digits after the point, finer than any of them is known."""
    path.write_text(json.dumps(_as_json(bundle), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: Path) -> Bundle:
    """Read a bundle; DataError when the file is not one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Bundle(
            quantities={name: _quantity(item) for name, item in document["quantities"].items()},
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


def _quantity(document: Mapping[str, Any]) -> QuantityFit:
    return QuantityFit(
        fitted=_fitted(document["fitted"]),
        without={prefix: _fitted(fitted) for prefix, fitted in document["without"].items()},
        spread=Spread(half_widths=document["half_widths"]),
        sources=document["sources"],
        measured_stacks={stack: tuple(names) for stack, names in document["measured_stacks"].items()},
        left_out=document["left_out"],
        calibrated_stacks=tuple(document.get("calibrated_stacks", ())),
    )


def _fitted(document: Mapping[str, Any]) -> Fitted:
    return Fitted(shared=document["common"], stacks=document["stacks"], noise=document["noise"])
