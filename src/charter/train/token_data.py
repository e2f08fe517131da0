"""What stages train on, as tokens: conversations row by row, or plain texts end to end. B rows, T tokens of a row."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_rows import each_stage_row
from charter.errors import DataError
from charter.models.chat import Encoded, encode_conversations, encode_texts
from charter.models.ranks import Ranks
from charter.spec.data_row import SkippedRows
from charter.spec.dataset import Conversation, each_conversation, each_text
from charter.train.token_cache import TokenRows, cached_tokens

CHUNK_ROWS = 1024
"""Rows that are tokenised together."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class TokenStream:
    """All texts end to end, cut into rows of `seq_len` tokens; the last, incomplete row is left out."""

    tokens: TokenRows
    seq_len: int

    def __len__(self) -> int:
        return len(self.tokens.ids) // self.seq_len

    def __getitem__(self, rows: Sequence[int]) -> Tensor:
        found_BT = np.empty((len(rows), self.seq_len), np.int64)
        for place, row in enumerate(rows):
            found_BT[place] = self._row(row)
        return torch.from_numpy(found_BT)

    @property
    def skipped(self) -> SkippedRows:
        """Rows of the data that could not be read."""
        return self.tokens.skipped

    def _row(self, row: int) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.tokens.ids[row * self.seq_len : (row + 1) * self.seq_len]


def text_stream(stage: StageDir, tokenizer: Any, *, seq_len: int, ranks: Ranks, role: str = "data") -> TokenStream:
    """The texts of a role as rows of `seq_len` tokens, with the end-of-text token after each."""

    def make(skipped: SkippedRows) -> Iterator[list[Encoded]]:
        for chunk in _chunks(each_stage_row(stage.job, role, each_text, skipped)):
            yield _encoded_texts(tokenizer, chunk)

    found = cached_tokens(stage, ranks, role=role, tokenizer=tokenizer, how={"rows": "texts"}, make=make)
    stream = TokenStream(found, seq_len)
    if not len(stream):
        raise DataError(f"the data has {len(found.ids)} tokens, fewer than one row of seq_len {seq_len}; lower seq_len")
    return stream


def conversation_rows(stage: StageDir, tokenizer: Any, *, seq_len: int, ranks: Ranks, role: str = "data") -> TokenRows:
    """The conversations of a role, cut at `seq_len` tokens; those without an answer to learn are left out."""

    def make(skipped: SkippedRows) -> Iterator[list[Encoded]]:
        for chunk in _chunks(each_stage_row(stage.job, role, each_conversation, skipped)):
            encoded = encode_conversations(tokenizer, [item.turns for item in chunk], max_tokens=seq_len)
            yield [row for row in encoded if any(row.is_answer)]

    how: dict[str, str | int] = {"rows": "conversations", "max_tokens": seq_len}
    found = cached_tokens(stage, ranks, role=role, tokenizer=tokenizer, how=how, make=make)
    if not len(found):
        raise DataError("no conversation with an assistant turn in the stage's data; the loss would count nothing")
    return found


def _encoded_texts(tokenizer: Any, conversations: Sequence[Conversation]) -> list[Encoded]:
    texts = [
        tokenizer.apply_chat_template(
            [{"role": turn.role, "content": turn.content} for turn in conversation.turns], tokenize=False
        )
        for conversation in conversations
    ]
    end = [tokenizer.eos_token_id]
    return [Encoded(tuple(ids if ids[-1:] == end else ids + end), ()) for ids in encode_texts(tokenizer, texts)]


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    waiting = iter(items)
    while chunk := list(itertools.islice(waiting, CHUNK_ROWS)):
        yield chunk
