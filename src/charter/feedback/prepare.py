"""The prepare stage: filters data, takes out duplicates and what evaluation sets hold too, and says what and why.

Three passes over the rows. The first only counts them, so that a row that cannot be read is told before hours of work.
The second makes the digest of every row, the dear part; it depends on nothing but the row, so that batches of digests
are files of their own, and a crash costs the one under way. The third is cheap and done anew by every attempt: it
decides on hashes alone, in order, and writes. Memory grows by half a kB per row (benchmarks/prepare_rows.py).
"""

import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charter.artifacts import faults
from charter.artifacts.batch_files import BatchFiles, batch_key
from charter.artifacts.job import JobInput
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.rows import SkippedRows
from charter.errors import DataError
from charter.feedback.prepare_rows import (
    PERMUTATIONS,
    Candidate,
    Hashes,
    Sketcher,
    each_candidate,
    exact_key,
    runs_of,
    runs_of_parts,
    similarities,
    words_of,
)
from charter.feedback.records import RECORDS, SUMMARY, UNIT
from charter.spec.stage import PrepareStage


@dataclass(frozen=True)
class HeldOut:
    """The runs of words of all evaluation sets, sorted, each with the row that it comes from."""

    run_words: int
    runs: Hashes
    rows: NDArray[np.uint32]
    """Index of the first evaluation row that has the run."""

    def first_shared(self, candidate: Candidate, words: tuple[Hashes, ...]) -> int | None:
        """The evaluation row that a row shares a run of words with, None when there is none.

        `words` are those of the candidate's prompt and of each answer. A prompt that is shorter than a run is compared
        whole, and so is the opening turn of a conversation; a short answer ("Yes.") says nothing.
        """
        if not len(self.runs):
            return None
        own = [runs_of(part, self.run_words) for part in words if len(part) >= self.run_words]
        own += [runs_of(short, self.run_words) for short in (words[0], words_of(candidate.opening))]
        runs = np.concatenate(own)
        places = np.searchsorted(self.runs, runs)
        places[places == len(self.runs)] = 0
        hits = places[self.runs[places] == runs]
        return int(self.rows[hits].min()) if len(hits) else None


def held_out_of(candidates: Iterable[Candidate], *, run_words: int) -> HeldOut:
    """The runs of all rows of the evaluation sets; twelve bytes each are held."""
    runs, rows = array("Q"), array("I")
    for index, candidate in enumerate(candidates):
        for part, text in enumerate((candidate.prompt, *candidate.answers)):
            words = words_of(text)
            if part and len(words) < run_words:
                continue
            own = np.unique(runs_of(words, run_words))
            runs.frombytes(own.tobytes())
            rows.extend([index] * len(own))
    unique, first = np.unique(np.frombuffer(runs, dtype=np.uint64), return_index=True)
    return HeldOut(run_words, unique, np.frombuffer(rows, dtype=np.uint32)[first])


EMPTY, TOO_SHORT, TOO_LONG, OVERLAP = "empty", "too_short", "too_long", "overlap"
"""Reasons that a row has in itself, or beside the evaluation sets."""


@dataclass(frozen=True)
class Digester:
    """Looks at one row at a time; what it finds depends on the row, the spec and the evaluation sets alone."""

    spec: PrepareStage
    held_out: HeldOut
    sketcher: Sketcher | None

    def digest(self, row: Candidate) -> Mapping[str, Any]:
        """A row as plain JSON: `characters`, and either `reason` or the hashes, in hexadecimal."""
        fault = self._fault(row)
        if fault is not None:
            return {"characters": row.characters, "reason": fault}
        texts = (row.prompt, *row.answers)
        words = tuple(words_of(text) for text in texts)
        other = self.held_out.first_shared(row, words)
        if other is not None:
            return {"characters": row.characters, "reason": OVERLAP, "other": other}
        content: dict[str, Any] = {"characters": row.characters}
        if self.spec.exact_duplicates:
            content["exact"] = exact_key(row.parts).hex()
        if self.sketcher is not None:
            parts = words if row.parts == texts else tuple(words_of(text) for text in row.parts)
            signature, bands = self.sketcher.sketch(runs_of_parts(parts))
            content |= {"signature": signature.tobytes().hex(), "bands": bands.astype("<u8").tobytes().hex()}
        return content

    def _fault(self, row: Candidate) -> str | None:
        if row.empty:
            return EMPTY
        if min(len(text.strip()) for text in (row.prompt, *row.answers)) < self.spec.min_characters:
            return TOO_SHORT
        if self.spec.max_characters is not None and row.characters > self.spec.max_characters:
            return TOO_LONG
        return None


