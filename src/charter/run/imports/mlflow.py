"""Runs that MLflow keeps: in a local directory, in its database or on its server."""

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import yaml

from charter.engines.common.adapter import LoggedStep
from charter.engines.huggingface.adapter import NAMES
from charter.errors import DataError, MissingExtraError, UsageError, how_to_install
from charter.run.imports.logs import FoundAttempt, FoundRun, attempts_of

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
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise MissingExtraError(
            f"reading a run from an MLflow server needs mlflow: {how_to_install('mlflow')}; "
            "a local mlruns directory needs nothing"
        ) from None
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
