"""Which rows are kept: the part of the work that depends on the order of the rows, done on hashes alone.

A row is a duplicate of an earlier row that was kept, never of one that was itself rejected, so that a chain of rows,
each a little different from the one before, does not shrink to its first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.feedback.prepare_digest import EMPTY, OVERLAP, TOO_LONG, TOO_SHORT
from charter.feedback.prepare_minhash import PERMUTATIONS, Sketcher, similarities
from charter.feedback.prepare_words import Hashes

KEPT = ""
DUPLICATE, NEAR_DUPLICATE, BEYOND_MAX_ROWS = "duplicate", "near_duplicate", "beyond_max_rows"
REASONS = (KEPT, EMPTY, TOO_SHORT, TOO_LONG, OVERLAP, DUPLICATE, NEAR_DUPLICATE, BEYOND_MAX_ROWS)
"""In the order in which they are asked; a row has the first that applies."""
ROWS_BETWEEN_SIGNS = 10_000
"""Rows that are decided about in some 0.1 s."""
_ALONE = 0xFFFFFFFF
"""Beyond the number of any group: a row that shares this band with no other."""


@dataclass(frozen=True)
class Decisions:
    """One entry per row, in order."""

    reasons: NDArray[np.uint8]
    """Index into `REASONS`."""
    others: NDArray[np.uint32]
    """What it collided with: an evaluation row for `overlap`, an earlier row for duplicates."""
    similarity: NDArray[np.float32]
    characters: NDArray[np.uint32]

    def reason(self, row: int) -> str:
        """Why a row is rejected, `KEPT` when it is not."""
        return REASONS[self.reasons[row]]


def decide(
    digests: Iterable[Mapping[str, Any]],
    count: int,
    *,
    sketcher: Sketcher | None,
    max_rows: int | None,
    tell: Callable[[], None] = lambda: None,
) -> Decisions:
    """Go through the digests of all rows in order; some 250 bytes per row are held.

    `tell` is called now and then, as a sign of life.
    """
    made = Decisions(
        np.zeros(count, np.uint8), np.zeros(count, np.uint32), np.zeros(count, np.float32), np.zeros(count, np.uint32)
    )
    exact = np.zeros((count, 2), np.uint64)
    near = _Near(count, sketcher) if sketcher is not None else None
    for row, digest in enumerate(digests):
        made.characters[row] = digest["characters"]
        made.reasons[row] = REASONS.index(digest.get("reason", KEPT))
        made.others[row] = digest.get("other", 0)
        if "exact" in digest:
            exact[row] = np.frombuffer(bytes.fromhex(digest["exact"]), "<u8")
        if near is not None and "bands" in digest:
            near.put(row, digest)
    if near is not None:
        near.group()
    tell()
    _Order(made, exact, near, max_rows).go(tell)
    return made


class _Order:
    """The one pass in which every row is measured against those kept so far."""

    def __init__(self, made: Decisions, exact: Hashes, near: "_Near | None", max_rows: int | None) -> None:
        self._made, self._exact, self._near, self._max_rows = made, exact, near, max_rows
        self._repeated = _repeated(exact)
        self._first: dict[bytes, int] = {}
        self._kept = 0

    def go(self, tell: Callable[[], None]) -> None:
        for row in np.flatnonzero(self._made.reasons == REASONS.index(KEPT)).tolist():
            if row % ROWS_BETWEEN_SIGNS == 0:
                tell()
            self._decide(row)

    def _decide(self, row: int) -> None:
        key = self._exact[row].tobytes() if self._repeated[row] else b""
        if (first := self._first.get(key)) is not None:
            self._reject(row, DUPLICATE, first, 1.0)
        elif self._near is not None and (found := self._near.alike(row)) is not None:
            self._reject(row, NEAR_DUPLICATE, *found)
        elif self._max_rows is not None and self._kept >= self._max_rows:
            self._reject(row, BEYOND_MAX_ROWS, 0, 0.0)
        else:
            self._kept += 1
            if key:
                self._first[key] = row
            if self._near is not None:
                self._near.keep(row)

    def _reject(self, row: int, reason: str, other: int, similarity: float) -> None:
        self._made.reasons[row] = REASONS.index(reason)
        self._made.others[row] = other
        self._made.similarity[row] = similarity


def _repeated(exact: Hashes) -> NDArray[np.bool_]:
    """Which rows have a key that another one has; those without any key have zeros, and are none."""
    order = np.lexsort((exact[:, 1], exact[:, 0]))
    ordered = exact[order]
    same = (ordered[1:] == ordered[:-1]).all(axis=1) & ordered[1:].any(axis=1)
    found = np.zeros(len(exact), bool)
    found[order[1:][same]] = True
    found[order[:-1][same]] = True
    return found


class _Near:
    """Signatures of all rows, and which rows share a band with another.

    32 bits of a band's hash are enough: rows that share them by chance, some hundred pairs in a million rows, are told
    apart by their signatures.
    """

    def __init__(self, count: int, sketcher: Sketcher) -> None:
        self._threshold = sketcher.threshold
        self._signatures = np.zeros((count, PERMUTATIONS), np.uint8)
        self._bands = np.zeros((sketcher.bands, count), np.uint32)
        """The hash of each band; after `group` the number of the group that shares it, or `_ALONE`."""
        self._present = np.zeros(count, bool)
        self._shares = np.zeros(count, bool)
        self._kept: dict[tuple[int, int], list[int]] = {}

    def put(self, row: int, digest: Mapping[str, Any]) -> None:
        self._signatures[row] = np.frombuffer(bytes.fromhex(digest["signature"]), np.uint8)
        self._bands[:, row] = np.frombuffer(bytes.fromhex(digest["bands"]), "<u8") >> np.uint64(32)
        self._present[row] = True

    def group(self) -> None:
        """Number the bands that several rows share, in the place of their hashes."""
        rows = np.flatnonzero(self._present)
        for band in self._bands:
            _, numbers, sizes = np.unique(band[rows], return_inverse=True, return_counts=True)
            shared = sizes[numbers] > 1
            band[:] = _ALONE
            band[rows[shared]] = numbers[shared]
            self._shares[rows[shared]] = True

    def alike(self, row: int) -> tuple[int, float] | None:
        """The kept row that is most alike (of equals the first) and how much, where it reaches the threshold."""
        if not self._shares[row]:
            return None
        candidates = sorted({other for group in self._groups_of(row) for other in self._kept.get(group, ())})
        if not candidates:
            return None
        found = similarities(self._signatures[row], self._signatures[candidates])
        best = int(found.argmax())
        return (candidates[best], float(found[best])) if found[best] >= self._threshold else None

    def keep(self, row: int) -> None:
        if self._shares[row]:
            for group in self._groups_of(row):
                self._kept.setdefault(group, []).append(row)

    def _groups_of(self, row: int) -> Sequence[tuple[int, int]]:
        return [(band, number) for band, number in enumerate(self._bands[:, row].tolist()) if number != _ALONE]
