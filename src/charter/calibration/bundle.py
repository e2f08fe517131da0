"""Fitted constants and interval widths of every quantity, with what they were fitted on; written and read as JSON."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from charter.calibration.fit import Fitted
from charter.calibration.interval import Knowledge, Spread, spreads
from charter.calibration.pace import Pace
from charter.calibration.quantity import Quantity
from charter.calibration.rows.measurement import Measurement, read_measurements
from charter.calibration.score import Case, Scored, by, calibrated, cases_of, fitted_to, scored, summary
from charter.errors import DataError

DATA = Path(__file__).parent / "data"
MEASUREMENTS = DATA / "measurements.csv"
FITTED = DATA / "fitted.json"
FEW_ROWS = 5
FEWEST_SOURCES = 2
"""Below, leaving a source out says nothing, and the widest interval stands."""
FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class QuantityFit:
    """What is known of one quantity: constants, constants without each source, interval widths."""

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
    """Of the measurements (`fingerprint`)."""
    paces: tuple[Pace, ...] = ()
    """What a run's own steps took over their estimate."""


def make(quantities: Sequence[Quantity], rows: Sequence[Measurement], *, source: str, as_of: str) -> Bundle:
    """Fit every quantity that has rows, and measure its intervals by leaving sources out."""
    fits = ((quantity.name, fit_quantity(quantity, rows)) for quantity in quantities)
    return Bundle(
        quantities={name: found for name, found in fits if found.sources},
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
    found = dict(bundle.quantities)
    for quantity in quantities:
        cases, _ = cases_of(quantity, rows)
        if cases:
            known = found[quantity.name]
            own = {case.stack for case in cases}
            found[quantity.name] = replace(
                known,
                fitted=calibrated(quantity, cases, known.fitted),
                calibrated_stacks=tuple(sorted({*known.calibrated_stacks, *own})),
                sources={**known.sources, **_counts(cases)},
                left_out={**known.left_out, **_errors(quantity, cases, known.fitted)},
            )
    return Bundle(quantities=found, source=source, as_of=as_of, sha256=fingerprint(rows), paces=bundle.paces)


def _counts(cases: Sequence[Case]) -> dict[str, int]:
    prefixes = [case.row.prefix for case in cases]
    return {prefix: prefixes.count(prefix) for prefix in sorted(set(prefixes))}


def _errors(quantity: Quantity, cases: Sequence[Case], fitted: Fitted) -> dict[str, float]:
    """Median error of each source with the constants from before."""
    groups = by(scored(quantity, cases, fitted), lambda item: item.row.prefix)
    return {prefix: round(summary(items).median_error, 4) for prefix, items in groups.items()}


def fingerprint(rows: Sequence[Measurement]) -> str:
    """SHA-256 of the rows' ids and values: which measurements a fit has seen."""
    return hashlib.sha256("\n".join(f"{row.id} {row.value!r}" for row in rows).encode()).hexdigest()


def fit_quantity(quantity: Quantity, rows: Iterable[Measurement]) -> QuantityFit:
    """Constants with all rows and without each source, and the widths that leaving out shows."""
    cases, _ = cases_of(quantity, rows)
    prefixes = sorted({case.row.prefix for case in cases})
    stacks: dict[str, set[str]] = {}
    for case in cases:
        stacks.setdefault(case.stack, set()).add(case.row.prefix)
    without = {
        prefix: fitted_to(quantity, [case for case in cases if case.row.prefix != prefix]) for prefix in prefixes
    }
    found = _situations(quantity, cases, without, stacks)
    left_out = by(found.get("unseen", []), lambda item: item.row.prefix)
    return QuantityFit(
        fitted=fitted_to(quantity, cases),
        without=without,
        spread=spreads(found) if len(prefixes) >= FEWEST_SOURCES else Spread(half_widths={}),
        left_out={prefix: round(summary(items).median_error, 4) for prefix, items in left_out.items()},
        sources={prefix: sum(case.row.prefix == prefix for case in cases) for prefix in prefixes},
        measured_stacks={stack: tuple(sorted(found)) for stack, found in sorted(stacks.items())},
    )


def _situations(
    quantity: Quantity, cases: Sequence[Case], without: Mapping[str, Fitted], stacks: Mapping[str, set[str]]
) -> dict[Knowledge, list[Scored]]:
    """Scored rows of a stack never seen, of one seen elsewhere, after a few rows, and of a source with many."""
    unseen, after = [], []
    for prefix, fitted in without.items():
        own = [case for case in cases if case.row.prefix == prefix]
        unseen += scored(quantity, own, fitted)
        if len(own) > 2 * FEW_ROWS:
            after += scored(quantity, own, fitted, rows=FEW_ROWS)
    elsewhere = [item for item in unseen if stacks[item.stack] - {item.row.prefix}]
    found: dict[Knowledge, list[Scored]] = {
        "unseen": unseen,
        "seen": elsewhere,
        "calibrated": after,
        "source": _folded(quantity, cases),
    }
    return {knowledge: items for knowledge, items in found.items() if items}


def _folded(quantity: Quantity, cases: Sequence[Case]) -> list[Scored]:
    """Every row predicted from a fit without its fold of configurations: what a new row of a known source meets."""
    configurations = sorted({case.row.config_id or case.row.id for case in cases})
    fold = {name: index % FOLDS for index, name in enumerate(configurations)}
    found: list[Scored] = []
    for number in range(FOLDS):
        inside = [case for case in cases if fold[case.row.config_id or case.row.id] == number]
        outside = [case for case in cases if fold[case.row.config_id or case.row.id] != number]
        if inside and outside:
            found += scored(quantity, inside, fitted_to(quantity, outside))
    return found


def save(bundle: Bundle, path: Path) -> None:
    """Write a bundle; logarithms with four digits after the point, finer than any of them is known."""
    path.write_text(json.dumps(_as_json(bundle), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: Path) -> Bundle:
    """Read a bundle; DataError when the file is not one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Bundle(
            quantities={name: _quantity(item) for name, item in found["quantities"].items()},
            source=found["source"],
            as_of=found["as_of"],
            sha256=found["sha256"],
            paces=tuple(Pace.from_json(item) for item in found.get("paces", ())),
        )
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; `charter calibrate FILE.csv -o PATH` writes a calibration"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a calibration ({error!r}); `charter calibrate FILE.csv -o PATH` writes one"
        ) from error


@cache
def bundled() -> Bundle:
    """The calibration that Charter ships."""
    return load(FITTED)


@cache
def bundled_measurements() -> tuple[Measurement, ...]:
    """The published measurements that the shipped calibration was fitted to."""
    return read_measurements(MEASUREMENTS)


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
                "measured_stacks": {stack: list(found) for stack, found in item.measured_stacks.items()},
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


def _quantity(found: Mapping[str, Any]) -> QuantityFit:
    return QuantityFit(
        fitted=_fitted(found["fitted"]),
        without={prefix: _fitted(fitted) for prefix, fitted in found["without"].items()},
        spread=Spread(half_widths=found["half_widths"]),
        sources=found["sources"],
        measured_stacks={stack: tuple(names) for stack, names in found["measured_stacks"].items()},
        left_out=found["left_out"],
        calibrated_stacks=tuple(found.get("calibrated_stacks", ())),
    )


def _fitted(found: Mapping[str, Any]) -> Fitted:
    return Fitted(shared=found["common"], stacks=found["stacks"], noise=found["noise"])
