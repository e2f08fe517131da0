"""The pairs that a label stage works on: given ones, and ones to be sampled, in fixed batches that are never mixed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from charter.artifacts.job import Job
from charter.errors import DataError
from charter.feedback.inputs import role_pairs
from charter.feedback.records import in_batches
from charter.feedback.streamed import PromptBatches, prompt_batches
from charter.spec.dataset import Turn
from charter.spec.stage import LabelStage


@dataclass(frozen=True, kw_only=True)
class Item:
    """A pair to be labelled; without answers yet, when the policy is to give them."""

    id: str
    turns: tuple[Turn, ...]
    answers: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class LabelBatches:
    """Candidates first, then pairs to be sampled; the prompts of these are read anew each time."""

    candidates: Sequence[Item]
    prompts: PromptBatches | None
    pairs: int
    size: int

    def __iter__(self) -> Iterator[Sequence[Item]]:
        yield from in_batches(self.candidates, self.size)
        if self.prompts is not None:
            items = islice(sampled_items(self.prompts), self.pairs)
            while batch := tuple(islice(items, self.size)):
                yield batch


def sampled_items(prompts: PromptBatches) -> Iterator[Item]:
    """Pairs to be sampled, without end: prompts in file order, taken round again with new draws when they run out."""
    for turn in count(1):
        for prompt in prompts.prompts():
            yield Item(id=f"{prompt.id}/pair-{turn}", turns=prompt.turns)


def label_batches(job: Job, spec: LabelStage) -> LabelBatches:
    """What a stage is to label; nothing at all, and pairs that would be the same answer twice, are refused."""
    candidates: list[Item] = []
    if job.inputs.get("candidates"):
        pairs = role_pairs(job, "candidates")
        candidates = [Item(id=pair.id, turns=pair.prompt, answers=(pair.chosen, pair.rejected)) for pair in pairs]
    if not candidates and not spec.pairs:
        raise DataError(f"stage {job.stage} has nothing to label: give `candidates`, or `pairs` with `policy`")
    if spec.pairs and spec.temperature == 0:
        raise DataError(f"stage {job.stage}: at temperature 0 both answers of a pair are the same; raise temperature")
    prompts = prompt_batches(job, "prompts", size=spec.rollout_batch, limit=None) if spec.pairs else None
    return LabelBatches(candidates=candidates, prompts=prompts, pairs=spec.pairs, size=spec.rollout_batch)
