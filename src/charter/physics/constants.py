"""Named constants of a model of a machine or of a software stack: value, spread, unit and source.

A set of constants is a frozen dataclass whose fields are made with `constant(...)`. A field is a positive number, or an
array with one value per configuration, so that a fit can move all of them at once. The spread is the standard
deviation of the logarithm between stacks: how far a stack nobody has measured may be from the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np

from charter.physics.arrays import Array, array

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Described:
    """Description of one constant: its value, uncertainty, unit, source and bound."""

    name: str
    value: float
    sigma: float
    unit: str
    source: str
    most: float
    """The value never goes above (a share: 1)."""


def constant(value: float, *, sigma: float, unit: str, source: str, most: float = float("inf")) -> Any:
    """A field of a set of constants; `sigma` 0 keeps it out of every fit.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Example:
    ...     matmul_share: Array = constant(0.8, sigma=0.1, unit="share", source="an example")
    >>> describe(Example)[0].name, float(Example().matmul_share)
    ('matmul_share', 0.8)
    """
    metadata = {"sigma": sigma, "unit": unit, "source": source, "value": value, "most": most}
    return field(default_factory=lambda: array(value), metadata=metadata)


def describe(kind: type) -> tuple[Described, ...]:
    """The constants of a set, in order."""
    return tuple(Described(name=item.name, **item.metadata) for item in fields(kind) if "sigma" in item.metadata)


def moved(constants: Made, log_factors: Mapping[str, Array | float]) -> Made:
    """The constants times `exp(log_factor)`, each at most its limit; what is not named stays."""
    limits = {item.name: item.most for item in describe(type(constants))}
    values = {
        name: np.minimum(getattr(constants, name) * np.exp(factor), limits[name])
        for name, factor in log_factors.items()
    }
    return replace(constants, **values)  # type: ignore[type-var]
