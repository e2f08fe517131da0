"""The tokens of a stage's data: made once, kept in its directory, verified before every use, mapped into memory.

One flat little-endian array of token ids with the offset of every row, so that any row is found in O(1). The
directory is named by all that decides the tokens; rank 0 makes it, or verifies the one that is there.
"""

import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charter.artifacts import durable
from charter.artifacts.file_facts import files_under, sha256_file
from charter.artifacts.fingerprint import fingerprint
from charter.artifacts.heartbeat import START
from charter.artifacts.job import JobInput
from charter.artifacts.sealed import read_sealed, sealed_text
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import MANIFEST, publish_dir
from charter.errors import DataError
from charter.models.chat import Encoded
from charter.models.ranks import Ranks
from charter.spec.data_row import SkippedRows

SCHEMA = "charter.tokens/1"
TOKENS, OFFSETS, ANSWERS = "tokens.bin", "offsets.bin", "answers.bin"
Chunks = Callable[[SkippedRows], Iterable[list[Encoded]]]
"""Makes the rows, some at a time, and counts the bad ones; called only when the cache must be made."""


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
        found: list[int] = np.diff(self.offsets).tolist()
        return found


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
    found = _open(_path(stage, key))
    for line in found.skipped.lines() if ranks.is_first else ():
        print(line, file=sys.stderr)
    return found


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
    """What stands for the rows of an input: of a data set its fingerprint, of a stage's records their hash."""
    found = item.fingerprint if item.source == "data" else sha256_file(item.location())
    return [found, item.data]


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over all files that the tokenizer saves: vocabulary, merges, special tokens, chat template."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        found = [(name, sha256_file(Path(folder) / name)) for name in files_under(Path(folder))]
    return hashlib.sha256(repr(found).encode()).hexdigest()


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
    """What is wrong with a cache, in words; None when every byte is as it was written."""
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
