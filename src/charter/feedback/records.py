"""Records made in fixed batches: the unit that survives a crash, and that is replayed whole after one.

A finished batch is a file of its own (`artifacts/batch_files`), so it does not matter in which order, by which process
or how often they are made. After a kill at any moment only batches under way are made again, and they come out the
same: their draws hang on the ids of their items alone, and stored answers of an endpoint are used again.
"""

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from charter.artifacts import faults
from charter.artifacts.batch_files import BatchFacts, BatchFiles, batch_key, finished_batches
from charter.artifacts.group import rank_of_process, works_apart, world_size
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.feedback.asking import Ask, Reply

Made = TypeVar("Made")
Making = Generator[Sequence[Ask], list[Reply], Made]
"""Yields questions, is sent the replies in their order, returns what was made of them."""

WAIT_SECONDS = 0.5


class Answerer(Protocol):
    """Whoever answers the questions of a stage."""

    @property
    def batches_at_once(self) -> int:
        """Number of batches that may be under way; 1 where everything is computed in this process."""

    def submit(self, asks: Sequence[Ask]) -> "Future[list[Reply]]":
        """The replies, in the order of the questions; already there for a model of this process.

        The future raises DataError or StageError when they cannot be had.
        """

    def confirm(self) -> None:
        """Raise ModelChangedError where a server that has answered has another model now."""

    def settled_micro_usd(self, role: str) -> int:
        """Known cost of this process's calls to a role's model so far; 0 for one of this process."""

    def close(self) -> None:
        """Give back connections and threads; what was asked and not yet answered is stored as unknown."""


def answered(making: "Making[Made]", answerer: Answerer) -> Made:
    """One making from beginning to end."""
    for _, result in list(drive([(0, making)], answerer)):
        return result
    raise AssertionError("a making ends with what it made")


