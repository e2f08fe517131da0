"""Inputs of a stage by role: models, prompts and pairs, from data files or from other stages' outputs."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from charter.artifacts.job import Job, JobInput, Reader, each_stage_row, stage_rows
from charter.data.dataset import Conversation, Pair, Prompt, each_prompt, read_critiques, read_pairs, read_prompts
from charter.data.rows import SkippedRows
from charter.errors import DataError
from charter.feedback.constitution import Constitution, load_constitution

if TYPE_CHECKING:
    import torch

    from charter.models.language_model import LanguageModel
    from charter.models.preference import PreferenceModel


_Row = TypeVar("_Row", Prompt, Pair, Conversation)


def load_role(job: Job, role: str, device: "torch.device") -> "LanguageModel":
    """The language model of a role, on the device."""
    from charter.models.language_model import answering_dtype, load_language_model

    loaded = load_language_model(job.only(role).location(), dtype=answering_dtype(device))
    loaded.model.to(device).eval()
    return loaded


def load_scorer(item: JobInput, device: "torch.device") -> "PreferenceModel":
    """A preference model, on the device."""
    from charter.models.preference import load_preference_model

    loaded = load_preference_model(item.location())
    loaded.scalar.to(device).eval()
    return loaded


def role_constitution(job: Job) -> Constitution:
    """The project's constitution; a stage that needs one and has none is refused."""
    if job.constitution is None:
        raise DataError(
            f"stage {job.stage} needs a constitution: add `constitution: constitution.yaml` to charter.yaml; "
            "`charter init` writes an example"
        )
    return load_constitution(Path(job.constitution))


def role_prompts(job: Job, role: str, *, limit: int | None) -> tuple[Prompt, ...]:
    """The prompts of a role in file order, at most `limit` of them; a shortage is said in the stage's log.

    It is no error: late in a pipeline that would cost more than it saves, and every result states its own count.
    """
    prompts = _rows(job, role, read_prompts)
    if limit is not None and len(prompts) < limit:
        print(f"{job.stage}: {limit} {role} were asked for, {len(prompts)} are there; all of them are used", flush=True)
    return with_unique_ids(prompts[:limit])


def role_pairs(job: Job, role: str) -> tuple[Pair, ...]:
    """The preference pairs of a role in file order."""
    return with_unique_ids(_rows(job, role, read_pairs))


def role_critiques(job: Job, role: str) -> tuple[Conversation, ...]:
    """The worked critiques of a role in file order, as conversations of six turns."""
    return with_unique_ids(_rows(job, role, read_critiques))


def with_unique_ids(rows: Sequence[_Row]) -> tuple[_Row, ...]:
    """Rows with ids made unique by a counter: every draw hangs on the id, so no two rows may share one."""
    copies: dict[str, int] = {}
    unique: list[_Row] = []
    for row in rows:
        copies[row.id] = copies.get(row.id, 0) + 1
        unique.append(row if copies[row.id] == 1 else replace(row, id=f"{row.id}#{copies[row.id]}"))
    return tuple(unique)


def _rows(job: Job, role: str, read: Reader[_Row]) -> list[_Row]:
    rows, skipped = stage_rows(job, role, read)
    for line in skipped.lines():
        print(line, flush=True)
    if not rows:
        raise DataError(f"stage {job.stage} needs `{role}`; name a data set or a stage that makes one")
    return rows


HELD = 150_000
"""Up to so many prompts are kept in memory (about 1 kB each, so 150 MB), and a resume reads the files once."""


@dataclass(frozen=True, kw_only=True)
class PromptBatches:
    """The prompts of a role in file order, at most `limit` of them, in batches of a fixed size; ids are unique."""

    job: Job
    role: str
    size: int
    count: int
    """Prompts in all."""
    repeated: frozenset[str]
    """Ids that occur more than once: from the second time on they get a number."""
    held: tuple[Prompt, ...] | None = None
    """All of them as they were read, where there are few enough."""

    def __len__(self) -> int:
        return (self.count + self.size - 1) // self.size

    def __iter__(self) -> Iterator[Sequence[Prompt]]:
        batch: list[Prompt] = []
        for prompt in self.prompts():
            batch.append(prompt)
            if len(batch) == self.size:
                yield batch
                batch = []
        if batch:
            yield batch

    def prompts(self) -> Iterator[Prompt]:
        """One after the other."""
        copies: Counter[str] = Counter()
        rows = each_stage_row(self.job, self.role, each_prompt, SkippedRows()) if self.held is None else self.held
        for prompt in islice(rows, self.count):
            if prompt.id in self.repeated:
                copies[prompt.id] += 1
                prompt = prompt if copies[prompt.id] == 1 else replace(prompt, id=f"{prompt.id}#{copies[prompt.id]}")
            yield prompt


def prompt_batches(job: Job, role: str, *, size: int, limit: int | None) -> PromptBatches:
    """Look through the prompts of a role once; a shortage is said in the stage's log, none at all is refused.

    A shortage is no error: late in a pipeline that would cost more than it saves, and every result states its count.
    """
    skipped, words = SkippedRows(), array("Q")
    pending: list[Prompt] = []
    for prompt in each_stage_row(job, role, each_prompt, skipped):
        words.append(_word(prompt.id))
        if len(words) <= HELD:
            pending.append(prompt)
    if len(words) > HELD:
        pending.clear()
    for line in skipped.lines():
        print(line, flush=True)
    if not words:
        raise DataError(f"stage {job.stage} needs `{role}`; name a data set or a stage that makes one")
    if limit is not None and len(words) < limit:
        print(f"{job.stage}: {limit} {role} were asked for, {len(words)} are there; all of them are used", flush=True)
    return PromptBatches(
        job=job,
        role=role,
        size=size,
        count=min(len(words), limit or len(words)),
        repeated=_repeated(job, role, words),
        held=tuple(pending) or None,
    )


def _repeated(job: Job, role: str, words: "array[int]") -> frozenset[str]:
    """The ids that occur more than once; hashes that occur once cannot be among them, so few ids are compared."""
    ordered = np.sort(np.frombuffer(words, dtype=np.uint64))
    suspects = {int(word) for word in ordered[1:][ordered[1:] == ordered[:-1]]}
    if not suspects:
        return frozenset()
    counted = Counter(
        prompt.id for prompt in each_stage_row(job, role, each_prompt, SkippedRows()) if _word(prompt.id) in suspects
    )
    return frozenset(name for name, count in counted.items() if count > 1)


def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
