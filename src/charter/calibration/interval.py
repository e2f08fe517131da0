"""Widths of the intervals around a prediction, by what is predicted and by how much is known of the stack.

`charter.validation.intervals` measures them; here they are read. Four situations are kept apart: a stack that nobody
measured, a stack seen in another source, a source with a few rows of its own, and a source with many.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Literal

from charter.physics.terms import Interval

Knowledge = Literal["unseen", "seen", "calibrated", "source"]
"""Of the stack: nobody measured it; another source did; a few rows of this source were fitted; many rows were."""
SITUATIONS: tuple[Knowledge, ...] = ("unseen", "seen", "calibrated", "source")
"""From the least known to the best."""
NARROWEST, WIDEST = 0.02, 1.2
"""Half-widths in logarithms: below the repeatability of the measurements themselves (3.6 % between re-measurements,
docs/concepts/accuracy.md) no interval is honest; above a factor of 3.3 it says nothing."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Half-widths of the 80 % interval in logarithms: by group and knowledge, `*` for all groups together."""

    half_widths: Mapping[str, Mapping[str, float]]

    def half_width(self, group: str, knowledge: Knowledge) -> float:
        """The half-width of a group, or of all groups; of less knowledge where too few measurements speak for so much.

        >>> Spread(half_widths={"totals": {"unseen": 0.4}}).half_width("totals", "calibrated")
        0.4
        """
        levels = SITUATIONS[SITUATIONS.index(knowledge) :: -1]
        for name in (group, "*"):
            widths = self.half_widths.get(name, {})
            for situation in levels:
                if situation in widths:
                    return widths[situation]
        return WIDEST / 2

    def interval(self, predicted: float, group: str, knowledge: Knowledge, *, factor: float = 1.0) -> Interval:
        """p10, p50 and p90 around a prediction.

        >>> spread = Spread(half_widths={"*": {"unseen": 0.2}})
        >>> round(spread.interval(100.0, "totals", "unseen").p90, 1)
        122.1
        """
        width = min(max(self.half_width(group, knowledge) * factor, NARROWEST), WIDEST)
        return Interval(p10=predicted * exp(-width), p50=predicted, p90=predicted * exp(width))
