"""A stage's directory as its own process sees it: the job, checkpoints, progress, the outputs."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable, faults
from charter.artifacts.job import Job, read_job
from charter.artifacts.record import OUTPUTS, RECORD_FILE, record_of, write_record
from charter.errors import DataError, StageError

STATE, METRICS, PROGRESS = "state", "metrics.jsonl", "progress.json"
CHECKPOINT_SCHEMA = "charter.checkpoint/1"
PROGRESS_EVERY_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint."""

    step: int
    path: Path


class StageDir:
    """What a stage module gets: everything durable it does goes through this object.

    A `step` is the unit of durability: an optimizer step, a rollout, a batch of records. Reports and
    checkpoints carry the number of finished steps.
    """

    def __init__(self, path: Path, *, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.path = path
        self.job: Job = read_job(path)
        self._should_stop = should_stop
        self._counters: dict[str, int] = {}
        self._first_report: tuple[float, int] | None = None
        self._last_progress = float("-inf")

    @property
    def outputs(self) -> Path:
        """Where the published outputs lie."""
        return self.path / OUTPUTS

    def should_stop(self) -> bool:
        """Whether the stage was asked to stop.

        Save a checkpoint at the next safe point and return from `run`.
        """
        return self._should_stop()

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint whose every file has its recorded hash; None to start at the beginning.

        A damaged one is set aside with one line in the log, and the one before it is taken. Metrics of steps
        that will be done again are cut off. A checkpoint of another stage or fingerprint is refused.
        """
        state = self.path / STATE
        durable.sweep(state)
        durable.sweep(self.path)
        found = None
        for path in sorted(state.glob("step-????????*"), reverse=True):
            if path.is_dir() and "." not in path.name:
                found = self._verified(path)
            if found is not None:
                break
        self._cut_metrics(found.step if found else 0)
        return found

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Publish a checkpoint of `step` finished steps; `write` fills the directory it is given.

        Old ones are removed only when the new one is durable, so that `keep_last` verified ones stay.
        """
        target = self.path / STATE / f"step-{step:08d}"
        if target.exists():
            return
        faults.boundary(self.job.stage, "checkpoint", step, "before")
        last = self._checkpoint_paths()[-1:]
        durable.publish_dir(
            target,
            write,
            manifest=lambda files: self._manifest(step, files),
            expected_bytes=sum(_directory_bytes(path) for path in last),
        )
        faults.boundary(self.job.stage, "checkpoint", step, "after")
        for path in self._checkpoint_paths()[: -self.job.keep_last]:
            durable.discard_dir(path)

    def publish_outputs(self, write: Callable[[Path], None], *, step: int, target_step: int) -> None:
        """Publish the outputs, then the record: after this the stage is done."""
        if step != target_step:
            raise StageError(
                f"stage {self.job.stage} stopped at step {step} of {target_step}: it has no result to publish"
            )
        faults.boundary(self.job.stage, "outputs", step, "before")
        if self.outputs.exists():
            durable.discard_dir(self.outputs)
        facts = durable.publish_dir(self.outputs, write)
        if not facts:
            raise StageError(f"stage {self.job.stage} published no output files")
        faults.boundary(self.job.stage, "outputs", step, "after")
        hashes = {relative: fact.sha256 for relative, fact in facts.items()}
        write_record(self.path, record_of(self.job, outputs=hashes, step=step, target_step=target_step))
        faults.boundary(self.job.stage, "record", step, "after")

    @property
    def is_done(self) -> bool:
        """Whether the record is written."""
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
        counters = counters or {}
        for name, count in counters.items():
            self._counters[name] = self._counters.get(name, 0) + count
        durable.append_line(self.path / METRICS, {"step": step, "time": now, **metrics, **counters})
        self._write_progress(step, target_step, unit, metrics, now)
        faults.boundary(self.job.stage, "step", step, "after")

    def _write_progress(self, step: int, target: int, unit: str, metrics: Mapping[str, float], now: float) -> None:
        clock = time.monotonic()
        if self._first_report is None:
            self._first_report = (clock, step)
        if clock - self._last_progress < PROGRESS_EVERY_SECONDS and step != target:
            return
        self._last_progress = clock
        seconds, steps = clock - self._first_report[0], step - self._first_report[1]
        durable.write_hint(
            self.path / PROGRESS,
            {
                "step": step,
                "target_step": target,
                "unit": unit,
                "rate_per_second": steps / seconds if steps > 0 and seconds > 0 else None,
                "metrics": dict(metrics),
                "counters": self._counters,
                "pid": os.getpid(),
                "updated_at": now,
            },
        )

    def _checkpoint_paths(self) -> list[Path]:
        return sorted(path for path in (self.path / STATE).glob("step-????????*") if "." not in path.name)

    def _manifest(self, step: int, files: Mapping[str, durable.FileFact]) -> dict[str, Any]:
        return {
            "schema": CHECKPOINT_SCHEMA,
            "stage": self.job.stage,
            "fingerprint": self.job.fingerprint,
            "step": step,
            "frozen": dict(self.job.frozen),
            "files": {relative: asdict(fact) for relative, fact in files.items()},
        }

    def _verified(self, path: Path) -> Checkpoint | None:
        wrong, manifest = _damage(path)
        if wrong is None and manifest["fingerprint"] != self.job.fingerprint:
            raise DataError(
                f"{path} is a checkpoint of another run: stage {manifest['stage']} with fingerprint "
                f"{manifest['fingerprint'][:8]}, where stage {self.job.stage} with "
                f"{self.job.fingerprint[:8]} is expected\n"
                "  move it away to start this stage without it; nothing was changed"
            )
        if wrong is None:
            return Checkpoint(step=int(manifest["step"]), path=path)
        aside = durable.move_aside(path, "damaged")
        print(
            f"checkpoint {path.name} is damaged ({wrong}); kept as {aside.name}, taking the one before",
            file=sys.stderr,
        )
        return None

    def _cut_metrics(self, step: int) -> None:
        """Cut the lines of steps that will be done again, and a torn last line."""
        path = self.path / METRICS
        if not path.exists():
            return
        keep_bytes = 0
        with path.open("rb") as file:
            for line in file:
                if _step_of(line) > step:
                    break
                keep_bytes += len(line)
        if keep_bytes < path.stat().st_size:
            durable.truncate(path, keep_bytes)


def _damage(path: Path) -> tuple[str | None, dict[str, Any]]:
    """What is wrong with a checkpoint, or None and its manifest."""
    try:
        manifest = durable.read_json(path / "manifest.json")
        files = {relative: durable.FileFact(**fact) for relative, fact in manifest["files"].items()}
        _ = manifest["fingerprint"], manifest["stage"], int(manifest["step"])
    except DataError as error:
        return str(error), {}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its manifest is incomplete: {error}", {}
    for relative, fact in files.items():
        file = path / relative
        if not file.is_file():
            return f"{relative} is missing", {}
        if file.stat().st_size != fact.bytes:
            return f"{relative} has {file.stat().st_size} bytes, recorded {fact.bytes}", {}
        if durable.sha256_file(file) != fact.sha256:
            return f"{relative} does not have its recorded sha256", {}
    return None, manifest


def _step_of(line: bytes) -> float:
    """The step of a metrics line; a torn or foreign line counts as one to cut."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _directory_bytes(path: Path) -> int:
    return sum((path / name).stat().st_size for name in durable.files_under(path))
