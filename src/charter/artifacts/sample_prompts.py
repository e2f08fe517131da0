"""Prompts that a stage in training answers at its checkpoints for people to read, the answers, and remarks on them.

Prompts and answers lie beside the outputs of the stage, remarks in the run directory; no hash covers them, and nothing
that is trained follows from them.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.errors import loads_json

SAMPLE_PROMPTS = "sample_prompts.json"
SAMPLES_FILE = "samples.jsonl"
"""Answers of a stage's models, one prompt a line: of an evaluation, or of a training stage at a step."""


ROLLOUTS_FILE = "rollouts.jsonl"
"""A few answers of rollouts with their rewards, one a line."""
SAMPLE_TIMES = "sample_times.jsonl"
"""Seconds that each round of answers of a training stage took."""


@dataclass(frozen=True, kw_only=True)
class SamplePrompts:
    """The same prompts for every stage and checkpoint of a run."""

    prompts: tuple[tuple[str, tuple[Mapping[str, str], ...]], ...]
    """Identifier and turns, in the order in which they are answered."""
    seed: int
    max_new_tokens: int
    share: float
    """Of a stage's time that the answers may take."""


def write_sample_prompts(stage_dir: Path, wanted: SamplePrompts | None) -> None:
    """Put the prompts beside a stage; without any, take away those of an earlier start."""
    path = stage_dir / SAMPLE_PROMPTS
    if wanted is None:
        if path.exists():
            durable.remove_file(path)
        return
    rows = [{"id": name, "turns": [dict(turn) for turn in turns]} for name, turns in wanted.prompts]
    durable.write_json(
        path, {"seed": wanted.seed, "max_new_tokens": wanted.max_new_tokens, "share": wanted.share, "prompts": rows}
    )


def read_sample_prompts(stage_dir: Path) -> SamplePrompts | None:
    """Return the prompts of a stage; None where it has none, or none that can be read."""
    try:
        content = loads_json((stage_dir / SAMPLE_PROMPTS).read_text(encoding="utf-8"))
        prompts = tuple((str(row["id"]), tuple(row["turns"])) for row in content["prompts"])
        return SamplePrompts(
            prompts=prompts,
            seed=int(content["seed"]),
            max_new_tokens=int(content["max_new_tokens"]),
            share=float(content["share"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def append_samples(stage_dir: Path, step: int, answers: Sequence[tuple[str, Sequence[Mapping[str, str]], str]]) -> None:
    """Write down what the model answers at a step, all at once: identifier, turns and answer of each prompt."""
    rows = [
        {"id": name, "step": step, "prompt": [dict(turn) for turn in turns], "answer": answer}
        for name, turns, answer in answers
    ]
    durable.append_lines(stage_dir / SAMPLES_FILE, rows)


def has_samples_of(stage_dir: Path, step: int) -> bool:
    """Return True if a stage's last answers are those of a step."""
    return (_last_row(stage_dir / SAMPLES_FILE) or {}).get("step") == step


def _last_row(path: Path) -> Mapping[str, object] | None:
    """Return the last line of a file as a mapping; None where it has none."""
    try:
        row = loads_json(path.read_bytes().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    return row if isinstance(row, Mapping) else None


def append_rollout_sample(
    stage_dir: Path,
    sample: str,
    step: int,
    turns: Sequence[Mapping[str, str]],
    answer: str,
    *,
    score: float,
    rewards: Mapping[str, float | None],
) -> None:
    """Write down an answer of a rollout, its score, and each reward of the list; None where that failed or is none."""
    row = {"id": sample, "step": step, "prompt": [dict(turn) for turn in turns], "answer": answer}
    durable.append_line(stage_dir / ROLLOUTS_FILE, {**row, "score": score, "rewards": dict(rewards)})


_BEGUN = "begun"


def append_sample_begin(stage_dir: Path, step: int) -> None:
    """Write down that a round of answers begins."""
    durable.append_line(stage_dir / SAMPLE_TIMES, {"step": step, _BEGUN: True})


def append_sample_time(stage_dir: Path, step: int, seconds: float) -> None:
    """Write down what a round of answers took, whether they were finished or not."""
    durable.append_line(stage_dir / SAMPLE_TIMES, {"step": step, "seconds": round(seconds, 6)})


def was_answering(stage_dir: Path) -> bool:
    """Return True if a stage that has ended was in a round of answers."""
    return _BEGUN in (_last_row(stage_dir / SAMPLE_TIMES) or ())


def sample_seconds(stage_dir: Path) -> float:
    """Return the seconds that a stage spent on answers for people to read, over all its attempts."""
    total = 0.0
    for row in durable.objects_in(stage_dir / SAMPLE_TIMES):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            total += max(0.0, float(row["seconds"]))
    return total


SAMPLE_NOTES = "sample_notes.jsonl"
"""In the run directory: flags and remarks, the later line on a sample counts."""


@dataclass(frozen=True, kw_only=True)
class SampleNote:
    """Remark of a reader on a sample."""

    flagged: bool
    note: str
    by: str


def append_note(run_dir: Path, sample: str, note: SampleNote, *, stage: str = "") -> None:
    """Keep a remark on the sample of that identifier; it counts for the answers of every stage to the same prompt."""
    row = {"id": sample, "stage": stage, "flagged": note.flagged, "note": note.note, "by": note.by}
    durable.append_line(run_dir / SAMPLE_NOTES, row)


def read_notes(run_dir: Path) -> dict[str, SampleNote]:
    """Return the remarks of a run by the identifier of the sample; a torn line is left out."""
    notes: dict[str, SampleNote] = {}
    for row in durable.objects_in(run_dir / SAMPLE_NOTES):
        with contextlib.suppress(KeyError):
            note = SampleNote(flagged=bool(row["flagged"]), note=str(row["note"]), by=str(row["by"]))
            notes[str(row["id"])] = note
    return notes


def affordable(
    *,
    share: float,
    elapsed_seconds: float,
    spent_seconds: float,
    seconds_each: float | None,
    prompts: int,
    together: bool = False,
) -> int:
    """Return how many prompts may be answered now, so that answers take at most `share` of a stage's time.

    One while nobody knows what one takes, and the allowance is not used up. All or none with `together`, where one
    takes as long as all.

    >>> affordable(share=0.01, elapsed_seconds=1000.0, spent_seconds=0.0, seconds_each=None, prompts=20)
    1
    >>> affordable(share=0.01, elapsed_seconds=1000.0, spent_seconds=2.0, seconds_each=1.0, prompts=20)
    8
    >>> affordable(share=0.01, elapsed_seconds=1000.0, spent_seconds=2.0, seconds_each=1.0, prompts=20, together=True)
    0
    >>> affordable(share=0.01, elapsed_seconds=10.0, spent_seconds=0.2, seconds_each=0.01, prompts=20)
    0
    """
    allowed = share * elapsed_seconds - spent_seconds
    if allowed <= 0:
        return 0
    if seconds_each is None:
        return prompts if together else min(1, prompts)
    count = min(prompts, int(allowed / max(seconds_each, 1e-9)))
    return count if count == prompts or not together else 0
