"""Samples of what models said, for people to read: answers, critiques with revisions, comparisons with verdicts.

Files of stages are read as they lie there, line by line and up to a bound, so that a page of a large run costs what a
page of a small one does. Nothing here is a figure: figures with their intervals are the evaluation's.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from charter.artifacts.durable import object_in
from charter.artifacts.sample_prompts import ROLLOUTS_FILE, SAMPLES_FILE, SampleNote, read_notes

RECORDS = Path("outputs") / "records.jsonl"
MOST_BYTES = 32 * 1024**2
"""Read of one stage for one question."""
MOST_TEXT = 20_000
COMPARED_TEXT = 2_000
"""Characters of an answer that decide how much it has changed."""
Order = Literal["", "changed", "longest", "shortest", "highest", "lowest"]
"""As the files have them; or of the last answer: how much it differs from the first, its length, its reward."""
ORDERS: tuple[Order, ...] = ("changed", "longest", "shortest", "highest", "lowest")
SCORE = "score"
"""Name of the weighted sum of all rewards of an answer."""


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """A stage that may have samples."""

    stage: str
    kind: str
    directory: Path


@dataclass(frozen=True, kw_only=True)
class SampleText:
    """One text of a sample: who said it, and whether it was preferred or turned down."""

    label: str
    text: str
    tone: str = ""
    """`chosen`, `rejected` or nothing."""

    @property
    def words(self) -> str:
        """The label as people read it: figures, too, say `model before` of what an evaluation calls `against`."""
        return "model before" if self.label == "against" else self.label


@dataclass(frozen=True, kw_only=True)
class ShownSample:
    """One prompt with what was said to it."""

    stage: str
    id: str
    prompt: str
    """The last turn before the answers."""
    parts: tuple[SampleText, ...]
    principle: str = ""
    probability: float | None = None
    """That the judge gives to the answer that it prefers."""
    agreed: bool | None = None
    """Both orders gave the same verdict; None where they were not compared."""
    step: int | None = None
    """Of the last part, where a model in training answered; the parts then are its answers by step."""
    note: SampleNote | None = None
    """What a reader has remarked."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Of an answer in a rollout: its score, and each reward of a list; None where that failed or does not apply."""

    @property
    def change(self) -> float:
        """Share of words by which the last answer differs from the first; 0 where there is one alone.

        >>> parts = (SampleText(label="step 1", text="a b c d"), SampleText(label="step 2", text="a b c e"))
        >>> ShownSample(stage="sft", id="1", prompt="?", parts=parts).change
        0.25
        """
        first, last = (part.text[:COMPARED_TEXT].split() for part in (self.parts[0], self.parts[-1]))
        return 1 - difflib.SequenceMatcher(None, first, last, autojunk=False).ratio()

    @property
    def facts(self) -> tuple[str, ...]:
        """Return what is known of it beside its texts, in words.

        >>> parts = (SampleText(label="chosen", text="Yes"),)
        >>> ShownSample(stage="label", id="1", prompt="?", parts=parts, principle="kind", probability=0.961).facts
        ('principle kind', 'preferred with 96 %')
        """
        rewards = (f"{name} {'none' if value is None else f'{value:.3g}'}" for name, value in self.rewards.items())
        facts = (
            f"principle {self.principle}" if self.principle else "",
            "" if self.probability is None else f"preferred with {100 * self.probability:.0f} %",
            "the two orders disagree" if self.agreed is False else "",
            *rewards,
        )
        return tuple(fact for fact in facts if fact)

    @property
    def length(self) -> int:
        """Characters of the last answer."""
        return len(self.parts[-1].text)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "stage": self.stage,
            "id": self.id,
            "prompt": self.prompt,
            "parts": [{"label": part.label, "text": part.text, "tone": part.tone or None} for part in self.parts],
            "principle": self.principle or None,
            "probability": self.probability,
            "orders_agree": self.agreed,
            "step": self.step,
            "rewards": dict(self.rewards) or None,
            "flagged": self.note is not None and self.note.flagged,
            "note": self.note.note if self.note is not None else "",
        }


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """Filter and order of the samples that are shown; what is empty does not choose."""

    stage: str = ""
    text: str = ""
    principle: str = ""
    disagreeing: bool = False
    """Comparisons whose two orders gave different verdicts, and answers of models that differ."""
    order: Order = ""
    flagged: bool = False
    """Only what a reader has flagged."""
    reward: str = ""
    """Only answers that this reward, or `score`, was given to; it also decides the orders `highest` and `lowest`."""
    at_least: float | None = None
    """Of that reward; of the score without one."""
    at_most: float | None = None

    def takes(self, sample: ShownSample) -> bool:
        """Return True for a sample that is wanted.

        >>> sample = ShownSample(stage="label", id="1", prompt="Hi", parts=(SampleText(label="chosen", text="Hello"),))
        >>> SampleFilter(text="HELLO").takes(sample), SampleFilter(disagreeing=True).takes(sample)
        (True, False)
        """
        if self.principle and sample.principle != self.principle:
            return False
        if self.disagreeing and not _disagrees(sample):
            return False
        if self.flagged and not (sample.note is not None and sample.note.flagged):
            return False
        if (self.reward or self.at_least is not None or self.at_most is not None) and not self._rewarded(sample):
            return False
        needle = self.text.casefold()
        return not needle or any(needle in text.casefold() for text in (sample.prompt, *(p.text for p in sample.parts)))

    def _rewarded(self, sample: ShownSample) -> bool:
        value = sample.rewards.get(self.reward or SCORE)
        low, high = self.at_least, self.at_most
        return value is not None and (low is None or value >= low) and (high is None or value <= high)

    def ordered(self, samples: Iterable[ShownSample]) -> list[ShownSample]:
        """Return samples in the order that is wanted; without a reward they come last.

        >>> def answered(score):
        ...     parts = (SampleText(label="step 1", text="a"),)
        ...     return ShownSample(stage="ppo", id="1", prompt="?", parts=parts, rewards={"score": score})
        >>> wanted = SampleFilter(order="highest", at_least=0.0)
        >>> [sample.rewards["score"] for sample in wanted.ordered(map(answered, (1.0, None, 2.0)))]
        [2.0, 1.0, None]
        """
        if self.order in ("highest", "lowest"):
            sign = -1 if self.order == "highest" else 1
            values = [(sample.rewards.get(self.reward or SCORE), sample) for sample in samples]
            return [sample for value, sample in sorted(values, key=lambda item: _placed(item[0], sign))]
        return sorted(samples, key=_ORDER[self.order]) if self.order else list(samples)


