"""Texts as hashes of their runs of words: what rows are compared by, and all that is held of them.

A word is a run of letters, digits or underscores, or one character of a script that is written without spaces; case,
width and punctuation do not count. A run of n words is one 64-bit number, so that two texts share a run of words where
they share a number (that any two of a thousand million different runs do so has a probability of 3 %, the birthday
bound).
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

RUN_WORDS = 5
"""Words of a run for near duplicates: Lee et al. 2022 (arXiv:2107.06499, appendix A) compare 5-grams."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, kana and Han (Unicode 16, blocks): scripts that put no space between words."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2**64 over the golden ratio, odd: the increment of SplitMix64 (Steele, Lea and Flood 2014)."""
_FOLD = np.uint64(29)
"""Brings the high bits, which a product mixes best, down to where the next word is added; odd and below a half."""
_FINALIZER = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
"""Shifts and multipliers of SplitMix64's finalizer, variant 13."""
_WORDS_REMEMBERED = 1 << 17
"""A vocabulary of usual words: some 20 MB."""


def evened(text: str) -> str:
    """A text with case, width and spacing evened out.

    >>> evened("  Hello,\\n\\tWORLD ")
    'hello, world'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> Hashes:
    """The hash of every word of a text, in order."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return np.fromiter(map(_word_hash, found), dtype=np.uint64, count=len(found))


def runs_of(words: Hashes, length: int, *, part: int = 0) -> Hashes:
    """The hash of every run of `length` words; fewer words are one run. Runs of different `part`s never meet.

    >>> words = words_of("a b c a b c")
    >>> len(set(runs_of(words, 3).tolist())), len(runs_of(words[:2], 3)), len(runs_of(words[:0], 3))
    (3, 1, 0)
    """
    if not len(words):
        return words
    taken = min(length, len(words))
    count = len(words) - taken + 1
    return chained([words[place : place + count] for place in range(taken)], part=part)


def chained(columns: Sequence[Hashes] | Hashes, *, part: int = 0) -> Hashes:
    """One hash of each row of a table that is given by its columns, in order."""
    mixed = np.full(len(columns[0]), (part << 32) + len(columns), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * _FACTOR
        mixed ^= mixed >> _FOLD
    for shift, factor in _FINALIZER:
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> np.uint64(31))


def runs_of_parts(parts: Sequence[Hashes]) -> Hashes:
    """The runs of all parts of a row as a set, given the words of each: by these near duplicates are told."""
    return np.unique(np.concatenate([runs_of(words, RUN_WORDS, part=number) for number, words in enumerate(parts)]))


def exact_key(parts: Sequence[str]) -> bytes:
    """128 bits that two rows share where all their parts are the same but for case, width and spacing."""
    digest = hashlib.blake2b(digest_size=16)
    for text in map(evened, parts):
        content = text.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.digest()


@functools.lru_cache(maxsize=_WORDS_REMEMBERED)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
