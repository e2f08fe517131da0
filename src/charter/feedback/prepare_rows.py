"""The rows that a prepare stage looks at: what is written of each, and the texts that it is compared by."""

import functools
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.artifacts.job import JobInput
from charter.data.dataset import Turn, each_conversation, each_row
from charter.data.rows import (
    BadRowError,
    Row,
    SkippedRows,
    conversation_of,
    json_line,
    pair_of,
    prompt_of,
    row_kind,
    text_of,
)
from charter.errors import DataError, MissingExtraError, how_to_install

_TEXT_FIELDS = ("prompt", "chosen", "rejected", "completion", "text", "messages", "question")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row before it is known whether it is kept."""

    id: str
    line: str
    """The row as it is written, unchanged, as JSON."""
    prompt: str
    """Every turn before the answers; of plain text all of it."""
    answers: tuple[str, ...]
    opening: str
    """The first turn of the user, by which other conversations may begin too."""
    empty: bool = False
    """One of its texts is missing or blank; it has then no other text here."""

    @property
    def characters(self) -> int:
        """Characters of all its texts."""
        return len(self.prompt) + sum(map(len, self.answers))

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts that two rows are compared by, side by side: of a pair its answers apart from the prompt.

        Other rows are compared as one text.
        """
        return (self.prompt, *self.answers) if len(self.answers) > 1 else ("\n".join((self.prompt, *self.answers)),)


def each_candidate(item: JobInput, skipped: SkippedRows) -> Iterator[Candidate]:
    """The rows of one data set, or of another stage's records, as a stream.

    Where the data set says which answer of a pair counts (`column`), the conversation with that answer is the row.
    """
    path = item.location()
    if item.data is not None and item.data.column is not None:
        for conversation in each_conversation(path, item.data, skipped):
            messages = [{"role": turn.role, "content": turn.content} for turn in conversation.turns]
            line = json.dumps({"id": conversation.id, "messages": messages}, ensure_ascii=False, allow_nan=False)
            yield _of_turns(conversation.id, line, conversation.turns)
    else:
        yield from each_row(path, item.data, skipped, lambda row: [candidate_of(row)])


def count_candidates(item: JobInput) -> int:
    """Count the rows to look at; a row that cannot be read is an error here already."""
    count = sum(1 for _ in each_candidate(item, SkippedRows()))
    if not count:
        raise DataError(f"{item.location()} holds no rows; there is nothing to prepare")
    return count


def candidate_of(row: Row) -> Candidate:
    """A row with the texts that it is judged by; one with a blank text is `empty`, any other fault is a bad row."""
    line = json_line(row, row.value)
    try:
        return _read(row, line)
    except BadRowError:
        if not _has_blank_text(row.value):
            raise
        return Candidate(row.id, line, "", (), "", empty=True)


def _read(row: Row, line: str) -> Candidate:
    match row_kind(row):
        case "pair":
            prompt, chosen, rejected = pair_of(row)
            return Candidate(row.id, line, _joined(prompt), (chosen, rejected), _opening(prompt))
        case "prompt" | "question":
            return _of_turns(row.id, line, prompt_of(row))
        case "text":
            return _of_turns(row.id, line, text_of(row))
        case "messages" if not _has_assistant(row.value["messages"]):
            return _of_turns(row.id, line, prompt_of(row))
    return _of_turns(row.id, line, conversation_of(row))


def _of_turns(id: str, line: str, turns: tuple[Turn, ...]) -> Candidate:
    answered = turns[-1].role == "assistant"
    before = turns[:-1] if answered else turns
    return Candidate(id, line, _joined(before), (turns[-1].content,) if answered else (), _opening(turns))


def _joined(turns: tuple[Turn, ...]) -> str:
    return "\n".join(turn.content for turn in turns)


def _opening(turns: tuple[Turn, ...]) -> str:
    return next((turn.content for turn in turns if turn.role == "user"), turns[0].content if turns else "")


def _has_assistant(value: Any) -> bool:
    turns = value if isinstance(value, list) else []
    return any(isinstance(turn, dict) and turn.get("role") == "assistant" for turn in turns)


def _has_blank_text(value: dict[str, Any]) -> bool:
    """Return True if one of the texts of a row, or of its turns, is missing or blank."""
    for name in _TEXT_FIELDS:
        content = value.get(name, ...)
        turns = content if isinstance(content, list) else [{"content": content}]
        texts = [turn.get("content") for turn in turns if isinstance(turn, dict)]
        if content == [] or any(text is None or (isinstance(text, str) and not text.strip()) for text in texts):
            return True
    return False


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
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return np.fromiter(map(_word_hash, words), dtype=np.uint64, count=len(words))


def runs_of(words: Hashes, length: int, *, part: int = 0) -> Hashes:
    """The hash of every run of `length` words; fewer words are one run. Runs of different `part`s never meet.

    >>> words = words_of("a b c a b c")
    >>> len(set(runs_of(words, 3).tolist())), len(runs_of(words[:2], 3)), len(runs_of(words[:0], 3))
    (3, 1, 0)
    """
    if not len(words):
        return words
    width = min(length, len(words))
    count = len(words) - width + 1
    return chained([words[place : place + count] for place in range(width)], part=part)


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
        """Number of bands."""
        return PERMUTATIONS // self.band_rows

    def sketch(self, runs: Hashes) -> tuple[NDArray[np.uint8], Hashes]:
        """The signature of a set of runs, a byte per permutation, and the hash of each of its bands."""
        values = self._library.MinHash(
            seed=_SEED, scheme="affine32", hashfunc=int, permutations=self._permutations, num_perm=PERMUTATIONS
        )
        values.update_batch((runs >> np.uint64(32)).tolist())
        hashes: NDArray[np.uint32] = values.hashvalues
        columns = hashes[: self.bands * self.band_rows].reshape(self.bands, self.band_rows).T
        return (hashes & _LOW_BYTE).astype(np.uint8), chained(columns.astype(np.uint64))

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
            f"finding near duplicates needs datasketch: {how_to_install('data')} "
            "(or set near_duplicates: null; exact duplicates are found without it)"
        )


def _recall(similarity: float, band_rows: int) -> float:
    return 1 - float((1 - similarity**band_rows) ** (PERMUTATIONS // band_rows))
