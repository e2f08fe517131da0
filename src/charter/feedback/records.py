"""Records made in fixed batches: the unit that survives a crash, and that is replayed whole after one.

A checkpoint holds every finished batch as a file of its own. Files of earlier batches are hard links to the previous
checkpoint's, so a save writes one batch, however many came before. After a kill at any moment at most one batch is
made again, and it comes out the same, because its draws hang on the ids of its records alone.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from charter.artifacts.position import Position
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError

RECORDS, SET_ASIDE, SUMMARY, TOTALS = "records.jsonl", "set_aside.jsonl", "summary.json", "totals.json"
UNIT = "batches"
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
    for number in range(finished + 1, len(batches) + 1):
        if stage.should_stop():
            return
        batch = make(batches[number - 1])
        _add(totals, batch)
        previous = _save(stage, number, previous, batch, totals)
        counters = {"records": len(batch.records), "tokens": batch.tokens}
        stage.report(number, len(batches), UNIT, summarise(totals), counters)
    _publish(stage, previous, len(batches), _figures(totals, summarise))


def _save(stage: StageDir, number: int, previous: Path | None, batch: Batch, totals: Mapping[str, float]) -> Path:
    stage.save_checkpoint(number, lambda path: _write_parts(path, previous, number, batch, totals))
    return stage.checkpoints.path_of(Position(number))


def _add(totals: dict[str, float], batch: Batch) -> None:
    counted = {"records": len(batch.records), "set_aside": len(batch.set_aside), "generated_tokens": batch.tokens}
    for key, value in {**counted, **batch.totals}.items():
        totals[key] = totals.get(key, 0) + value


def _figures(
    totals: Mapping[str, float], summarise: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> dict[str, float]:
    kept = {key: totals[key] for key in ("records", "set_aside", "generated_tokens") if key in totals}
    return {**kept, **summarise(totals)}


def _write_parts(path: Path, previous: Path | None, number: int, batch: Batch, totals: Mapping[str, float]) -> None:
    for part in sorted(previous.glob("*.jsonl")) if previous else []:
        _link(part, path / part.name)
    for kind, rows in ((RECORDS, batch.records), (SET_ASIDE, batch.set_aside)):
        if rows:
            (path / f"batch-{number:08d}.{kind}").write_text(_lines(rows), encoding="utf-8")
    (path / TOTALS).write_text(json.dumps(totals, sort_keys=True) + "\n", encoding="utf-8")


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
