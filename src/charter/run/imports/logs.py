"""Runs that somebody else started: what their logs, or MLflow, say of processes, steps and times."""

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import yaml

from charter.artifacts.fingerprint import sha256_file
from charter.engines import log_readers
from charter.engines.common.adapter import LoggedStep
from charter.engines.huggingface.adapter import NAMES, STATE_FILE, TrainerLog, find_state, read_state
from charter.errors import DataError, UsageError, needing

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


# -------- Runs that MLflow keeps: in a local directory, in its database or on its server.

STORE_NAMES = ("databricks", "databricks-uc", "uc")
"""What MLflow takes for a service without an address."""


def refuse_missing_place(tracking_uri: str) -> None:
    """UsageError for a file or directory that is not there, DataError for a database without runs; reads only."""
    scheme = urlsplit(tracking_uri).scheme.partition("+")[0]
    if scheme == "sqlite":
        path = Path(tracking_uri.partition(":///")[2].partition("?")[0])
        _refuse_missing(tracking_uri, there=path.is_file(), what=f"file {path}")
        if not _has_runs(path):
            raise DataError(f"--tracking-uri {tracking_uri}: {path} is no database of MLflow, and would be made one")
    elif scheme == "file" or not (scheme or tracking_uri in STORE_NAMES):
        path = Path(unquote(urlsplit(tracking_uri).path) if scheme == "file" else tracking_uri)
        _refuse_missing(tracking_uri, there=path.is_dir(), what=f"directory {path}")


def _refuse_missing(tracking_uri: str, *, there: bool, what: str) -> None:
    if not there:
        raise UsageError(f"--tracking-uri {tracking_uri}: there is no {what}, and MLflow would make it; correct it")


def _has_runs(path: Path) -> bool:
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        try:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone())
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return False


SYSTEM = "system/"
"""Samples of the machine, which count samples and not steps."""
FACTS: Mapping[str, str] = {
    "per_device_train_batch_size": "mbs",
    "max_length": "seq",
    "max_seq_length": "seq",
}
"""Parameters that transformers and TRL log to MLflow, by the column of a measurement that they fill."""
COUNTERS = ("num_input_tokens_seen", "num_tokens")
ABSENT = frozenset({"", "None", "-1", "0"})


@dataclass(frozen=True, kw_only=True)
class MlflowPoint:
    """One value of one metric."""

    step: int
    value: float
    time: float


@dataclass(frozen=True, kw_only=True)
class MlflowRun:
    """One run: its points by metric, its parameters."""

    run_id: str
    source: str
    content: str
    started_at: float | None
    ended_at: float | None
    points: Mapping[str, Sequence[MlflowPoint]]
    parameters: Mapping[str, str]
    finished: bool
    """As the run says of itself; one that still runs has not."""


def found_run(run: MlflowRun, *, notes: tuple[str, ...] = ()) -> FoundRun:
    """The run as processes with steps; times are those at which its metrics were logged."""
    attempts = _with_bounds(attempts_of(_steps(run.points)), run)
    if not attempts:
        raise DataError(f"{run.source}: the MLflow run {run.run_id} has no metric with steps of training")
    target = run.parameters.get("max_steps", "")
    return FoundRun(
        format="mlflow",
        source=run.source,
        content=run.content,
        attempts=attempts,
        target_step=int(target) if target.isdecimal() and int(target) else None,
        finished=run.finished,
        facts={
            column: run.parameters[name] for name, column in FACTS.items() if run.parameters.get(name, "") not in ABSENT
        },
        notes=notes,
    )


def _steps(points: Mapping[str, Sequence[MlflowPoint]]) -> list[LoggedStep]:
    """Steps in the order in which they were logged: one that comes again was logged by a resumed run."""
    rows: dict[tuple[float, int], dict[str, float]] = {}
    for name, series in points.items():
        if name.startswith(SYSTEM):
            continue
        for point in series:
            if point.step > 0 and math.isfinite(point.value):
                rows.setdefault((point.time, point.step), {})[NAMES.get(name, name)] = point.value
    logged: list[LoggedStep] = []
    for (time, step), values in sorted(rows.items()):
        if logged and logged[-1].step == step:
            logged[-1] = replace(logged[-1], metrics={**logged[-1].metrics, **values})
        else:
            logged.append(LoggedStep(step=step, metrics=values, time=time))
    return _with_tokens(logged)


