"""Follows an engine that computes a stage to its end: its log, its checkpoints, its rewards, and when it is to stop."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from charter.artifacts.stage_dir import StageDir
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep
from charter.engines.common.files import link_tree
from charter.hosted.data_files import DataFiles
from charter.hosted.engine_process import PEER, STOP, EngineEnd, EngineNodes, EngineProcess, LogPump
from charter.hosted.scores import RolloutScores
from charter.train.judge_reward import JudgeService
from charter.train.meter import Meter

EVERY_SECONDS = 1.0


@contextlib.contextmanager
def beating(stage: StageDir) -> Iterator[None]:
    """Say every second that this process is still at what it began."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(EVERY_SECONDS):
            stage.alive()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


ENGINE_KEEPS = 2
"""How many of its newest checkpoints every engine is told to keep at least."""


def take_over(stage: StageDir, adapter: EngineAdapter, work: Path) -> bool:
    """Make the engine's whole checkpoints Charter's own: hashed, flushed, kept as the file says; whether there was one.

    Only those younger than what Charter has; what vanishes while it is taken was one too many for the engine.
    """
    newest = max((position.step for position in stage.checkpoints.positions()), default=0)
    checkpoints = [item for item in _kept_by_engine(adapter, work) if item.step > newest]
    return any([_take(stage, adapter, work, item) for item in checkpoints])


def _kept_by_engine(adapter: EngineAdapter, work: Path) -> Sequence[EngineCheckpoint]:
    """Those that the engine does not remove yet: an older one may look whole while half of it is gone already."""
    return sorted(adapter.checkpoints(work), key=lambda item: item.step)[-ENGINE_KEEPS:]


def _take(stage: StageDir, adapter: EngineAdapter, work: Path, checkpoint: EngineCheckpoint) -> bool:
    def link(target: Path) -> None:
        link_tree(checkpoint.path, target)
        if checkpoint not in _kept_by_engine(adapter, work):
            raise FileNotFoundError(checkpoint.path)

    try:
        with beating(stage):
            stage.save_checkpoint(checkpoint.step, link)
    except FileNotFoundError:
        return False
    adapter.taken(checkpoint, work)
    return True


JUDGES = "judges"
"""The engine was ended since its judges can be asked no more, for a reason that the service tells."""
ALARM = "alarm"
"""The engine was ended since it exploits its reward, as the file asks."""
POLL_SECONDS = 0.1
READING_SHARE = 0.05
"""Of the time, at most, that reading the log again takes: it grows, and is read from its beginning."""
LOGGED_POINTS = 200
"""About how many lines a stage writes to metrics.jsonl."""


@dataclass
class Follower:
    """One start of an engine."""

    stage: StageDir
    adapter: EngineAdapter
    process: EngineProcess
    work: Path
    log: Path
    data: DataFiles
    meter: Meter
    pump: LogPump
    nodes: EngineNodes
    first_step: int
    judges: JudgeService | None = None
    scores: RolloutScores | None = None
    """Where it is given a list of rewards."""
    last_step: int = field(init=False)
    """Steps that the engine has logged."""
    saved: bool = False
    """Whether a checkpoint was taken over since the stage was asked to stop."""
    stopping: bool = False
    ended_by: str = ""
    """Why Charter has ended the engine, where it has."""
    _counters: dict[str, int] = field(default_factory=dict)
    _reported: int = field(init=False)
    _seen: object = None
    _read_again: float = 0.0

    def __post_init__(self) -> None:
        self.last_step = self._reported = self.first_step

    def run(self) -> int:
        """Follow the engine to its end; its exit code."""
        while (code := self.process.poll()) is None:
            self._look()
            self._heed_stop()
            if self.nodes.another_has_failed():
                self._end(PEER)
            if self.judges is not None and self.judges.failure is not None:
                self._end(JUDGES)
            if self.scores is not None and self.scores.reason_to_stop(self.last_step):
                self._end(ALARM)
            time.sleep(POLL_SECONDS)
        self._seen = None
        self._look(is_last=True)
        return code

    def _end(self, ended_by: str) -> None:
        """End the engine here; the other nodes hear of a stop before theirs fails without this one."""
        self.ended_by = ended_by
        if ended_by == STOP:
            self.nodes.tell(EngineEnd(code=0, ended_by=STOP))
        self.process.end()

    def _look(self, *, is_last: bool = False) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        self.stage.alive()
        self.pump.pump(to_end=is_last)
        self._report(is_last=is_last)
        if take_over(self.stage, self.adapter, self.work):
            self.saved = self.saved or self.stopping
            self._seen = None

    def _signature(self) -> object:
        """Return a value that changes whenever the engine writes something that is looked at."""
        size = self.log.stat().st_size if self.log.exists() else 0
        return size, tuple(sorted(_written(self.work)))

    def _report(self, *, is_last: bool) -> None:
        began = time.monotonic()
        if began < self._read_again and not is_last:
            self._seen = None
            return
        steps = list(self.adapter.steps(self.work, self.log))
        if self.scores is not None:
            self.scores.read()  # after the log: what a step has learnt from was written before it
        for step in steps:
            if self.last_step < step.step <= self.data.target_steps:
                self._tell(step)
        ended = time.monotonic()
        self._read_again = ended + (ended - began) / READING_SHARE

    def _tell(self, step: LoggedStep) -> None:
        if self.last_step == self.first_step:
            self.meter.metrics()
        counters = self._work_of(step)
        self.meter.add(counters)
        for name, count in counters.items():
            self._counters[name] = self._counters.get(name, 0) + count
        self.last_step = step.step
        target = self.data.target_steps
        if step.step % max(1, target // LOGGED_POINTS) and step.step != target:
            return
        metrics = {**step.metrics, **self.meter.metrics()}
        if self.scores is not None:
            metrics |= self.scores.metrics(range(self._reported + 1, step.step + 1))
        self._reported = step.step
        self.stage.report(step.step, target, "step", metrics, self._counters)
        self._counters = {}

    def _work_of(self, step: LoggedStep) -> dict[str, int]:
        """Return the ledger's counters of the steps since the last one that was logged."""
        missed = range(self.last_step + 1, step.step + 1)
        counters = [self.data.counters[number] for number in missed if number in self.data.counters]
        if counters:
            return _sum(counters)
        return {} if step.tokens is None else {"tokens": step.tokens}

    def _heed_stop(self) -> None:
        """Ask the engine to stop: SIGTERM where that makes it save; else it is ended at its next checkpoint.

        Nodes do not get a SIGTERM in the same step, and would save different ones.
        """
        if not self.stage.should_stop():
            return
        saves = self.adapter.saves_on_sigterm and self.nodes.count == 1
        if not self.stopping:
            self.stopping = True
            print("asked to stop", flush=True)
            if saves:
                self.process.ask_to_stop()
        elif self.saved and not saves:
            self._end(STOP)


def _sum(counters: list[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for item in counters:
        for name, count in item.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def _written(directory: Path, *, levels: int = 3) -> Iterator[tuple[str, int]]:
    """Names and times of the directories that an engine writes into, two levels deep, and of the files there.

    What it renames or removes meanwhile is left out; a glob would raise.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in list(entries):
            with suppress(OSError):
                yield entry.path, entry.stat().st_mtime_ns
                if levels > 1 and entry.is_dir():
                    yield from _written(Path(entry.path), levels=levels - 1)
