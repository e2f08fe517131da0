"""Samples of what models said, for people to read: answers, critiques with revisions, comparisons with verdicts.

Files of stages are read as they lie there, line by line and up to a bound, so that a page of a large run costs what a
page of a small one does. Nothing here is a figure: figures with their intervals are the evaluation's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.evaluate.outcome import SAMPLES_FILE

RECORDS = Path("outputs") / "records.jsonl"
MOST_BYTES = 32 * 1024**2
"""Read of one stage for one question."""
MOST_TEXT = 20_000


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """A stage that may have samples."""

    stage: str
    kind: str
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Part:
    """One text of a sample: who said it, and whether it was preferred or turned down."""

    label: str
    text: str
    tone: str = ""
    """`chosen`, `rejected` or nothing."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt with what was said to it."""

    stage: str
    id: str
    prompt: str
    """The last turn before the answers."""
    parts: tuple[Part, ...]
    principle: str = ""
    probability: float | None = None
    """That the judge gives to the answer that it prefers."""
    agreed: bool | None = None
    """Both orders gave the same verdict; None where they were not compared."""

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
        }


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Filter of samples; an empty field does not filter."""

    stage: str = ""
    text: str = ""
    principle: str = ""
    disagreeing: bool = False
    """Comparisons whose two orders gave different verdicts, and answers of models that differ."""

    def takes(self, sample: Sample) -> bool:
        """Return True for a sample that is wanted.

        >>> sample = Sample(stage="label", id="1", prompt="Hi", parts=(Part(label="chosen", text="Hello"),))
        >>> Wanted(text="HELLO").takes(sample), Wanted(disagreeing=True).takes(sample)
        (True, False)
        """
        if self.principle and sample.principle != self.principle:
            return False
        if self.disagreeing and not _disagrees(sample):
            return False
        needle = self.text.casefold()
        return not needle or any(needle in text.casefold() for text in (sample.prompt, *(p.text for p in sample.parts)))


@dataclass(frozen=True, kw_only=True)
class SampleList:
    """Samples, and whether all files were read to their ends."""

    samples: tuple[Sample, ...]
    principles: tuple[str, ...]
    """Of all that was read, in alphabetical order."""
    is_complete: bool


def find_samples(sources: Iterable[SampleSource], wanted: Wanted, *, limit: int) -> SampleList:
    """Return the first samples that are wanted, from the evaluations first, then from each stage in its order."""
    ordered = sorted(sources, key=lambda source: source.kind != "eval")
    samples: list[Sample] = []
    principles: set[str] = set()
    is_complete = True
    for source in ordered:
        if wanted.stage and source.stage != wanted.stage:
            continue
        for sample in _read(source):
            if sample is None:
                is_complete = False
                break
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


def _disagrees(sample: Sample) -> bool:
    if sample.agreed is not None:
        return not sample.agreed
    answers = {part.text for part in sample.parts if part.label != "critique"}
    return sample.principle == "" and len(answers) > 1


def _read(source: SampleSource) -> Iterator[Sample | None]:
    """Yield the samples of a stage; None at the end where the bound cut it off."""
    for name in (SAMPLES_FILE, RECORDS):
        path = source.directory / name
        try:
            with path.open("rb") as file:
                while line := file.readline(MOST_BYTES):
                    sample = _sample(source.stage, line)
                    if sample is not None:
                        yield sample
                    if file.tell() > MOST_BYTES:
                        yield None
                        break
        except OSError:
            continue


def _sample(stage: str, line: bytes) -> Sample | None:
    """A line as a sample; None for one that holds no answer, or is torn."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    parts = _parts(row)
    if not parts:
        return None
    orders, probability = row.get("both_orders"), row.get("chosen_probability")
    return Sample(
        stage=stage,
        id=str(row.get("id", "")),
        prompt=_prompt(row),
        parts=parts,
        principle=str(row.get("principle") or ""),
        probability=float(probability) if isinstance(probability, int | float) else None,
        agreed=bool(orders["agree"]) if isinstance(orders, dict) and "agree" in orders else None,
    )


def _parts(row: Mapping[str, Any]) -> tuple[Part, ...]:
    if isinstance(row.get("answers"), dict):
        return tuple(Part(label=str(role), text=_clean(text)) for role, text in row["answers"].items())
    if "revision_response" in row:
        labels = {"init_response": "answer", "critic_response": "critique", "revision_response": "revision"}
        return tuple(Part(label=label, text=_clean(row.get(name))) for name, label in labels.items())
    if "chosen" in row and "rejected" in row:
        return tuple(Part(label=name, text=_last(row[name]), tone=name) for name in ("chosen", "rejected"))
    messages = row.get("messages")
    if isinstance(messages, list) and messages and _role(messages[-1]) == "assistant":
        return (Part(label="answer", text=_last(messages)),)
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