def _placed(value: float | None, sign: int) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value


@dataclass(frozen=True, kw_only=True)
class SampleList:
    """Samples, and whether all files were read to their ends."""

    samples: tuple[ShownSample, ...]
    principles: tuple[str, ...]
    """Of all that was read, in alphabetical order."""
    is_complete: bool
    rewards: tuple[str, ...] = ()
    """Names of the rewards of all that was read."""


MOST_ORDERED = 2_000
"""Samples that are put into an order: the first that are wanted."""
_ORDER: Mapping[str, Callable[[ShownSample], float]] = {
    "changed": lambda sample: -sample.change,
    "longest": lambda sample: -sample.length,
    "shortest": lambda sample: sample.length,
}


def side_by_side(
    lists: Sequence[tuple[str, Iterable[SampleSource]]], wanted: SampleFilter, *, limit: int
) -> SampleList:
    """Return one sample for each prompt that models in training answered, with the last answer of every stage.

    Each of `lists` is a run with its sources; its name stands before its stages where there are several.
    """
    rows: dict[tuple[str, str], list[ShownSample]] = {}
    is_complete = True
    for run, sources in lists:
        for source in sources:
            listed = find_samples([source], SampleFilter(), limit=MOST_ORDERED)
            is_complete = is_complete and listed.is_complete
            for sample in listed.samples:
                if sample.step is not None and not sample.rewards:
                    name = f"{run}: {sample.stage}" if len(lists) > 1 else sample.stage
                    rows.setdefault((sample.id, sample.prompt), []).append(replace(sample, stage=name))
    merged = [
        replace(
            samples[0],
            stage="",
            parts=tuple(
                SampleText(label=f"{sample.stage}, {sample.parts[-1].label}", text=sample.parts[-1].text)
                for sample in samples
            ),
        )
        for samples in rows.values()
    ]
    chosen = wanted.ordered(sample for sample in merged if wanted.takes(sample))
    return SampleList(samples=tuple(chosen[:limit]), principles=(), is_complete=is_complete and len(chosen) <= limit)


def find_samples(sources: Iterable[SampleSource], wanted: SampleFilter, *, limit: int) -> SampleList:
    """Return the first samples that are wanted, from the evaluations first, then from each stage in its order."""
    ordered = sorted(sources, key=lambda source: source.kind != "eval")
    if wanted.order:
        everything = find_samples(ordered, replace(wanted, order=""), limit=MOST_ORDERED)
        samples = wanted.ordered(everything.samples)
        is_complete = everything.is_complete and len(samples) <= limit
        return replace(everything, samples=tuple(samples[:limit]), is_complete=is_complete)
    samples = []
    principles: set[str] = set()
    rewards: dict[str, None] = {}
    is_complete = True
    notes: dict[Path, dict[str, SampleNote]] = {}
    for source in ordered:
        if wanted.stage and source.stage != wanted.stage:
            continue
        for sample in _read(source):
            if sample is None:
                is_complete = False
                break
            run = source.directory.parent.parent
            if run not in notes:
                notes[run] = read_notes(run)
            sample = replace(sample, note=notes[run].get(sample.id))
            principles.add(sample.principle)
            rewards |= dict.fromkeys(sample.rewards)
            if len(samples) < limit and wanted.takes(sample):
                samples.append(sample)
            elif len(samples) >= limit:
                is_complete = False
                break
    return SampleList(
        samples=tuple(samples),
        principles=tuple(sorted(principles - {""})),
        is_complete=is_complete,
        rewards=tuple(rewards),
    )


