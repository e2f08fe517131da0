"""Logs of runs that somebody else started: what they say of processes, steps and times."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median

from charter.artifacts.fingerprint import sha256_file
from charter.engines import log_readers
from charter.engines.common.adapter import LoggedStep
from charter.engines.huggingface.adapter import STATE_FILE, TrainerLog, find_state, read_state
from charter.errors import DataError, UsageError

Format = str
"""What wrote a run: an engine with a reader of its logs, the Trainer of transformers, or MLflow."""
TRAINER_FORMATS = ("transformers", "trl")
"""Written by the Trainer of transformers."""
MLFLOW = "mlflow"
WARM_UP_STEPS = 2
"""Left out of the seconds of a step where there are enough others: compiling, filling caches."""


@dataclass(frozen=True, kw_only=True)
class FoundAttempt:
    """One process of a run, by the steps that it logged."""

    first_step: int
    """So many steps were finished when it began."""
    steps: tuple[LoggedStep, ...]
    seconds: float | None = None
    """Of the whole process, where the log tells."""
    started_at: float | None = None

    @property
    def last_step(self) -> int:
        """The last step that it logged."""
        return self.steps[-1].step if self.steps else self.first_step

    @property
    def tokens(self) -> int:
        """Those that it counted."""
        return sum(step.tokens or 0 for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run with all that is known of it."""

    format: Format
    source: str
    """Where it was read from, for people."""
    content: str
    """SHA-256 of what was read."""
    attempts: tuple[FoundAttempt, ...]
    target_step: int | None = None
    finished: bool = True
    """False where the log itself says that it failed or was stopped."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Columns of a measurement that the log itself knows."""
    notes: tuple[str, ...] = ()
    """What a reader must know of how it was read."""

    @property
    def last_step(self) -> int:
        """The furthest step."""
        return max(attempt.last_step for attempt in self.attempts)

    @property
    def is_done(self) -> bool:
        """Return True if it reached its target step; a log that does not tell the target counts as finished."""
        return self.finished and (self.target_step is None or self.last_step >= self.target_step)

    @property
    def identity(self) -> str:
        """The hash of its first step as it was logged: it stays when the log grows, and when the file moves."""
        first = next((step for attempt in self.attempts for step in attempt.steps), None)
        logged = None if first is None else [first.step, dict(sorted(first.metrics.items())), first.tokens, first.time]
        return hashlib.sha256(json.dumps([self.format, logged]).encode()).hexdigest()


def attempts_of(steps: Iterable[LoggedStep]) -> tuple[FoundAttempt, ...]:
    """Steps divided into processes: one that is not above the step before it was logged by a resumed run."""
    groups: list[list[LoggedStep]] = []
    for step in steps:
        if not groups or step.step <= groups[-1][-1].step:
            groups.append([])
        groups[-1].append(step)
    return tuple(_attempt(group) for group in groups)


def _attempt(steps: Sequence[LoggedStep]) -> FoundAttempt:
    gap = round(median(late.step - early.step for early, late in pairwise(steps))) if len(steps) > 1 else 1
    first = max(0, steps[0].step - gap)
    clocks = [step.time for step in steps if step.time is not None]
    if len(clocks) == len(steps):
        before = _seconds_before(steps, gap)
        return FoundAttempt(
            first_step=first, steps=tuple(steps), seconds=clocks[-1] - clocks[0] + before, started_at=clocks[0] - before
        )
    return FoundAttempt(first_step=first, steps=tuple(steps), seconds=summed_seconds(first, steps))


def summed_seconds(first_step: int, steps: Sequence[LoggedStep]) -> float | None:
    """The time of all steps by that of each logged one, which stands for those since the line before it."""
    ends = (first_step, *(step.step for step in steps))
    spent = [(step.seconds, end - before) for step, (before, end) in zip(steps, pairwise(ends), strict=True)]
    timed = [seconds * count for seconds, count in spent if seconds is not None]
    return sum(timed) if timed and len(timed) == len(spent) else None


def _seconds_before(steps: Sequence[LoggedStep], gap: int) -> float:
    """Return the seconds of the first line's steps: as it tells, else as long as those of the others."""
    if steps[0].seconds is not None:
        return steps[0].seconds * gap
    gaps = [(late.time or 0.0) - (early.time or 0.0) for early, late in pairwise(steps)]
    return median(gaps) if gaps else 0.0


def seconds_per_step(run: FoundRun) -> tuple[float, str] | None:
    """Seconds of one optimizer step (of a rollout, in reinforcement learning), and how they were found."""
    logged, between = [], []
    for attempt in run.attempts:
        own = [step.seconds for step in attempt.steps if step.seconds is not None]
        logged += own[WARM_UP_STEPS:] if len(own) > 2 * WARM_UP_STEPS else own
        clocks = [(step.step, step.time) for step in attempt.steps if step.time is not None]
        gaps = [(end - start) / (late - early) for (early, start), (late, end) in pairwise(clocks)]
        between += gaps[1:] if len(gaps) > 2 * WARM_UP_STEPS else gaps
    for seconds, how in ((logged, "median of the logged step times"), (between, "median between logged steps")):
        if seconds:
            return median(seconds), f"{how}, {len(seconds)} of them"
    timed = [(item.seconds, item.last_step - item.first_step) for item in run.attempts if item.seconds is not None]
    steps = sum(count for _, count in timed)
    if steps <= 0:
        return None
    return sum(seconds for seconds, _ in timed) / steps, f"mean over {steps} steps, start and checkpoints included"


