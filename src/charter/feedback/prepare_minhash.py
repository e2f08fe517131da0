"""MinHash signatures (the datasketch library), a byte per permutation, and the bands that bring rows together.

The library's own index holds some 400 bytes per row and band, several gigabytes for a million rows; a signature of
bytes and four bytes per band hold the same in 200 (b-bit MinHash: Li and König 2010, "b-Bit Minwise Hashing", WWW).
"""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.errors import MissingExtraError
from charter.feedback.prepare_words import Hashes, chained

PERMUTATIONS = 128
"""The estimate of a similarity s has a standard error of sqrt(s (1 - s) / 128): 0.035 at 0.8."""
LEAST_RECALL = 0.95
"""Share of the pairs exactly at the threshold that share a band, and so are looked at."""
_SEED = 1
_LOW_BYTE = np.uint32(0xFF)
_CHANCE = 1 / 256
"""How often two bytes agree by chance."""


@dataclass(frozen=True)
class Sketcher:
    """Makes signatures for one threshold; what it makes depends on the row and the threshold alone."""

    threshold: float

    @cached_property
    def band_rows(self) -> int:
        """Permutations of a band: as many as leave `LEAST_RECALL` at the threshold, so that few pairs are looked at.

        A pair of similarity s shares one of b bands of r with probability 1 - (1 - s**r)**b (Leskovec, Rajaraman and
        Ullman, "Mining of Massive Datasets", section 3.4.2).
        """
        return max(r for r in range(1, PERMUTATIONS + 1) if r == 1 or _recall(self.threshold, r) >= LEAST_RECALL)

    @property
    def bands(self) -> int:
        """How many bands there are."""
        return PERMUTATIONS // self.band_rows

    def sketch(self, runs: Hashes) -> tuple[NDArray[np.uint8], Hashes]:
        """The signature of a set of runs, a byte per permutation, and the hash of each of its bands."""
        values = self._library.MinHash(
            seed=_SEED, scheme="affine32", hashfunc=int, permutations=self._permutations, num_perm=PERMUTATIONS
        )
        values.update_batch((runs >> np.uint64(32)).tolist())
        found: NDArray[np.uint32] = values.hashvalues
        columns = found[: self.bands * self.band_rows].reshape(self.bands, self.band_rows).T
        return (found & _LOW_BYTE).astype(np.uint8), chained(columns.astype(np.uint64))

    @cached_property
    def _library(self) -> Any:
        check_library()
        import datasketch

        return datasketch

    @cached_property
    def _permutations(self) -> Any:
        return self._library.MinHash(num_perm=PERMUTATIONS, seed=_SEED, scheme="affine32").permutations


def similarities(one: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The estimated Jaccard similarity of one signature with each of several, less what bytes agree by chance."""
    agreeing = (others == one).mean(axis=1)
    estimated: NDArray[np.float64] = np.maximum(0.0, (agreeing - _CHANCE) / (1 - _CHANCE))
    return estimated


def check_library() -> None:
    """Raise when the library that makes signatures is not installed."""
    if find_spec("datasketch") is None:
        raise MissingExtraError(
            "finding near duplicates needs datasketch: pip install datasketch "
            "(or set near_duplicates: null; exact duplicates are found without it)"
        )


def _recall(similarity: float, band_rows: int) -> float:
    return 1 - float((1 - similarity**band_rows) ** (PERMUTATIONS // band_rows))
