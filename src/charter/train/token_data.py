"""Tokens that stages train on: conversations row by row, or plain texts end to end. B rows, T tokens of a row."""

import hashlib
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charter.artifacts import durable
from charter.artifacts.fingerprint import files_under, fingerprint, sha256_file
from charter.artifacts.group import START
from charter.artifacts.job import JobInput, each_stage_row
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import MANIFEST, publish_dir, read_sealed, sealed_text
from charter.data.dataset import each_conversation, each_text
from charter.data.rows import SkippedRows
from charter.errors import DataError
from charter.models.chat import Encoded, encode_conversations, encode_documents
from charter.models.ranks import Ranks

SCHEMA = "charter.tokens/1"
TOKENS, OFFSETS, ANSWERS = "tokens.bin", "offsets.bin", "answers.bin"
Chunks = Callable[[SkippedRows], Iterable[list[Encoded]]]
"""Makes the rows, some at a time, and counts the bad ones; called only when the cache must be made."""


def collate(rows: Sequence[Encoded], *, padding: int) -> tuple[Tensor, Tensor]:
    """Ids and counted tokens, padded at the right to the longest row."""
    width = max(len(row.ids) for row in rows)
    ids_BT = torch.full((len(rows), width), padding, dtype=torch.long)
    counted_BT = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row.ids)] = torch.as_tensor(row.ids, dtype=torch.long)
        counted_BT[index, : len(row.ids)] = torch.as_tensor(row.is_answer, dtype=torch.bool)
    return ids_BT, counted_BT


@dataclass(frozen=True)
class TokenRows:
    """Rows of token ids on disk; `rows[i]` reads one."""

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[np.uint64]
    """Where each row begins in `ids`, and the end of the last."""
    answers: npt.NDArray[np.uint8]
    """For each id whether it belongs to an answer; empty where the rows are plain text."""
    skipped: SkippedRows = field(default_factory=SkippedRows)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Encoded:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        part = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        marks = map(bool, self.answers[part].tolist()) if len(self.answers) else ()
        return Encoded(tuple(self.ids[part].tolist()), tuple(marks))

    def lengths(self) -> list[int]:
        """Tokens of each row."""
        lengths: list[int] = np.diff(self.offsets).tolist()
        return lengths


def cached_tokens(
    stage: StageDir, ranks: Ranks, *, role: str, tokenizer: Any, how: Mapping[str, str | int], make: Chunks
) -> TokenRows:
    """The rows that `make` makes of a role's data, from the cache where it has them; to be called by every rank.

    `how` says what `make` does beside reading and tokenising (the kind of rows, where they are cut): it is part of
    the key, with the content of the data, the tokenizer, its template and the format of these files.
    """
    key = None
    if ranks.is_first:
        key = _key(stage.job.inputs.get(role, ()), tokenizer, how)
        path = _path(stage, key)
        if path.exists() and (wrong := _damage(path, key)) is not None:
            aside = durable.move_aside(path, "damaged")
            print(f"token cache {path.name} is damaged ({wrong}); kept as {aside.name}, made again", file=sys.stderr)
        if not path.exists():
            _build(stage, ranks, path, key, make, wide=len(tokenizer) > 1 << 16)
        ranks.from_first(key)
    while key is None:
        stage.beat(START)
        key = ranks.from_first(None)
    tokens = _open(_path(stage, key))
    for line in tokens.skipped.lines() if ranks.is_first else ():
        print(line, file=sys.stderr)
    return tokens


def _path(stage: StageDir, key: str) -> Path:
    return stage.path / f"tokens-{key[:16]}"


def _key(items: Iterable[JobInput], tokenizer: Any, how: Mapping[str, str | int]) -> str:
    return fingerprint(
        {
            "schema": SCHEMA,
            "data": [_content(item) for item in items],
            "tokenizer": tokenizer_hash(tokenizer),
            "tokenizers": version("tokenizers"),
            "how": dict(how),
        }
    )


def _content(item: JobInput) -> list[Any]:
    """Return the identity of an input's rows: of a data set its fingerprint, of a stage's records their hash."""
    identity = item.fingerprint if item.source == "data" else sha256_file(item.location())
    return [identity, item.data]


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over all files that the tokenizer saves: vocabulary, merges, special tokens, chat template."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        hashes = [(name, sha256_file(Path(folder) / name)) for name in files_under(Path(folder))]
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


