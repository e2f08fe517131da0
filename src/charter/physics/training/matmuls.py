"""Share of a device's best product that a given shape reaches: tiles, waves, and a short inner side."""

import numpy as np

from charter.physics.arrays import Array, array

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.93), (64.0, 128.0, 0.78), (64.0, 64.0, 0.6))
"""Output tiles of the kernels libraries choose from, and the share of the best tile's rate that each reaches.
NVIDIA, Matrix Multiplication Background User's Guide (tile quantisation); shares: judgement."""
SHORT_INNER = 150.0
"""Inner side at which half the time goes to filling and draining a multiprocessor of 2.5 TFLOP/s (A100). It grows
with the rate of one multiprocessor, since latencies do not shrink. Judgement: 4096 loses 4 % on A100."""
REFERENCE_RATE = 2.5e12
"""Of one multiprocessor of an A100, operations per second."""
LONGEST_SPLIT = 1024.0
"""Part of an inner side that one tile keeps when it is split over idle multiprocessors; judgement."""
OVERLAPPED_FILL = 0.5
"""Share of filling and draining that remains where a tile follows another on the same multiprocessor; judgement."""
SPLIT_SHARE = 0.85
"""Of the rate that a split keeps (partial sums are added through memory); judgement."""


def shape_share(rows: Array, columns: Array, inner: Array, multiprocessors: Array, short_inner: Array) -> Array:
    """Share of the device's best rate for `rows x columns` out of an inner side of `inner`.

    The best tile counts: `m n / (S waves tile)`, `waves = ceil(tiles / S)` (NVIDIA, Matrix Multiplication Background
    User's Guide, sections on tile and wave quantisation), times `k / (k + k0)`, where half of
    k0 hides behind the tile before. With fewer tiles than multiprocessors the inner side is split.

    >>> sides, inner = array([8192, 8192, 256]), array([8192, 64, 8192])
    >>> [round(float(each), 2) for each in shape_share(sides, sides, inner, array(108), array(160))]
    [0.99, 0.43, 0.41]
    """
    dimensions = max(np.ndim(each) for each in (rows, columns, inner, multiprocessors, short_inner))
    tall, wide, rate = (array(side).reshape(-1, *(1,) * dimensions) for side in zip(*TILES, strict=True))
    tiles = np.ceil(rows / tall) * np.ceil(columns / wide)
    longest = np.maximum(1.0, np.floor(inner / LONGEST_SPLIT))
    split = np.minimum(np.maximum(np.floor(multiprocessors / tiles), 1.0), longest)
    spread = tiles * split
    waves = np.ceil(spread / multiprocessors)
    used = rows * columns * split / (multiprocessors * waves * tall * wide)
    depth = inner / split
    filled = depth / (depth + short_inner * (OVERLAPPED_FILL + (1 - OVERLAPPED_FILL) / waves))
    best = (used * rate * filled * np.where(split > 1, SPLIT_SHARE, 1.0)).max(axis=0)
    share = np.minimum(best, 1.0)
    share = np.where(
        multiprocessors > 1, share, np.minimum(1.0, rows / (np.ceil(rows / 128) * 128)) * inner / (inner + short_inner)
    )
    return array(share)