KEPT = ""
DUPLICATE, NEAR_DUPLICATE, BEYOND_MAX_ROWS = "duplicate", "near_duplicate", "beyond_max_rows"
REASONS = (KEPT, EMPTY, TOO_SHORT, TOO_LONG, OVERLAP, DUPLICATE, NEAR_DUPLICATE, BEYOND_MAX_ROWS)
"""In the order in which they are asked; a row has the first that applies."""
ROWS_BETWEEN_SIGNS = 10_000
"""Rows that are decided about in some 0.1 s."""
_ALONE = 0xFFFFFFFF
"""Beyond the number of any group: a row that shares this band with no other."""


@dataclass(frozen=True)
class Decisions:
    """One entry per row, in order."""

    reasons: NDArray[np.uint8]
    """Index into `REASONS`."""
    others: NDArray[np.uint32]
    """What it collided with: an evaluation row for `overlap`, an earlier row for duplicates."""
    similarity: NDArray[np.float32]
    characters: NDArray[np.uint32]

    def reason(self, row: int) -> str:
        """Return the reason why a row is rejected, `KEPT` when it is not."""
        return REASONS[self.reasons[row]]


def decide(
    digests: Iterable[Mapping[str, Any]],
    count: int,
    *,
    sketcher: Sketcher | None,
    max_rows: int | None,
    tell: Callable[[], None] = lambda: None,
) -> Decisions:
    """Go through the digests of all rows in order; some 250 bytes per row are held.

    `tell` is called now and then, as a sign of life.
    """
    decisions = Decisions(
        np.zeros(count, np.uint8), np.zeros(count, np.uint32), np.zeros(count, np.float32), np.zeros(count, np.uint32)
    )
    exact = np.zeros((count, 2), np.uint64)
    near = _Near(count, sketcher) if sketcher is not None else None
    for row, digest in enumerate(digests):
        decisions.characters[row] = digest["characters"]
        decisions.reasons[row] = REASONS.index(digest.get("reason", KEPT))
        decisions.others[row] = digest.get("other", 0)
        if "exact" in digest:
            exact[row] = np.frombuffer(bytes.fromhex(digest["exact"]), "<u8")
        if near is not None and "bands" in digest:
            near.put(row, digest)
    if near is not None:
        near.group()
    tell()
    _Order(decisions, exact, near, max_rows).go(tell)
    return decisions


class _Order:
    """The one pass in which every row is measured against those kept so far."""

    def __init__(self, made: Decisions, exact: Hashes, near: "_Near | None", max_rows: int | None) -> None:
        self._made, self._exact, self._near, self._max_rows = made, exact, near, max_rows
        self._repeated = _repeated(exact)
        self._first: dict[bytes, int] = {}
        self._kept = 0

    def go(self, tell: Callable[[], None]) -> None:
        """Decide every row that is still kept; `tell` is called now and then."""
        for row in np.flatnonzero(self._made.reasons == REASONS.index(KEPT)).tolist():
            if row % ROWS_BETWEEN_SIGNS == 0:
                tell()
            self._decide(row)

    def _decide(self, row: int) -> None:
        key = self._exact[row].tobytes() if self._repeated[row] else b""
        if (first := self._first.get(key)) is not None:
            self._reject(row, DUPLICATE, first, 1.0)
        elif self._near is not None and (twin := self._near.alike(row)) is not None:
            self._reject(row, NEAR_DUPLICATE, *twin)
        elif self._max_rows is not None and self._kept >= self._max_rows:
            self._reject(row, BEYOND_MAX_ROWS, 0, 0.0)
        else:
            self._kept += 1
            if key:
                self._first[key] = row
            if self._near is not None:
                self._near.keep(row)

    def _reject(self, row: int, reason: str, other: int, similarity: float) -> None:
        self._made.reasons[row] = REASONS.index(reason)
        self._made.others[row] = other
        self._made.similarity[row] = similarity


def _repeated(exact: Hashes) -> NDArray[np.bool_]:
    """Return the rows whose key another row has too; rows without any key have zeros, and are none."""
    order = np.lexsort((exact[:, 1], exact[:, 0]))
    ordered = exact[order]
    same = (ordered[1:] == ordered[:-1]).all(axis=1) & ordered[1:].any(axis=1)
    repeats = np.zeros(len(exact), bool)
    repeats[order[1:][same]] = True
    repeats[order[:-1][same]] = True
    return repeats


