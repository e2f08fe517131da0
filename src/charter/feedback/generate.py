"""Makes text with a model: answers to prompts, or new prompts in the manner of given ones.

New prompts come by few-shot continuation (red teaming: Bai et al. 2022, section 3.2; Perez et al. 2022): the model is
shown some of the given prompts, drawn anew for each, as a numbered list, and writes the next entry. What is no usable
prompt is drawn again a bounded number of times, then set aside with its reason.
"""

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from charter.artifacts.draws import draw_seed, permuted
from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Prompt, Turn
from charter.feedback.answering import open_answerer
from charter.feedback.asking import LONGEST_TEXT, Sample, Text, sample_of, text_facts
from charter.feedback.inputs import prompt_batches, role_prompts
from charter.feedback.records import BatchResult, Making, in_batches, make_records
from charter.spec.stage import GenerateStage

ASKED = "Here are {count} messages that people sent to an assistant, one on each line."
ASKED_FOR = "Write message {next}: a new one in the same manner, about something else. Write nothing but the message."

_NUMBER = re.compile(r"\s*\d{1,6}\s*[.):]\s*")
_NEXT_ENTRY = re.compile(r"\n\s*\d{1,6}\s*[.):]\s")
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u00ab": "\u00bb"}


@dataclass(frozen=True)
class Unusable:
    """Reason why a reply holds no new prompt."""

    reason: str


def asked_turns(shown: Sequence[str]) -> tuple[Turn, ...]:
    """The question for one more prompt after those shown, each on a line of its own."""
    lines = "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(shown, start=1))
    head, end = ASKED.format(count=len(shown)), ASKED_FOR.format(next=len(shown) + 1)
    return (Turn("user", f"{head}\n\n{lines}\n\n{end}"),)


def opening(shown: Sequence[str]) -> str:
    """Return the beginning of the reply, where it can be given: the number of the next entry."""
    return f"{len(shown) + 1}."


def comparable(text: str) -> str:
    """A prompt as it is compared with others: without case, spacing and punctuation at the ends.

    >>> comparable("  How ARE  you?") == comparable("how are you")
    True
    """
    return " ".join(text.split()).strip(" .!?\"'").casefold()


def new_prompt(text: str, known: Container[str], *, is_finished: bool) -> str | Unusable:
    """The prompt that a reply holds: its first entry, without number and quotes.

    >>> new_prompt("3. How do kites fly?\\n4. Why is tea hot?", (), is_finished=False)
    'How do kites fly?'
    >>> new_prompt('"Why is tea hot?"', {"why is tea hot"}, is_finished=True)
    Unusable(reason='a given prompt')
    """
    rest = _NUMBER.sub("", text, count=1) if _NUMBER.match(text) else text
    entry, *more = _NEXT_ENTRY.split(rest, maxsplit=1)
    entry = entry.strip()
    if len(entry) > 1 and _QUOTES.get(entry[0]) == entry[-1]:
        entry = entry[1:-1].strip()
    if not entry:
        return Unusable("empty")
    if not is_finished and not more:
        return Unusable("cut off")
    if "\n\n" in entry:
        return Unusable("more than a message")
    return Unusable("a given prompt") if comparable(entry) in known else entry


ATTEMPTS = 4
"""Draws of one new prompt, before it is set aside."""
EMPTY, REFUSED = "empty answer", "refused"
REASON = "set_aside/"
"""How the counts by reason begin."""


@dataclass(frozen=True, kw_only=True)
class AnswerMaker:
    """Answers to prompts, as conversations."""

    job: Job
    spec: GenerateStage

    def make(self, prompts: Sequence[Prompt]) -> Making[BatchResult]:
        """Every answer to the prompts of one batch, those to one prompt side by side."""
        numbers = range(1, self.spec.answers_per_prompt + 1)
        wanted = [(prompt, number) for prompt in prompts for number in numbers]
        replies = yield [self._ask(*item) for item in wanted]
        answers = [(*item, reply) for item, reply in zip(wanted, replies, strict=True) if isinstance(reply, Text)]
        return _batch(
            [self._record(*item) for item in answers if item[2].text],
            [_set_aside(_id(prompt, number), EMPTY, reply) for prompt, number, reply in answers if not reply.text],
            tokens=sum(reply.tokens for _, _, reply in answers),
        )

    def _ask(self, prompt: Prompt, number: int) -> Sample:
        seed = draw_seed(self.job.seed, self.job.stage, prompt.id, "answer", number)
        return sample_of(self.spec, "policy", prompt.turns, seed=seed)

    def _record(self, prompt: Prompt, number: int, reply: Text) -> dict[str, Any]:
        turns = (*prompt.turns, Turn("assistant", reply.text))
        return {
            "id": _id(prompt, number),
            "messages": [{"role": turn.role, "content": turn.content} for turn in turns],
            "prompt_id": prompt.id,
            "answer": number,
            **text_facts(self.job, "policy", reply),
        }


