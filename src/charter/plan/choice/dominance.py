"""Rows of figures that no other row beats."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 256


def undominated(figures: NDArray[np.float64], groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows, in order, for which no other row of the same group is as low in every figure; of equal rows the first.

    `figures` and `groups` have one row per candidate; rows are compared only where all their groups agree.

    >>> undominated(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0]]), np.zeros((4, 1), dtype=np.intp))
    array([0, 1])
    """
    if len(figures) < 2:
        return np.arange(len(figures))
    if groups.shape[1] == 0:
        return np.sort(_front(figures, np.arange(len(figures))))
    _, label = np.unique(groups, axis=0, return_inverse=True)
    label = label.reshape(-1)
    fronts = [_front(figures, np.flatnonzero(label == group)) for group in range(int(label.max()) + 1)]
    return np.sort(np.concatenate(fronts))


def _front(figures: NDArray[np.float64], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    table = figures[rows]
    varying = table[:, np.ptp(table, axis=0) > 0]
    if varying.shape[1] == 0:
        return rows[:1]
    order = np.lexsort((np.arange(len(rows)), *varying.T[::-1]))
    table = varying[order]
    if table.shape[1] <= 2:
        return rows[order[_staircase(table[:, -1], table[:, 0])]]
    blocks: list[NDArray[np.intp]] = []
    archive = table[:0]
    for low in range(0, len(table), BLOCK):
        block = np.arange(low, min(low + BLOCK, len(table)))
        if len(archive):
            beaten = np.logical_or.reduce(np.logical_and.reduce(archive[None] <= table[block][:, None], axis=2), axis=1)
            block = block[~beaten]
        beats = np.logical_and.reduce(table[block][None] <= table[block][:, None], axis=2)
        block = block[~np.logical_or.reduce(np.tril(beats, -1), axis=1)]
        blocks.append(block)
        archive = np.concatenate([archive, table[block]])
    return rows[order[np.concatenate(blocks)]]


def _staircase(second: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.intp]:
    """Of rows sorted by the first figure, those whose second is lower than all before."""
    if second is first or np.array_equal(second, first):
        return np.arange(1)
    before = np.concatenate([[np.inf], np.minimum.accumulate(second)[:-1]])
    return np.flatnonzero(second < before)
