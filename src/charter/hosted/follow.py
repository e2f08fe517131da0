"""Watches a running engine for its stage: steps are reported, checkpoints taken over, a stop is passed on."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from charter.artifacts.stage_dir import StageDir
from charter.engines.common.adapter import EngineAdapter
from charter.engines.common.logged import LoggedStep
from charter.hosted.data_files import DataFiles
from charter.hosted.engine_process import EngineProcess
from charter.hosted.log_pump import LogPump
from charter.hosted.workplace import take_over
from charter.train.meter import Meter

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
    first_step: int
    last_step: int = field(init=False)
    """Steps that the engine has logged."""
    saved: bool = False
    """Whether a checkpoint was taken over since the stage was asked to stop."""
    stopping: bool = False
    _counters: dict[str, int] = field(default_factory=dict)
    _seen: object = None
    _read_again: float = 0.0

    def __post_init__(self) -> None:
        self.last_step = self.first_step

    def run(self) -> int:
        """Follow the engine to its end; its exit code."""
        while (code := self.process.poll()) is None:
            self._look()
            self._heed_stop()
            time.sleep(POLL_SECONDS)
        self._seen = None
        self._look(hurry=True)
        return code

    def _look(self, *, hurry: bool = False) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        self.stage.alive()
        self.pump.pump()
        self._report(hurry=hurry)
        if take_over(self.stage, self.adapter, self.work):
            self.saved = self.saved or self.stopping
            self._seen = None

    def _signature(self) -> object:
        """Return a value that changes whenever the engine writes something that is looked at."""
        size = self.log.stat().st_size if self.log.exists() else 0
        return size, tuple(sorted(_written(self.work)))

    def _report(self, *, hurry: bool) -> None:
        began = time.monotonic()
        if began < self._read_again and not hurry:
            self._seen = None
            return
        for step in self.adapter.steps(self.work, self.log):
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
        """Ask the engine to stop: SIGTERM where that makes it save; else it is ended at its next checkpoint."""
        if not self.stage.should_stop():
            return
        if not self.stopping:
            self.stopping = True
            print("asked to stop", flush=True)
            if self.adapter.saves_on_sigterm:
                self.process.ask_to_stop()
        elif self.saved and not self.adapter.saves_on_sigterm:
            self.process.end()


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
