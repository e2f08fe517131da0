"""Prompts in batches; of very many none is held: the data files are read anew each time the batches are gone through.

What is then kept is 8 bytes per prompt while ids are compared, and the few ids that occur more than once.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from charter.artifacts.job import Job
from charter.artifacts.stage_rows import each_stage_row
from charter.errors import DataError
from charter.spec.data_row import SkippedRows
from charter.spec.dataset import Prompt, each_prompt

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
        seen: Counter[str] = Counter()
        rows = each_stage_row(self.job, self.role, each_prompt, SkippedRows()) if self.held is None else self.held
        for prompt in islice(rows, self.count):
            if prompt.id in self.repeated:
                seen[prompt.id] += 1
                prompt = prompt if seen[prompt.id] == 1 else replace(prompt, id=f"{prompt.id}#{seen[prompt.id]}")
            yield prompt


def prompt_batches(job: Job, role: str, *, size: int, limit: int | None) -> PromptBatches:
    """Look through the prompts of a role once; a shortage is said in the stage's log, none at all is refused.

    A shortage is no error: late in a pipeline that would cost more than it saves, and every result states its count.
    """
    skipped, words = SkippedRows(), array("Q")
    held: list[Prompt] = []
    for prompt in each_stage_row(job, role, each_prompt, skipped):
        words.append(_word(prompt.id))
        if len(words) <= HELD:
            held.append(prompt)
    if len(words) > HELD:
        held.clear()
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
        held=tuple(held) or None,
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
