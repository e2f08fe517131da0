"""The prepare stage: filters data, takes out duplicates and what evaluation sets hold too, and says what and why.

Three passes over the rows. The first only counts them, so that a row that cannot be read is told before hours of work.
The second makes the digest of every row, the dear part; it depends on nothing but the row, so that batches of digests
are files of their own, and a crash costs the one under way. The third is cheap and done anew by every attempt: it
decides on hashes alone, in order, and writes. Memory grows by half a kB per row (benchmarks/prepare_rows.py).
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from charter.artifacts import faults
from charter.artifacts.batch_files import BatchFiles, batch_key
from charter.artifacts.job import JobInput
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import DataError
from charter.feedback.prepare_decisions import (
    DUPLICATE,
    KEPT,
    NEAR_DUPLICATE,
    REASONS,
    Decisions,
    decide,
)
from charter.feedback.prepare_digest import OVERLAP, Digester
from charter.feedback.prepare_held_out import held_out_of
from charter.feedback.prepare_minhash import Sketcher
from charter.feedback.prepare_rows import Candidate, each_candidate
from charter.feedback.records import RECORDS, SUMMARY, UNIT
from charter.spec.data_row import SkippedRows
from charter.spec.stage import PrepareStage

REJECTED = "rejected.jsonl"
ROWS_PER_BATCH = 2000
"""About half a second of work on one core: what a crash can cost; a million rows are 500 files."""


def run(stage: StageDir) -> None:
    """Prepare the data of a stage, or go on with it."""
    stage.sweep()
    work = _Work(stage)
    work.files.sweep()
    if not work.make_digests():
        return
    decisions = decide(
        work.each_digest(),
        work.count,
        sketcher=work.sketcher,
        max_rows=work.spec.max_rows,
        tell=stage.alive,
    )
    figures = summary_of(decisions, held_out=len(work.held_out_ids), skipped=work.skipped.count)
    if not figures["records"]:
        raise DataError(f"stage {stage.job.stage} kept none of its {work.count} rows: {figures}")

    def write(path: Path) -> None:
        _write(path, work, decisions)
        (path / SUMMARY).write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    stage.report(work.batches, work.batches, UNIT, figures)
    stage.publish_outputs(write, step=work.batches, target_step=work.batches)


def summary_of(decisions: Decisions, *, held_out: int, skipped: int) -> dict[str, float]:
    """Counts of rows by what became of them, and the lengths of those that are kept."""
    kept = decisions.characters[decisions.reasons == REASONS.index(KEPT)]
    found: dict[str, float] = {
        "rows": len(decisions.reasons),
        "records": len(kept),
        "rejected": len(decisions.reasons) - len(kept),
        "held_out_rows": held_out,
        "skipped_rows": skipped,
    }
    for number, reason in enumerate(REASONS):
        if reason != KEPT:
            found[f"rejected_{reason}"] = int((decisions.reasons == number).sum())
    if len(kept):
        found["characters_mean"] = float(kept.mean())
        for share in (50, 95, 99):
            found[f"characters_p{share}"] = float(np.percentile(kept, share))
        found["characters_max"] = int(kept.max())
    return found


class _Work:
    """The rows of one stage and the files of their digests."""

    def __init__(self, stage: StageDir) -> None:
        assert isinstance(stage.job.spec, PrepareStage)
        self.stage, self.spec = stage, stage.job.spec
        self.files = BatchFiles(stage.path)
        self.skipped = SkippedRows()
        self.count = sum(1 for _ in self._rows("data", self.skipped))
        for line in self.skipped.lines():
            print(line, flush=True)
        self.batches = -(-self.count // ROWS_PER_BATCH)

    @cached_property
    def sketcher(self) -> Sketcher | None:
        """What near duplicates are told by, where they are asked for."""
        return None if self.spec.near_duplicates is None else Sketcher(self.spec.near_duplicates)

    @cached_property
    def held_out_ids(self) -> tuple[tuple[str, str], ...]:
        """Which data set each evaluation row is of, and its id; rows that were left out are said in the log."""
        skipped = SkippedRows()
        found = tuple((source, row.id) for source, row in self._rows("held_out", skipped))
        for line in skipped.lines():
            print(f"held_out: {line}", flush=True)
        return found

    def rows(self) -> Iterator[tuple[str, Candidate]]:
        """The rows in order, each with the data set it comes from: `data 1` is the first one that the stage names.

        Not by its name, which is not part of what is computed.
        """
        return self._rows("data", SkippedRows())

    def make_digests(self) -> bool:
        """Make the batches of digests that are not there yet; False when the stage was asked to stop."""
        keys = [self._key(number) for number in range(1, self.batches + 1)]
        finished = {number for number, key in enumerate(keys, 1) if self.files.verified(number, key) is not None}
        step = len(finished)
        self.stage.cut_metrics(step)
        if step == self.batches:
            return not self.stage.should_stop()
        rows = (row for _, row in self.rows())
        for number, key in enumerate(keys, 1):
            if self.stage.should_stop():
                return False
            batch = list(itertools.islice(rows, ROWS_PER_BATCH))
            if number in finished:
                continue
            self._make(number, key, batch)
            step += 1
            self.stage.report(step, self.batches, UNIT, {}, {"records": len(batch)})
        return not self.stage.should_stop()

    def each_digest(self) -> Iterator[Mapping[str, Any]]:
        """The digests of all rows, in order."""
        for number in range(1, self.batches + 1):
            self.stage.alive()
            lines, _ = self.files.rows(number, self._key(number))
            yield from map(json.loads, lines)

    def _make(self, number: int, key: str, batch: list[Candidate]) -> None:
        digests = [self._digester.digest(row) for row in batch]
        faults.boundary(self.stage.job.stage, "checkpoint", number, "before")
        self.files.write(number, key, records=digests, set_aside=(), totals={}, tokens=0)
        faults.boundary(self.stage.job.stage, "checkpoint", number, "after")

    def _key(self, number: int) -> str:
        return batch_key(self.stage.job.fingerprint, number, [str(self.count), str(ROWS_PER_BATCH)])

    @cached_property
    def _digester(self) -> Digester:
        found = (row for _, row in self._rows("held_out", SkippedRows()))
        return Digester(self.spec, held_out_of(found, run_words=self.spec.overlap_words), self.sketcher)

    def _rows(self, role: str, skipped: SkippedRows) -> Iterator[tuple[str, Candidate]]:
        items: tuple[JobInput, ...] = self.stage.job.inputs.get(role, ())
        for position, item in enumerate(items, 1):
            for number, row in enumerate(each_candidate(item, skipped)):
                if number % ROWS_PER_BATCH == 0:
                    self.stage.alive()
                yield f"{role} {position}", row


def _write(path: Path, work: _Work, decisions: Decisions) -> None:
    """The rows that are kept, unchanged and in order; and of the others which they are and what became of them."""
    duplicates = np.isin(decisions.reasons, [REASONS.index(DUPLICATE), REASONS.index(NEAR_DUPLICATE)])
    named = set(decisions.others[duplicates].tolist())
    """Rows that others are duplicates of; they come before those."""
    names: dict[int, tuple[str, str]] = {}
    with (
        (path / RECORDS).open("w", encoding="utf-8") as records,
        (path / REJECTED).open("w", encoding="utf-8") as rejected,
    ):
        for number, (source, row) in enumerate(work.rows()):
            if number in named:
                names[number] = (source, row.id)
            reason = decisions.reason(number)
            if reason == KEPT:
                records.write(row.line + "\n")
                continue
            told = {"id": row.id, "source": source, "reason": reason}
            told |= _collision(number, reason, work, decisions, names)
            rejected.write(json.dumps(told, ensure_ascii=False, allow_nan=False) + "\n")


def _collision(
    number: int, reason: str, work: _Work, decisions: Decisions, names: Mapping[int, tuple[str, str]]
) -> dict[str, Any]:
    """What a rejected row collided with, and how alike the two are."""
    other = int(decisions.others[number])
    if reason == OVERLAP:
        source, id = work.held_out_ids[other]
        return {"other_id": id, "other_source": source}
    if reason in (DUPLICATE, NEAR_DUPLICATE):
        source, id = names[other]
        return {"other_id": id, "other_source": source, "similarity": round(float(decisions.similarity[number]), 4)}
    return {}


if __name__ == "__main__":
    stage_main(run)
