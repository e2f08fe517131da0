"""A stage's directory as its own process sees it: the job, checkpoints, progress, the outputs."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from charter.artifacts import durable, faults
from charter.artifacts.batch_files import BATCHES
from charter.artifacts.checkpoints import Checkpoint, Checkpoints, Position
from charter.artifacts.group import GROUP, PUBLISH, SAVE, Heartbeat, rank_of_process
from charter.artifacts.job import Job, read_job
from charter.artifacts.record import OUTPUTS, RECORD_FILE, record_of, write_record
from charter.artifacts.sample_prompts import SAMPLES_FILE
from charter.artifacts.whole_dir import publish_dir
from charter.errors import StageError, loads_json

METRICS, PROGRESS = "metrics.jsonl", "progress.json"
PACE_MARKS = 64
"""Marks of steps that a process keeps: the middle is met to about 3 %."""
PROGRESS_EVERY_SECONDS = 0.5
OTHER_CLOCK_SECONDS = 60.0
"""Most that the clock of a file server may be behind this machine's (judgement: well-kept clocks differ by less)."""


class RecentPace:
    """Pace of the later half of the steps that a process has made: no start in it, and what changes is followed.

    >>> pace = RecentPace()
    >>> for step in range(9):
    ...     pace.note(600.0 + 5.0 * min(step, 4) + 1.0 * max(0, step - 4), step)
    >>> pace.recent()
    (4.0, 4)
    """

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []
        self._last = (0.0, 0)
        self._apart = 1

    def note(self, seconds: float, step: int) -> None:
        """Remember when a step ended; marks are twice as far apart when many, and begin anew at a roll-back."""
        if step < self._last[1]:
            self._marks, self._apart = [], 1
        self._last = (seconds, step)
        if len(self._marks) >= PACE_MARKS:
            self._marks, self._apart = self._marks[::2], 2 * self._apart
        if not self._marks or step >= self._marks[-1][1] + self._apart:
            self._marks.append(self._last)

    def recent(self) -> tuple[float, int]:
        """Seconds and steps since the mark that is nearest before the middle; zeros before a second step."""
        if not self._marks:
            return 0.0, 0
        (seconds, step), first = self._last, self._marks[0][1]
        began, at = next(mark for mark in reversed(self._marks) if mark[1] <= (first + step) / 2)
        return seconds - began, step - at


