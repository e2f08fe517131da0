"""What is a near duplicate, decided on signatures that are written here byte by byte."""

import math

import numpy as np
import pytest

from charter.feedback.prepare import KEPT, NEAR_DUPLICATE, decide
from charter.feedback.prepare_rows import PERMUTATIONS, Sketcher, similarities

ONE = np.zeros(PERMUTATIONS, np.uint8)
OTHER = np.where(np.arange(PERMUTATIONS) < 24, 1, 0).astype(np.uint8)
SIMILARITY = float(similarities(ONE, OTHER[None, :])[0])


def digest(number, signature, sketcher):
    bands = np.zeros(sketcher.bands, "<u8").tobytes().hex()
    exact = np.array([number + 1, 0], "<u8").tobytes().hex()
    return {"characters": 1, "exact": exact, "signature": signature.tobytes().hex(), "bands": bands}


@pytest.mark.parametrize(
    ("threshold", "reason"),
    [
        (math.nextafter(SIMILARITY, 0), NEAR_DUPLICATE),
        (SIMILARITY, NEAR_DUPLICATE),
        (math.nextafter(SIMILARITY, 1), KEPT),
    ],
)
def test_row_exactly_at_the_threshold_is_a_near_duplicate(threshold, reason):
    sketcher = Sketcher(threshold)
    found = decide(
        [digest(n, row, sketcher) for n, row in enumerate((ONE, OTHER))], 2, sketcher=sketcher, max_rows=None
    )
    assert [found.reason(row) for row in range(2)] == [KEPT, reason]
    assert found.similarity[1] == pytest.approx(SIMILARITY if reason else 0)


def test_of_equally_alike_rows_the_first_is_named():
    sketcher = Sketcher(0.9)
    rows = [np.full(PERMUTATIONS, 7, np.uint8), ONE, OTHER, OTHER]
    found = decide([digest(n, row, sketcher) for n, row in enumerate(rows)], 4, sketcher=sketcher, max_rows=None)
    assert [found.reason(row) for row in range(4)] == [KEPT, KEPT, KEPT, NEAR_DUPLICATE]
    assert found.others[3] == 2