def drive(
    makings: Iterable[tuple[int, "Making[Made]"]],
    answerer: Answerer,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    tell: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Made]]:
    """Every making's number and result as it is ready, in any order.

    `tell` is called at every sign of progress. Once `should_stop` says so, no making is begun and no new question is
    asked: what is answered already is finished if it can be, the rest is given up (stored answers are found again).
    After the last result the servers that answered are looked at once more: nothing is used before they are.
    """
    waiting = iter(makings)
    under_way: dict[Future[list[Reply]], tuple[int, Making[Made]]] = {}
    while not should_stop():
        while len(under_way) < answerer.batches_at_once and not should_stop():
            begun = next(waiting, None)
            if begun is None:
                break
            yield from _advance(*begun, None, answerer, under_way)
            tell()
        if not under_way:
            answerer.confirm()
            return
        ready, _ = wait(under_way, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        for future in [] if should_stop() else ready:
            number, making = under_way.pop(future)
            tell()
            yield from _advance(number, making, future.result(), answerer, under_way)
    for future, (number, making) in under_way.items():
        if future.done():
            yield from _ended(number, making, future.result())


def _ended(number: int, making: "Making[Made]", replies: list[Reply]) -> Iterator[tuple[int, Made]]:
    """The result, where these replies were the last that were wanted."""
    try:
        making.send(replies)
    except StopIteration as end:
        yield number, end.value


def _advance(
    number: int,
    making: "Making[Made]",
    replies: list[Reply] | None,
    answerer: Answerer,
    under_way: dict["Future[list[Reply]]", tuple[int, "Making[Made]"]],
) -> Iterator[tuple[int, Made]]:
    try:
        asks = next(making) if replies is None else making.send(replies)
    except StopIteration as end:
        yield number, end.value
    else:
        under_way[answerer.submit(asks)] = (number, making)


RECORDS, SET_ASIDE, SUMMARY = "records.jsonl", "set_aside.jsonl", "summary.json"
UNIT = "batches"
WAIT_FOR_OTHERS_SECONDS = 0.1
Record = Mapping[str, Any]


class HasId(Protocol):
    """Item of work, with the id on which everything drawn for it depends."""

    @property
    def id(self) -> str:
        """Unique among the items of a stage."""


Item = TypeVar("Item", bound=HasId)
Any_ = TypeVar("Any_")


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """Result of one batch."""

    records: Sequence[Record]
    set_aside: Sequence[Record] = ()
    """What cannot be used, each with its `reason`; counted and kept, never in the records."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Numbers that are summed over all batches."""
    tokens: int = 0
    """Tokens generated."""


def in_batches(items: Sequence[Any_], size: int) -> list[Sequence[Any_]]:
    """Consecutive batches of a fixed size; the last one may be smaller.

    >>> in_batches("abcde", 2)
    ['ab', 'cd', 'e']
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


def make_records(
    stage: StageDir,
    batches: Iterable[Sequence[Item]],
    make: Callable[[Sequence[Item]], Making[BatchResult]],
    answerer: Answerer,
    *,
    summarise: Callable[[Mapping[str, float]], Mapping[str, float]],
    check: Callable[[Mapping[str, float]], None] = lambda _: None,
) -> None:
    """Make every batch that is not there yet, then publish all of them in order.

    `batches` is gone through twice, so that a million prompts need not be held. With several processes each makes
    every so-many-th batch, and the first one publishes; of tasks that work apart, which never wait for one another, the
    one that finds all batches there. `check` sees the totals before anything is published.
    Outputs: `records.jsonl`, `set_aside.jsonl` when something was, and `summary.json` with what `summarise` makes of
    the totals. The same figures go to the stage's metrics.
    """
    files, rank, ranks, apart = BatchFiles(stage.path), rank_of_process(), world_size(), works_apart()
    alone_here = rank == 0 and not apart
    if alone_here:
        stage.sweep()
        files.sweep()
    work = _BatchWork(files, stage.job.fingerprint)
    keys, totals = work.look(batches, of=(rank, ranks) if apart else None)
    if alone_here:
        reported = stage.cut_metrics(len(work.finished))
        if ranks == 1:
            _report_left_out(stage, work, len(keys), reported, summarise)
    missing = (number for number in keys if number not in work.finished and number % ranks == rank)
    wanted = set(missing)
    makings = ((number, make(items)) for number, items in _numbered(batches) if number in wanted)
    step = len(work.finished)
    for number, batch in drive(makings, answerer, should_stop=stage.should_stop, tell=stage.alive):
        faults.boundary(stage.job.stage, "checkpoint", number, "before")
        work.write(number, keys[number], batch)
        faults.boundary(stage.job.stage, "checkpoint", number, "after")
        _add(totals, work.facts_of(number, keys[number], batch))
        step = step + 1 if ranks == 1 else finished_batches(stage.path)
        counters = {"records": len(batch.records), "tokens": batch.tokens}
        stage.report(step, len(keys), UNIT, summarise(totals), counters)
    if stage.should_stop() or (rank != 0 and not apart):
        return
    if apart:
        if _left(files, keys) or not stage.claim_publication():
            return
    else:
        _wait_for_others(stage, files, keys)
    if stage.should_stop():
        return
    totals = work.look(batches)[1]  # in order, so that sums have the same bits whichever batch came first
    if apart and len(work.finished) < len(keys):
        return  # a batch of another task was damaged since: the supervisor has it made again
    check(totals)
    _publish(stage, files, keys, _figures(totals, summarise))


def _report_left_out(
    stage: StageDir,
    work: "_BatchWork",
    target: int,
    reported: int,
    summarise: Callable[[Mapping[str, float]], Mapping[str, float]],
) -> None:
    """Report the batches that were written before a kill and not reported since: their records count all the same."""
    totals: dict[str, float] = {}
    for step, facts in enumerate(work.facts, start=1):
        _add(totals, facts)
        if step > reported:
            stage.report(step, target, UNIT, summarise(totals), {"records": facts.records, "tokens": facts.tokens})


class _BatchWork:
    """Batches of the work, and the means to write one."""

    def __init__(self, files: BatchFiles, fingerprint: str) -> None:
        self.files = files
        self.finished: set[int] = set()
        self.facts: list[BatchFacts] = []
        """Of the batches that were there at the last look, in order."""
        self._fingerprint = fingerprint

    def look(
        self, batches: Iterable[Sequence[HasId]], *, of: tuple[int, int] | None = None
    ) -> tuple[dict[int, str], dict[str, float]]:
        """The key of every batch, and the sums over those that are there and verify; `of` one rank of so many."""
        keys: dict[int, str] = {}
        totals: dict[str, float] = {}
        self.finished.clear()
        self.facts.clear()
        for number, items in _numbered(batches):
            keys[number] = batch_key(self._fingerprint, number, [item.id for item in items])
            if of is not None and number % of[1] != of[0]:
                continue
            facts = self.files.verified(number, keys[number])
            if facts is not None:
                self.finished.add(number)
                self.facts.append(facts)
                _add(totals, facts)
        return keys, totals

    def write(self, number: int, key: str, batch: BatchResult) -> None:
        """Write a finished batch, and count it."""
        self.files.write(
            number,
            key,
            records=batch.records,
            set_aside=batch.set_aside,
            totals=batch.totals,
            tokens=batch.tokens,
        )
        self.finished.add(number)

    @staticmethod
    def facts_of(number: int, key: str, batch: BatchResult) -> BatchFacts:
        """Return the facts for the first line of a batch's file."""
        return BatchFacts(
            number=number,
            key=key,
            records=len(batch.records),
            set_aside=len(batch.set_aside),
            tokens=batch.tokens,
            totals=batch.totals,
        )


def _numbered(batches: Iterable[Sequence[Any_]]) -> Iterator[tuple[int, Sequence[Any_]]]:
    """Batches are counted from 1."""
    return enumerate(batches, start=1)


def _wait_for_others(stage: StageDir, files: BatchFiles, keys: Mapping[int, str]) -> None:
    """Until every batch has a file; the supervisor ends all processes when one of them fails."""
    while _left(files, keys) and not stage.should_stop():
        stage.alive()
        time.sleep(WAIT_FOR_OTHERS_SECONDS)


def _left(files: BatchFiles, keys: Mapping[int, str]) -> int:
    """Count the batches that have no file; the directory is read once, however many they are."""
    there = files.names()
    return sum(1 for number, key in keys.items() if files.path_of(number, key).name not in there)


def _add(totals: dict[str, float], facts: BatchFacts) -> None:
    counted = {"records": facts.records, "set_aside": facts.set_aside, "generated_tokens": facts.tokens}
    for key, value in {**counted, **facts.totals}.items():
        totals[key] = totals.get(key, 0) + value


def _figures(
    totals: Mapping[str, float], summarise: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> dict[str, float]:
    counts = {key: totals[key] for key in ("records", "set_aside", "generated_tokens") if key in totals}
    return {**counts, **summarise(totals)}


def _publish(stage: StageDir, files: BatchFiles, keys: Mapping[int, str], figures: Mapping[str, float]) -> None:
    if not figures.get("records"):
        raise DataError(f"stage {stage.job.stage} made no usable record: {dict(figures)}")

    def write(path: Path) -> None:
        with (
            (path / RECORDS).open("w", encoding="utf-8") as records,
            (path / SET_ASIDE).open("w", encoding="utf-8") as aside,
        ):
            for number, key in keys.items():
                rows, left_out = files.rows(number, key)
                records.writelines(rows)
                aside.writelines(left_out)
        if not figures.get("set_aside"):
            (path / SET_ASIDE).unlink()
        (path / SUMMARY).write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    stage.publish_outputs(write, step=len(keys), target_step=len(keys))