class StageDir:
    """Directory of a stage: everything durable that a stage module does goes through this object.

    A `step` is the unit of durability: an optimizer step, a rollout, a batch of records. Reports and
    checkpoints carry the number of finished steps.
    """

    def __init__(self, path: Path, *, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.path = path
        self.job: Job = read_job(path)
        self.checkpoints = Checkpoints(path, self.job)
        self._should_stop = should_stop
        self._heartbeat = Heartbeat(path, rank_of_process())
        self._counters: dict[str, int] = {}
        self._pace = RecentPace()
        self._last_progress = float("-inf")
        self._unwritten: dict[str, Any] = {}

    @property
    def outputs(self) -> Path:
        """Directory of the published outputs."""
        return self.path / OUTPUTS

    def should_stop(self) -> bool:
        """Return True if the stage was asked to stop.

        Save a checkpoint at the next safe point and return from `run`.
        """
        return self._should_stop()

    def of_run(self, name: str) -> Path:
        """Return a directory that all stages of the run share; below this one where the stage is in no run."""
        place = self.path.parent
        return (place.parent if place.name == "stages" else self.path) / name

    def set_aside_since(self, since: float) -> None:
        """Set aside the batches and checkpoints written since a time (seconds since 1970): none is used again.

        A minute earlier, as the clock of a file server may be another.
        """
        for directory in (self.path / BATCHES, self.checkpoints.directory):
            for path in sorted(directory.glob("*")) if directory.is_dir() else ():
                with suppress(FileNotFoundError):  # another process of the stage was first
                    if not durable.ASIDE.fullmatch(path.name) and path.stat().st_mtime >= since - OTHER_CLOCK_SECONDS:
                        durable.move_aside(path, "undone")

    def beat(self, what: str) -> None:
        """Say that this process lives and begins `what`: a step or a part of one; or `save`, which may take long.

        Cheap: call it in every process, at every step and inside long ones.
        """
        self._heartbeat.beat(what)

    def alive(self) -> None:
        """Say that this process is still at what it began; as cheap."""
        self._heartbeat.alive()

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint whose every file has its recorded hash; None to start at the beginning.

        A damaged one is set aside with one line in the log, and the one before it is taken. Metrics of steps
        that will be done again are cut off. A checkpoint of another stage or fingerprint is refused.
        """
        self.sweep()
        checkpoint = self.checkpoints.newest()
        self.cut_metrics(checkpoint.step if checkpoint else 0)
        return checkpoint

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Publish a checkpoint of `step` finished steps; `write` fills the directory it is given.

        Old ones are removed only when the new one is durable, so that `keep_last` verified ones stay.
        """
        position = Position(step)
        target = self.checkpoints.path_of(position)
        if target.exists():
            return
        faults.boundary(self.job.stage, "checkpoint", step, "before")
        self.beat(SAVE)
        publish_dir(
            target,
            write,
            manifest=lambda files: self.checkpoints.manifest_text(position, files),
            expected_bytes=self.checkpoints.expected_bytes(),
        )
        faults.boundary(self.job.stage, "checkpoint", step, "after")
        self.checkpoints.published(position)
        self.beat(f"after checkpoint {position}")

    def sweep(self) -> None:
        """Remove what a crash left half-written; for the process that publishes, before it reads anything."""
        self.checkpoints.sweep()
        durable.sweep(self.path)

    def claim_publication(self) -> bool:
        """Return True if this task of several that work apart is the one that publishes: the first that asks."""
        group = os.environ.get(GROUP, "charter")
        content = durable.json_text({"pid": os.getpid()}).encode()
        return durable.write_new(self.path / f"publisher-{group}.json", content)

    def publish_outputs(
        self, write: Callable[[Path], None], *, step: int, target_step: int, notes: tuple[str, ...] = ()
    ) -> None:
        """Publish the outputs, then the record: after this the stage is done."""
        if step != target_step:
            raise StageError(
                f"stage {self.job.stage} stopped at step {step} of {target_step}: it has no result to publish"
            )
        faults.boundary(self.job.stage, "outputs", step, "before")
        self.beat(PUBLISH)
        if self.outputs.exists():
            durable.discard_dir(self.outputs)
        facts = publish_dir(self.outputs, write)
        if not facts:
            raise StageError(f"stage {self.job.stage} published no output files")
        faults.boundary(self.job.stage, "outputs", step, "after")
        hashes = {relative: fact.sha256 for relative, fact in facts.items()}
        write_record(self.path, record_of(self.job, outputs=hashes, step=step, target_step=target_step, notes=notes))
        faults.boundary(self.job.stage, "record", step, "after")

    @property
    def is_done(self) -> bool:
        """Return True if the record is written."""
        return (self.path / RECORD_FILE).exists()

    def report(
        self,
        step: int,
        target_step: int,
        unit: str,
        metrics: Mapping[str, float],
        counters: Mapping[str, int] | None = None,
    ) -> None:
        """Say how far the stage is: one line in `metrics.jsonl`, and `progress.json` for whoever watches.

        `step` steps are finished. `counters` (tokens, pairs, episodes, records) count the work since the
        previous report, not since the start: the ledger adds them up per attempt, and redone work was work
        too.
        """
        now = time.time()
        self.beat(f"{unit} {step + 1}")
        counters = counters or {}
        for name, count in counters.items():
            self._counters[name] = self._counters.get(name, 0) + count
        durable.append_line(self.path / METRICS, {"step": step, "time": now, **metrics, **counters})
        if rank_of_process() == 0:
            self._write_progress(step, target_step, unit, metrics, now)
        faults.boundary(self.job.stage, "step", step, "after")

    def _write_progress(self, step: int, target: int, unit: str, metrics: Mapping[str, float], now: float) -> None:
        clock = time.monotonic()
        self._pace.note(clock, step)
        seconds, steps = self._pace.recent()
        self._unwritten = {
            "step": step,
            "target_step": target,
            "unit": unit,
            "rate_per_second": steps / seconds if steps > 0 and seconds > 0 else None,
            "rate_steps": steps,
            "metrics": dict(metrics),
            "counters": self._counters,
            "pid": os.getpid(),
            "updated_at": now,
        }
        if clock - self._last_progress >= PROGRESS_EVERY_SECONDS or step == target:
            self._last_progress = clock
            self.write_last_progress()

    def write_last_progress(self) -> None:
        """Write the newest report to `progress.json` if it was too soon after the one before; for a process that ends.

        Whoever looks at a stage that failed or stopped then sees its last step, not one of half a second earlier.
        """
        if self._unwritten:
            durable.write_hint(self.path / PROGRESS, self._unwritten)
            self._unwritten = {}

    def cut_metrics(self, step: int) -> int:
        """Cut the lines of steps after `step`, which will be done again, and a torn last line; return the last step."""
        return _cut_lines(self.path / METRICS, step)

    def cut_samples(self, step: int) -> None:
        """Cut the answers for people to read of steps after `step`, likewise."""
        _cut_lines(self.path / SAMPLES_FILE, step)


def _cut_lines(path: Path, step: int) -> int:
    if not path.exists():
        return 0
    keep_bytes, last = 0, 0
    with path.open("rb") as file:
        for line in file:
            if (of := _step_of(line)) > step:
                break
            keep_bytes, last = keep_bytes + len(line), int(of)
    if keep_bytes < path.stat().st_size:
        durable.truncate(path, keep_bytes)
    return last


def _step_of(line: bytes) -> float:
    """The step of a line; a torn or foreign line counts as one to cut."""
    try:
        return float(loads_json(line)["step"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")
