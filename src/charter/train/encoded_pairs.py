"""Preference pairs as tokens: for a preference model, encoded when first read, and kept; for DPO."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from charter.data.dataset import Pair
from charter.inference.score import encode_scored
from charter.models.chat import encode_answer, encode_prompt
from charter.models.preference import PreferenceModel
from charter.spec.stage import DpoStage

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class EncodedPair:
    """Token ids that a preference model reads of a pair, first the chosen answer, then the other."""

    ids: tuple[Ids, Ids]
    answer_tokens: tuple[int, int]
    """How many of the ids, at their end, are the answer."""
    chosen_probability: float
    margin: float


class EncodedPairs(Sequence[EncodedPair]):
    """The pairs of a stage as tokens, 4 bytes each.

    They are encoded where they are read and not all in advance, so that a resumed stage steps on at once; a second
    epoch, and the statistics after training, find them encoded.
    """

    def __init__(self, model: PreferenceModel, pairs: Sequence[Pair]) -> None:
        self._model, self._pairs = model, pairs
        self._found: list[EncodedPair | None] = [None] * len(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        encoded = self._found[index]
        if encoded is None:
            encoded = self._found[index] = encode_pair(self._model, self._pairs[index])
        return encoded

    def __iter__(self) -> Iterator[EncodedPair]:
        return (self[row] for row in range(len(self)))


def encode_pair(model: PreferenceModel, pair: Pair) -> EncodedPair:
    """A pair as the model reads it, within its `seq_len`."""
    limit = int(model.settings["seq_len"])
    chosen, rejected = (
        encode_scored(model, pair.prompt, answer, max_tokens=limit) for answer in (pair.chosen, pair.rejected)
    )
    return EncodedPair(
        (np.array(chosen[0], np.int32), np.array(rejected[0], np.int32)),
        (chosen[1], rejected[1]),
        pair.chosen_probability,
        pair.margin,
    )


@dataclass(frozen=True)
class EncodedDpoPair:
    """The tokens of a pair: one prompt, two answers, and how probable it is that the first is the better one."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    chosen_probability: float


def encode_dpo_pair(tokenizer: Any, pair: Pair, *, max_tokens: int) -> EncodedDpoPair:
    """A pair as tokens; both answers follow the very same prompt, so what is cut of it is cut for both."""
    longest = max(1, int(max_tokens * DpoStage.ANSWER_SHARE))
    chosen, rejected = (
        encode_answer(tokenizer, pair.prompt, answer, max_tokens=longest) for answer in (pair.chosen, pair.rejected)
    )
    room = max(1, max_tokens - max(len(chosen), len(rejected)))
    prompt = encode_prompt(tokenizer, pair.prompt, max_tokens=room)
    return EncodedDpoPair(tuple(prompt), tuple(chosen), tuple(rejected), pair.chosen_probability)
