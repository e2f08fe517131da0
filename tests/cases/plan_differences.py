"""Where a plan is not the golden one."""

import pytest

TOLERANCE = 1e-6
"""Last digits of exp and log differ between C libraries."""


def differences(found, expected, where=""):
    """Paths at which two JSON values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = expected.keys() | found.keys()
        return [d for key in sorted(keys) for d in differences(found.get(key), expected.get(key), f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(found, expected, strict=True))
        return [d for index, (a, b) in pairs for d in differences(a, b, f"{where}[{index}]")]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (found, expected))
    same = found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE) if numbers else found == expected
    return [] if same else [f"{where}: found {found!r}, golden {expected!r}"]