def _with_tokens(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """The counter of tokens that TRL logs, as tokens of each step; a process that resumes may count from 0."""
    counted, before = [], 0.0
    for step in steps:
        metrics = dict(step.metrics)
        count = next((metrics.pop(name) for name in COUNTERS if name in metrics), None)
        tokens = None if count is None else round(count - before if count >= before else count)
        before = before if count is None else count
        counted.append(replace(step, metrics=metrics, tokens=tokens))
    return counted


def _with_bounds(attempts: tuple[FoundAttempt, ...], run: MlflowRun) -> tuple[FoundAttempt, ...]:
    """The first process begins, and the last one ends, when the run does."""
    if not attempts:
        return ()
    first = attempts[0]
    bounded = list(attempts)
    if run.started_at is not None and first.started_at is not None and first.seconds is not None:
        seconds = first.started_at + first.seconds - run.started_at
        bounded[0] = replace(first, first_step=0, started_at=run.started_at, seconds=seconds)
    if run.ended_at is not None and (began := bounded[-1].started_at) is not None and run.ended_at > began:
        bounded[-1] = replace(bounded[-1], seconds=run.ended_at - began)
    return tuple(bounded)


META = "meta.yaml"
LONGEST_LIST = 5
FINISHED = (3, "3", "FINISHED")
"""How `status` says that a run ended well."""


def run_directory(path: Path) -> Path | None:
    """The run that a path means: itself, or the only one below an `mlruns` directory; None where it is neither."""
    if not path.is_dir():
        return None
    if _is_run(path):
        return path
    runs = sorted(item for pattern in ("*", "*/*") for item in path.glob(pattern) if _is_run(item))
    if len(runs) > 1:
        some = ", ".join(str(item) for item in runs[:LONGEST_LIST])
        raise UsageError(f"{path} holds {len(runs)} MLflow runs; name one of them, such as {some}")
    return runs[0] if runs else None


def read_run_directory(directory: Path) -> FoundRun:
    """The run in one directory of a file store."""
    meta = _meta(directory / META)
    points: dict[str, list[MlflowPoint]] = {}
    notes: list[str] = []
    digest = hashlib.sha256()
    root = directory / "metrics"
    for path in sorted(item for item in root.rglob("*") if item.is_file()):
        name = path.relative_to(root).as_posix()
        content = path.read_bytes()
        digest.update(name.encode() + b"\0" + content)
        points[name], torn = _points(path, content.decode("utf-8", errors="replace"))
        notes += [f"metrics/{name}: its last line has no end and was left out"] if torn else []
    run = MlflowRun(
        run_id=str(meta.get("run_id") or directory.name),
        source=str(directory),
        content=digest.hexdigest(),
        started_at=_seconds(meta.get("start_time")),
        ended_at=_seconds(meta.get("end_time")),
        points=points,
        finished=meta.get("status") in FINISHED,
        parameters={
            path.name: path.read_text(encoding="utf-8", errors="replace")
            for path in sorted((directory / "params").glob("*"))
        },
    )
    return found_run(run, notes=tuple(notes))


def _is_run(path: Path) -> bool:
    return (path / META).is_file() and (path / "metrics").is_dir()


def _meta(path: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return document if isinstance(document, dict) else {}


def _points(path: Path, text: str) -> tuple[list[MlflowPoint], bool]:
    """The points of one metric, and whether its last line is torn; every other bad line is told, all at once."""
    *lines, last = text.split("\n")
    points, bad = [], []
    for number, line in enumerate(lines, start=1):
        point = _point(line)
        if point is None:
            bad.append(f"{path}:{number}: expected time in milliseconds, value and step, found {line[:60]!r}")
        else:
            points.append(point)
    if bad:
        raise DataError("\n".join(bad))
    return points, bool(last.strip())


def _point(line: str) -> MlflowPoint | None:
    cells = line.split()
    try:
        return MlflowPoint(
            time=int(cells[0]) / 1000, value=float(cells[1]), step=int(cells[2]) if len(cells) > 2 else 0
        )
    except (IndexError, ValueError, OverflowError):
        return None


def _seconds(milliseconds: object) -> float | None:
    try:
        return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds else None
    except OverflowError:  # a whole number beyond every float
        return None


QUIET = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def read_run_on_server(run_id: str, tracking_uri: str) -> FoundRun:
    """The run of that id; credentials come from MLflow's own environment variables."""
    refuse_missing_place(tracking_uri)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    what = "reading a run from an MLflow server needs mlflow"
    with needing(what, "mlflow", otherwise="; a local mlruns directory needs nothing"):
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    try:
        run = _read(MlflowClient(tracking_uri=tracking_uri), run_id)
    except MlflowException as error:
        raise DataError(f"the MLflow run {run_id} at {tracking_uri}: {str(error).splitlines()[0]}") from None
    return found_run(run)


def _read(client: Any, run_id: str) -> MlflowRun:
    run = client.get_run(run_id)
    points = {
        name: [
            MlflowPoint(step=item.step, value=item.value, time=item.timestamp / 1000)
            for item in client.get_metric_history(run_id, name)
        ]
        for name in sorted(run.data.metrics)
    }
    values = {name: [[item.step, item.value, item.time] for item in series] for name, series in points.items()}
    return MlflowRun(
        run_id=run_id,
        source=f"MLflow run {run_id}",
        content=hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest(),
        started_at=run.info.start_time / 1000 if run.info.start_time else None,
        ended_at=run.info.end_time / 1000 if run.info.end_time else None,
        points=points,
        finished=run.info.status == "FINISHED",
        parameters=dict(run.data.params),
    )