class _Near:
    """Signatures of all rows, and which rows share a band with another.

    32 bits of a band's hash are enough: rows that share them by chance, some hundred pairs in a million rows, are told
    apart by their signatures.
    """

    def __init__(self, count: int, sketcher: Sketcher) -> None:
        self._threshold = sketcher.threshold
        self._signatures = np.zeros((count, PERMUTATIONS), np.uint8)
        self._bands = np.zeros((sketcher.bands, count), np.uint32)
        """The hash of each band; after `group` the number of the group that shares it, or `_ALONE`."""
        self._present = np.zeros(count, bool)
        self._shares = np.zeros(count, bool)
        self._kept: dict[tuple[int, int], list[int]] = {}

    def put(self, row: int, digest: Mapping[str, Any]) -> None:
        """Take in the signature and the bands of a row."""
        self._signatures[row] = np.frombuffer(bytes.fromhex(digest["signature"]), np.uint8)
        self._bands[:, row] = np.frombuffer(bytes.fromhex(digest["bands"]), "<u8") >> np.uint64(32)
        self._present[row] = True

    def group(self) -> None:
        """Number the bands that several rows share, in the place of their hashes."""
        rows = np.flatnonzero(self._present)
        for band in self._bands:
            _, numbers, sizes = np.unique(band[rows], return_inverse=True, return_counts=True)
            shared = sizes[numbers] > 1
            band[:] = _ALONE
            band[rows[shared]] = numbers[shared]
            self._shares[rows[shared]] = True

    def alike(self, row: int) -> tuple[int, float] | None:
        """The kept row that is most alike (of equals the first) and how much, where it reaches the threshold."""
        if not self._shares[row]:
            return None
        candidates = sorted({other for group in self._groups_of(row) for other in self._kept.get(group, ())})
        if not candidates:
            return None
        shares = similarities(self._signatures[row], self._signatures[candidates])
        best = int(shares.argmax())
        return (candidates[best], float(shares[best])) if shares[best] >= self._threshold else None

    def keep(self, row: int) -> None:
        """Compare later rows with this one too."""
        if self._shares[row]:
            for group in self._groups_of(row):
                self._kept.setdefault(group, []).append(row)

    def _groups_of(self, row: int) -> Sequence[tuple[int, int]]:
        return [(band, number) for band, number in enumerate(self._bands[:, row].tolist()) if number != _ALONE]


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
    characters = decisions.characters[decisions.reasons == REASONS.index(KEPT)]
    figures: dict[str, float] = {
        "rows": len(decisions.reasons),
        "records": len(characters),
        "rejected": len(decisions.reasons) - len(characters),
        "held_out_rows": held_out,
        "skipped_rows": skipped,
    }
    for number, reason in enumerate(REASONS):
        if reason != KEPT:
            figures[f"rejected_{reason}"] = int((decisions.reasons == number).sum())
    if len(characters):
        figures["characters_mean"] = float(characters.mean())
        for share in (50, 95, 99):
            figures[f"characters_p{share}"] = float(np.percentile(characters, share))
        figures["characters_max"] = int(characters.max())
    return figures


class _Work:
    """The rows of one stage and the files of their digests."""

    def __init__(self, stage: StageDir) -> None:
        self.stage, self.spec = stage, stage.job.spec_as(PrepareStage)
        self.files = BatchFiles(stage.path)
        self.skipped = SkippedRows()
        self.count = sum(1 for _ in self._rows("data", self.skipped))
        for line in self.skipped.lines():
            print(line, flush=True)
        self.batches = -(-self.count // ROWS_PER_BATCH)

    @cached_property
    def sketcher(self) -> Sketcher | None:
        """Return the sketcher by which near duplicates are recognised, where they are asked for."""
        return None if self.spec.near_duplicates is None else Sketcher(self.spec.near_duplicates)

    @cached_property
    def held_out_ids(self) -> tuple[tuple[str, str], ...]:
        """Return the data set and id of each evaluation row; rows that were left out are printed in the log."""
        skipped = SkippedRows()
        ids = tuple((source, row.id) for source, row in self._rows("held_out", skipped))
        for line in skipped.lines():
            print(f"held_out: {line}", flush=True)
        return ids

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
        rows = (row for _, row in self._rows("held_out", SkippedRows()))
        return Digester(self.spec, held_out_of(rows, run_words=self.spec.overlap_words), self.sketcher)

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
            rejection = {"id": row.id, "source": source, "reason": reason}
            rejection |= _collision(number, reason, work, decisions, names)
            rejected.write(json.dumps(rejection, ensure_ascii=False, allow_nan=False) + "\n")


def _collision(
    number: int, reason: str, work: _Work, decisions: Decisions, names: Mapping[int, tuple[str, str]]
) -> dict[str, Any]:
    """Return the row that a rejected row collided with, and how alike the two are."""
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
