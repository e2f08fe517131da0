"""What a preference row says beside its two answers: how sure the label is, and by how much one answer is better."""

import math

from charter.spec.data_row import Row, json_kind

LARGEST_MARGIN = 1e6
"""Beyond any difference of scores; also what fits every number format."""


def chosen_probability_of(row: Row) -> float:
    """How probable it is that the chosen answer is the better one; 1 where the label is hard."""
    found = row.value.get("chosen_probability", 1.0)
    valid = isinstance(found, int | float) and not isinstance(found, bool)
    if not valid or not math.isfinite(found) or not 0 <= found <= 1:
        row.refuse(f"`chosen_probability` must be a number from 0 to 1, found {json_kind(found)}")
    return float(found)


def margin_of(row: Row) -> float:
    """By how much the chosen answer is better, on the scale of a preference model's scores; 0 where none is given."""
    found = row.value.get("margin", 0.0)
    valid = isinstance(found, int | float) and not isinstance(found, bool)
    if not valid or not 0 <= found <= LARGEST_MARGIN:
        row.refuse(f"`margin` must be a number from 0 to {LARGEST_MARGIN:g}, found {json_kind(found)}")
    return float(found)
