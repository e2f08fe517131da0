"""Samples of what models said, for people to read: answers, critiques with revisions, comparisons with verdicts.

Files of stages are read as they lie there, line by line and up to a bound, so that a page of a large run costs what a
page of a small one does. Nothing here is a figure: figures with their intervals are the evaluation's.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from charter.artifacts.sample_prompts import SAMPLES_FILE, SampleNote, read_notes
from charter.errors import loads_json

RECORDS = Path("outputs") / "records.jsonl"
MOST_BYTES = 32 * 1024**2
"""Read of one stage for one question."""
MOST_TEXT = 20_000
COMPARED_TEXT = 2_000
"""Characters of an answer that decide how much it has changed."""
Order = Literal["", "changed", "longest", "shortest"]
"""As the files have them; or by how much the last answer differs from the first, or by the length of the last."""
ORDERS: tuple[Order, ...] = ("changed", "longest", "shortest")


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
        needle = self.text.casefold()
        return not needle or any(needle in text.casefold() for text in (sample.prompt, *(p.text for p in sample.parts)))


@dataclass(frozen=True, kw_only=True)
class SampleList:
    """Samples, and whether all files were read to their ends."""

    samples: tuple[ShownSample, ...]
    principles: tuple[str, ...]
    """Of all that was read, in alphabetical order."""
    is_complete: bool


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
                if sample.step is not None:
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
    chosen = [sample for sample in merged if wanted.takes(sample)]
    if wanted.order:
        chosen.sort(key=_ORDER[wanted.order])
    return SampleList(samples=tuple(chosen[:limit]), principles=(), is_complete=is_complete and len(chosen) <= limit)


def find_samples(sources: Iterable[SampleSource], wanted: SampleFilter, *, limit: int) -> SampleList:
    """Return the first samples that are wanted, from the evaluations first, then from each stage in its order."""
    ordered = sorted(sources, key=lambda source: source.kind != "eval")
    if wanted.order:
        everything = find_samples(ordered, replace(wanted, order=""), limit=MOST_ORDERED)
        samples = sorted(everything.samples, key=_ORDER[wanted.order])
        is_complete = everything.is_complete and len(samples) <= limit
        return replace(everything, samples=tuple(samples[:limit]), is_complete=is_complete)
    samples = []
    principles: set[str] = set()
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
            if len(samples) < limit and wanted.takes(sample):
                samples.append(sample)
            elif len(samples) >= limit:
                is_complete = False
                break
    return SampleList(samples=tuple(samples), principles=tuple(sorted(principles - {""})), is_complete=is_complete)


def has_samples(source: SampleSource) -> bool:
    """Return True if a stage has written something that people can read."""
    return any((source.directory / name).is_file() for name in (SAMPLES_FILE, RECORDS))


def _disagrees(sample: ShownSample) -> bool:
    if sample.agreed is not None:
        return not sample.agreed
    answers = {part.text for part in sample.parts if part.label != "critique"}
    return sample.principle == "" and len(answers) > 1


def _read(source: SampleSource) -> Iterator[ShownSample | None]:
    """Yield the samples of a stage; None at the end where the bound cut it off."""
    for name in (SAMPLES_FILE, RECORDS):
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
    try:
        row = loads_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
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
    )


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