def _build(stage: StageDir, ranks: Ranks, path: Path, key: str, make: Chunks, *, wide: bool) -> None:
    """Write the rows as they are made; after every chunk the other ranks hear that there is more to wait for."""
    skipped = SkippedRows()
    kind = "<u4" if wide else "<u2"

    def write(directory: Path) -> None:
        end, offsets = 0, [np.zeros(1, "<u8")]
        with (
            (directory / TOKENS).open("wb") as tokens,
            (directory / ANSWERS).open("wb") as answers,
        ):
            for chunk in make(skipped):
                stage.beat(START)
                ranks.from_first(None)
                for row in chunk:
                    tokens.write(np.array(row.ids, kind).tobytes())
                    answers.write(bytes(row.is_answer))
                ends = end + np.cumsum([len(row.ids) for row in chunk], dtype="<u8")
                offsets.append(ends)
                end = int(ends[-1]) if len(ends) else end
        (directory / OFFSETS).write_bytes(np.concatenate(offsets).astype("<u8").tobytes())

    publish_dir(
        path,
        write,
        manifest=lambda files: sealed_text(
            {
                "schema": SCHEMA,
                "key": key,
                "kind": kind,
                "skipped": asdict(skipped),
                "files": {name: asdict(fact) for name, fact in files.items()},
            }
        ),
    )


def _damage(path: Path, key: str) -> str | None:
    """Return the damage of a cache in words; None when every byte is as it was written."""
    try:
        manifest = read_sealed(path / MANIFEST)
    except DataError as error:
        return str(error)
    if manifest.get("schema") != SCHEMA or manifest.get("key") != key:
        return "its manifest is of another cache"
    for name, fact in manifest["files"].items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != fact["bytes"] or sha256_file(file) != fact["sha256"]:
            return f"{name} does not have its recorded size and sha256"
    return None


def _open(path: Path) -> TokenRows:
    manifest = read_sealed(path / MANIFEST)
    return TokenRows(
        ids=_mapped(path / TOKENS, manifest["kind"]),
        offsets=_mapped(path / OFFSETS, "<u8"),
        answers=_mapped(path / ANSWERS, "u1"),
        skipped=SkippedRows(**manifest["skipped"]),
    )


def _mapped(path: Path, kind: str) -> npt.NDArray[Any]:
    """A file as an array that is read where it is needed; an empty file cannot be mapped."""
    return np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.zeros(0, kind)


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


def text_stream(stage: StageDir, tokenizer: Any, *, seq_len: int, ranks: Ranks) -> TokenStream:
    """The texts of the stage as rows of `seq_len` tokens, with the end-of-text token after each."""

    def make(skipped: SkippedRows) -> Iterator[list[Encoded]]:
        for chunk in _chunks(each_stage_row(stage.job, "data", each_text, skipped)):
            documents = encode_documents(tokenizer, [item.turns for item in chunk])
            yield [Encoded(tuple(ids), ()) for ids in documents]

    tokens = cached_tokens(stage, ranks, role="data", tokenizer=tokenizer, how={"rows": "documents"}, make=make)
    stream = TokenStream(tokens, seq_len)
    if not len(stream):
        raise DataError(
            f"the data has {len(tokens.ids)} tokens, fewer than one row of seq_len {seq_len}; lower seq_len"
        )
    return stream


def conversation_rows(stage: StageDir, tokenizer: Any, *, seq_len: int, ranks: Ranks, role: str = "data") -> TokenRows:
    """The conversations of a role, cut at `seq_len` tokens; those without an answer to learn are left out."""

    def make(skipped: SkippedRows) -> Iterator[list[Encoded]]:
        for chunk in _chunks(each_stage_row(stage.job, role, each_conversation, skipped)):
            encoded = encode_conversations(tokenizer, [item.turns for item in chunk], max_tokens=seq_len)
            yield [row for row in encoded if any(row.is_answer)]

    how: dict[str, str | int] = {"rows": "conversations", "max_tokens": seq_len}
    tokens = cached_tokens(stage, ranks, role=role, tokenizer=tokenizer, how=how, make=make)
    if not len(tokens):
        raise DataError("no conversation with an assistant turn in the stage's data; the loss would count nothing")
    return tokens


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    waiting = iter(items)
    while chunk := list(itertools.islice(waiting, CHUNK_ROWS)):
        yield chunk