def _id(prompt: Prompt, number: int) -> str:
    return f"{prompt.id}/answer-{number}"


@dataclass(frozen=True, kw_only=True)
class PromptItem:
    """One new prompt to be made."""

    id: str


class PromptMaker:
    """New prompts in the manner of given ones."""

    def __init__(self, job: Job, spec: GenerateStage, given: Sequence[Prompt]) -> None:
        self._job, self._spec, self._given = job, spec, given
        self._known = frozenset(comparable(prompt.turns[-1].content) for prompt in given)

    def make(self, items: Sequence[PromptItem]) -> Making[BatchResult]:
        """The new prompts of one batch; those that are unusable are drawn again, after other examples."""
        records: dict[str, dict[str, Any]] = {}
        unusable: dict[str, dict[str, Any]] = {}
        tokens, unanswered = 0, list(items)
        for attempt in range(ATTEMPTS):
            if not unanswered:
                break
            shown = [self._shown(item, attempt) for item in unanswered]
            replies = yield [
                self._ask(item, examples, attempt) for item, examples in zip(unanswered, shown, strict=True)
            ]
            for item, examples, reply in zip(unanswered, shown, replies, strict=True):
                assert isinstance(reply, Text)
                tokens += reply.tokens
                prompt = new_prompt(reply.text, self._known, is_finished=reply.is_finished)
                if isinstance(prompt, Unusable):
                    unusable[item.id] = _set_aside(item.id, prompt.reason, reply)
                else:
                    records[item.id] = self._record(item, prompt, examples, reply)
            unanswered = [item for item in unanswered if item.id not in records]
        return _batch(
            [records[item.id] for item in items if item.id in records],
            [unusable[item.id] for item in unanswered],
            tokens=tokens,
        )

    def _shown(self, item: PromptItem, attempt: int) -> list[Prompt]:
        """The given prompts that a new one is written after, none of them twice."""
        seed = draw_seed(self._job.seed, self._job.stage, item.id, "shown", attempt)
        count = len(self._given)
        return [self._given[permuted(place, count, seed=seed)] for place in range(min(self._spec.few_shot, count))]

    def _ask(self, item: PromptItem, shown: Sequence[Prompt], attempt: int) -> Sample:
        texts = [prompt.turns[-1].content for prompt in shown]
        seed = draw_seed(self._job.seed, self._job.stage, item.id, "prompt", attempt)
        return replace(sample_of(self._spec, "policy", asked_turns(texts), seed=seed), prefill=opening(texts))

    def _record(self, item: PromptItem, text: str, shown: Sequence[Prompt], reply: Text) -> dict[str, Any]:
        return {
            "id": item.id,
            "prompt": [{"role": "user", "content": text}],
            "shown": [prompt.id for prompt in shown],
            **text_facts(self._job, "policy", reply),
        }


def _set_aside(id: str, reason: str, reply: Text) -> dict[str, Any]:
    """Return the stored part of an unusable reply: enough to see why it is unusable."""
    return {
        "reason": REFUSED if reply.refusal else reason,
        "id": id,
        "text": (reply.refusal or reply.text)[:LONGEST_TEXT],
    }


def _batch(records: Sequence[dict[str, Any]], set_aside: Sequence[dict[str, Any]], *, tokens: int) -> BatchResult:
    reasons = Counter(REASON + str(row["reason"]) for row in set_aside)
    totals = {"finished": sum(bool(row["finished"]) for row in records), **reasons}
    return BatchResult(records=records, set_aside=set_aside, totals=totals, tokens=tokens)


def summary(totals: Mapping[str, float]) -> dict[str, float]:
    """Return the reported figures of the batches so far."""
    records = max(totals["records"], 1)
    counts = {name: value for name, value in sorted(totals.items()) if name.startswith(REASON)}
    return {
        "finished_share": totals["finished"] / records,
        "mean_tokens": totals["generated_tokens"] / records,
        **counts,
    }


def run(stage: StageDir) -> None:
    """Make the records of a generate stage."""
    job, spec = stage.job, stage.job.spec_as(GenerateStage)
    with open_answerer(stage, ("policy",)) as answerer:
        if spec.makes == "answers":
            size = max(1, spec.rollout_batch // spec.answers_per_prompt)
            answers = prompt_batches(job, "prompts", size=size, limit=spec.num_prompts)
            make_records(stage, answers, AnswerMaker(job=job, spec=spec).make, answerer, summarise=summary)
            return
        prompts = [PromptItem(id=f"{job.stage}-{number:06d}") for number in range(1, (spec.num_prompts or 0) + 1)]
        maker = PromptMaker(job, spec, role_prompts(job, "prompts", limit=None))
        make_records(stage, in_batches(prompts, spec.rollout_batch), maker.make, answerer, summarise=summary)


if __name__ == "__main__":
    stage_main(run)