JSON_LINES, EVENTS = ".jsonl", "events.out.tfevents.*"
LOG_SUFFIXES = (".log", ".txt", ".jsonl", ".out")
PROBED_LINES = 50_000
"""So far into a log its format is looked for."""


def formats() -> tuple[Format, ...]:
    """Return everything that can be read."""
    return (*TRAINER_FORMATS, *log_readers(), MLFLOW)


def read_engine_log(path: Path, format: Format | None = None) -> FoundRun:
    """The run that a log tells of; without a format the one whose reader finds steps in it."""
    if path.is_dir():
        return _read_events(path)
    lines, notes = _lines(path)
    if format is not None and format not in (readers := log_readers()):
        raise UsageError(f"logs of {format} cannot be read; --format of a log is {', '.join(readers)}")
    chosen = format or _format_of(path, lines)
    attempts = attempts_of(steps_of(chosen, path, lines))
    if not attempts:
        raise DataError(f"{path}: no finished step of {chosen} is in its {len(lines)} lines; give another --format")
    return FoundRun(format=chosen, source=str(path), content=sha256_file(path), attempts=attempts, notes=notes)


def steps_of(format: Format, path: Path, lines: Iterable[str]) -> Iterable[LoggedStep]:
    """The steps in the log of an engine: of what it printed, or of the JSON lines that it wrote."""
    reader = log_readers()[format]
    if reader.json_lines is not None and path.suffix == JSON_LINES:
        return reader.json_lines(path)
    return reader.console(lines)


def _read_events(path: Path) -> FoundRun:
    """A directory of TensorBoard events, which one engine writes."""
    files = sorted(path.rglob(EVENTS))
    format, events = next((name, reader.events) for name, reader in log_readers().items() if reader.events is not None)
    attempts = attempts_of(events(path)) if files else ()
    if not attempts:
        logs = sorted(item.name for item in path.iterdir() if item.suffix in LOG_SUFFIXES)
        hint = f"name one of {', '.join(logs[:5])}" if logs else "name the file that the run printed to"
        raise UsageError(f"{path} is a directory without a trainer_state.json, an MLflow run or events; {hint}")
    content = sha256("".join(sha256_file(file) for file in files).encode()).hexdigest()
    return FoundRun(format=format, source=str(path), content=content, attempts=attempts)


def _lines(path: Path) -> tuple[list[str], tuple[str, ...]]:
    """All whole lines, and what is said of a last one that has no end."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; name the log of a run") from None
    lines = text.split("\n")
    torn = lines.pop()
    said = (f"line {len(lines) + 1} has no end and was left out: the log was still being written, or was cut",)
    return lines, said if torn.strip() else ()


def _format_of(path: Path, lines: list[str]) -> Format:
    matches: list[Format] = [
        name for name in log_readers() if next(iter(steps_of(name, path, lines[:PROBED_LINES])), None) is not None
    ]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(formats())
    if not matches:
        raise UsageError(
            f"{path}: neither a trainer_state.json nor a log with steps of {', '.join(log_readers())}; "
            f"say what it is with --format ({names})"
        )
    raise UsageError(f"{path} can be read as {' and as '.join(matches)}; say which with --format")


TRL_FIGURES = frozenset({"token_accuracy", "accuracy", "reward", "reward_margin", "kl", "entropy"})
"""Figures that TRL's trainers log and the plain Trainer does not."""


def is_trainer_state(path: Path) -> bool:
    """Return True if a path is a state (of any name in `.json`), or an output directory that holds one."""
    return path.suffix == Path(STATE_FILE).suffix if path.is_file() else path.is_dir() and find_state(path) is not None


def read_trainer_run(path: Path) -> FoundRun:
    """The run that a state, or the newest state of an output directory, tells of."""
    state = path if path.is_file() else find_state(path)
    if state is None:
        raise DataError(f"{path} holds no {STATE_FILE}, nor does a checkpoint-* below it; name the file itself")
    log = read_state(state)
    if not log.steps:
        raise DataError(f"{state} has logged no training step; a run with `logging_steps: 1` tells the most")
    trl = any(name in TRL_FIGURES for step in log.steps for name in step.metrics)
    return FoundRun(
        format="trl" if trl else "transformers",
        source=str(state),
        content=sha256_file(state),
        attempts=_attempts(log),
        target_step=log.target_step,
        facts={} if log.micro_batch is None else {"mbs": str(log.micro_batch)},
    )


def _attempts(log: TrainerLog) -> tuple[FoundAttempt, ...]:
    """One for every process; the runtime that the state holds is that of the last one."""
    ends = (*log.starts[1:], log.last_step)
    attempts = []
    for number, (start, end) in enumerate(zip(log.starts, ends, strict=True)):
        steps = tuple(step for step in log.steps if start < step.step <= end)
        last = number == len(log.starts) - 1
        seconds = log.runtime_seconds if last else None
        if seconds is None:
            seconds = summed_seconds(start, steps)
        attempts.append(FoundAttempt(first_step=start, steps=steps, seconds=seconds))
    return tuple(attempts)