def has_samples(source: SampleSource) -> bool:
    """Return True if a stage has written something that people can read."""
    return any((source.directory / name).is_file() for name in (SAMPLES_FILE, ROLLOUTS_FILE, RECORDS))


def _disagrees(sample: ShownSample) -> bool:
    if sample.agreed is not None:
        return not sample.agreed
    answers = {part.text for part in sample.parts if part.label != "critique"}
    return sample.principle == "" and len(answers) > 1


def _read(source: SampleSource) -> Iterator[ShownSample | None]:
    """Yield the samples of a stage; None at the end where the bound cut it off."""
    for name in (SAMPLES_FILE, ROLLOUTS_FILE, RECORDS):
        path = source.directory / name
        by_prompt: dict[str, dict[int, ShownSample]] = {}
        cut_off = False
        try:
            with path.open("rb") as file:
                while line := file.readline(MOST_BYTES):
                    sample = _sample(source.stage, line)
                    if sample is not None and sample.step is not None:
                        # A resumed stage answers again at a step that it had lost: the later line counts.
                        by_prompt.setdefault(sample.id, {})[sample.step] = sample
                    elif sample is not None:
                        yield sample
                    if cut_off := file.tell() > MOST_BYTES:
                        break
        except OSError:
            continue
        for steps in by_prompt.values():
            last = steps[max(steps)]
            yield replace(last, parts=tuple(part for step in sorted(steps) for part in steps[step].parts))
        if cut_off:
            yield None


def _sample(stage: str, line: bytes) -> ShownSample | None:
    """A line as a sample; None for one that holds no answer, or is torn."""
    if (row := object_in(line)) is None:
        return None
    step = row.get("step") if "answer" in row and isinstance(row.get("step"), int) else None
    parts = _parts(row) if step is None else (SampleText(label=f"step {step:,}", text=_clean(row["answer"])),)
    if not parts:
        return None
    orders, probability = row.get("both_orders"), row.get("chosen_probability")
    return ShownSample(
        stage=stage,
        id=str(row.get("id", "")),
        prompt=_prompt(row),
        parts=parts,
        principle=str(row.get("principle") or ""),
        probability=float(probability) if isinstance(probability, int | float) else None,
        agreed=bool(orders["agree"]) if isinstance(orders, dict) and "agree" in orders else None,
        step=step,
        rewards={} if step is None else _rewards(row),
    )


def _rewards(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The score of an answer and the rewards that it is the sum of; nothing for one that was not rewarded."""
    if "score" not in row:
        return {}
    given = row.get("rewards")
    values = {SCORE: row["score"], **(given if isinstance(given, dict) else {})}
    numbers = {str(name): value for name, value in values.items() if value is None or isinstance(value, int | float)}
    return {name: None if value is None else float(value) for name, value in numbers.items()}


def _parts(row: Mapping[str, Any]) -> tuple[SampleText, ...]:
    if isinstance(row.get("answers"), dict):
        return tuple(SampleText(label=str(role), text=_clean(text)) for role, text in row["answers"].items())
    if "revision_response" in row:
        labels = {"init_response": "answer", "critic_response": "critique", "revision_response": "revision"}
        return tuple(SampleText(label=label, text=_clean(row.get(name))) for name, label in labels.items())
    if "chosen" in row and "rejected" in row:
        return tuple(SampleText(label=name, text=_last(row[name]), tone=name) for name in ("chosen", "rejected"))
    messages = row.get("messages")
    if isinstance(messages, list) and messages and _role(messages[-1]) == "assistant":
        return (SampleText(label="answer", text=_last(messages)),)
    return ()


def _prompt(row: Mapping[str, Any]) -> str:
    if "init_prompt" in row:
        return _clean(row["init_prompt"])
    messages = row.get("prompt") or row.get("messages") or ""
    if isinstance(messages, list) and "prompt" not in row:
        messages = messages[:-1]
    return _last(messages)


def _last(value: Any) -> str:
    """The text of the last turn."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[-1]
    return _clean(value.get("content") if isinstance(value, Mapping) else value)


def _role(value: Any) -> str:
    return str(value.get("role")) if isinstance(value, Mapping) else ""


def _clean(value: Any) -> str:
    """A text that a terminal and a page can print: no control characters, no halves of characters."""
    text = ("" if value is None else str(value))[:MOST_TEXT].encode("utf-8", "replace").decode("utf-8")
    unprintable = "\N{REPLACEMENT CHARACTER}"
    return "".join(letter if letter in "\n\t" or letter.isprintable() else unprintable for letter in text)
