"""Records made in fixed batches: the unit that survives a crash, and that is replayed whole after one.

A checkpoint holds every finished batch as a file of its own. Files of earlier batches are hard links to those of the
checkpoint before the previous one, so a save writes two batches, however many came before, and two checkpoints in a row
share no file: a bad block damages every second one, never all. What is taken over must still have the hash that it was
published with. After a kill at any moment at most one batch is made again, and it comes out the same, because its draws
hang on the ids of its records alone.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from charter.artifacts.checkpoints import files_of
from charter.artifacts.position import Position
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError

RECORDS, SET_ASIDE, SUMMARY, TOTALS = "records.jsonl", "set_aside.jsonl", "summary.json", "totals.json"
UNIT = "batches"
_PARTS = "batch-*.jsonl"
Record = Mapping[str, Any]
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one batch yielded."""

    records: Sequence[Record]
    set_aside: Sequence[Record] = ()
    """What cannot be used, each with its `reason`; counted and kept, never in the records."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Numbers that are summed over all batches."""
    tokens: int = 0
    """Tokens generated."""


def in_batches(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    """Consecutive batches of a fixed size; the last one may be smaller.

    >>> in_batches("abcde", 2)
    ['ab', 'cd', 'e']
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What the checkpoint of a batch is made of."""

    number: int
    previous: Path | None
    older: Path | None
    """The one before the previous, where this very process has verified or written it."""
    batch: Batch
    totals: Mapping[str, float]

    def save(self, stage: StageDir) -> Path:
        """Publish the checkpoint; where it lies."""
        kept = files_of(self.previous, _PARTS) if self.previous else {}
        stage.save_checkpoint(self.number, self._write, kept=kept)
        return stage.checkpoints.path_of(Position(self.number))

    def _write(self, path: Path) -> None:
        for part in sorted(self.previous.glob(_PARTS)) if self.previous else []:
            if self.older is not None and (self.older / part.name).exists():
                _link(self.older / part.name, path / part.name)
            else:
                shutil.copyfile(part, path / part.name)
        for kind, rows in ((RECORDS, self.batch.records), (SET_ASIDE, self.batch.set_aside)):
            if rows:
                (path / f"batch-{self.number:08d}.{kind}").write_text(_lines(rows), encoding="utf-8")
        (path / TOTALS).write_text(json.dumps(self.totals, sort_keys=True) + "\n", encoding="utf-8")


def make_records(
    stage: StageDir,
    batches: Sequence[Sequence[_Item]],
    make: Callable[[Sequence[_Item]], Batch],
    *,
    summarise: Callable[[Mapping[str, float]], Mapping[str, float]],
) -> None:
    """Make every batch that is not there yet, then publish all of them in order.

    Outputs: `records.jsonl`, `set_aside.jsonl` when something was, and `summary.json` with what `summarise` makes of
    the totals. The same figures go to the stage's metrics.
    """
    checkpoint = stage.latest_checkpoint()
    finished, previous = (checkpoint.step, checkpoint.path) if checkpoint else (0, None)
    totals = _read_totals(previous)
    older: Path | None = None
    for number in range(finished + 1, len(batches) + 1):
        if stage.should_stop():
            return
        batch = make(batches[number - 1])
        _add(totals, batch)
        parts = _Parts(number=number, previous=previous, older=older, batch=batch, totals=totals)
        older, previous = previous, parts.save(stage)
        counters = {"records": len(batch.records), "tokens": batch.tokens}
        stage.report(number, len(batches), UNIT, summarise(totals), counters)
    _publish(stage, previous, len(batches), _figures(totals, summarise))


def _add(totals: dict[str, float], batch: Batch) -> None:
    counted = {"records": len(batch.records), "set_aside": len(batch.set_aside), "generated_tokens": batch.tokens}
    for key, value in {**counted, **batch.totals}.items():
        totals[key] = totals.get(key, 0) + value


def _figures(
    totals: Mapping[str, float], summarise: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> dict[str, float]:
    kept = {key: totals[key] for key in ("records", "set_aside", "generated_tokens") if key in totals}
    return {**kept, **summarise(totals)}


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _lines(records: Sequence[Record]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)


def _read_totals(checkpoint: Path | None) -> dict[str, float]:
    if checkpoint is None:
        return {}
    found: dict[str, float] = json.loads((checkpoint / TOTALS).read_text(encoding="utf-8"))
    return found


def _publish(stage: StageDir, checkpoint: Path | None, steps: int, figures: Mapping[str, float]) -> None:
    if checkpoint is None or not figures.get("records"):
        raise DataError(f"stage {stage.job.stage} made no usable record: {dict(figures)}")

    def write(path: Path) -> None:
        for kind in (RECORDS, SET_ASIDE):
            if parts := sorted(checkpoint.glob(f"batch-*.{kind}")):
                _join(parts, path / kind)
        (path / SUMMARY).write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    stage.publish_outputs(write, step=steps, target_step=steps)


def _join(parts: Sequence[Path], target: Path) -> None:
    with target.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
