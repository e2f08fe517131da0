"""MLflow, Weights & Biases and TensorBoard: what a run is sent to, each so that the same rows twice leave one point.

MLflow takes runs by its REST interface or in its database.

Weights & Biases takes them online or as files for `wandb sync`; stages are runs of one group, and so is a sweep. Its
library sends in the background and cannot say what has arrived. So a row's number is its `_step`, which the server
takes only once and in order; after a lost process the server says how far it is, and the rest is told again. Offline,
the files that a lost process left are thrown away and written anew.

TensorBoard reads event files that Charter writes itself, one directory per stage. The file's length before each batch
is in a sidecar, and what a kill left behind it is cut before more is written. So a batch is there once. Steps that come
again with another result make the reader forget those that were there, as it does after a restart of any program.
"""

import getpass
import hashlib
import io
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.stage_state import TrackerState
from charter.errors import needing
from charter.spec.sections import MlflowSettings, WandbSettings
from charter.tracking.base import Input, MetricRow, RunFacts, Secrets, is_reference

KEY_TAG = "charter.key"
METRICS_PER_CALL, PARAMETERS_PER_CALL, TAGS_PER_CALL = 1000, 100, 100
"""What the server takes at most (MLflow 3.17, its checks of requests)."""
LONGEST_VALUE, LONGEST_TAG, LONGEST_DIGEST = 6000, 8000, 36
STATES: Mapping[TrackerState, str] = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "killed": "KILLED",
}
REQUEST_SECONDS = 10
"""A server that has not answered by then counts as dead, and is asked again later."""
QUIET = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Retries are ours, since a retry inside the library could not be interrupted at the end of a run."""


class MlflowDestination:
    """One MLflow server or database.

    A metric is identified by run, name, step, time and value there, so telling a row again changes nothing; a run whose
    number was lost is found by its tag `charter.key`.
    """

    def __init__(self, client: Any, *, experiment: str, artifacts: str | None) -> None:
        self._client = client
        self._experiment_name, self._artifacts = experiment, artifacts
        self._experiment: str | None = None

    def open_run(self, facts: RunFacts, *, parent: str | None, known: str | None) -> str:
        """Find the run or make it."""
        if known is not None:
            return known
        experiment = self._experiment_id()
        runs = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{facts.key}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        tags = {KEY_TAG: facts.key, "mlflow.user": _user(), "mlflow.source.name": "charter"}
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        run = self._client.create_run(
            experiment, start_time=_milliseconds(facts.started_at), run_name=facts.name, tags=tags
        )
        return str(run.info.run_id)

    def describe(self, run: str, facts: RunFacts) -> None:
        """Parameters, tags, inputs as data sets."""
        tags = {**facts.tags, **({"mlflow.note.content": facts.note} if facts.note else {})}
        for some in _chunks(list(tags.items()), TAGS_PER_CALL):
            self._client.log_batch(run, tags=[_tag(name, value) for name, value in some])
        sent_before = self._client.get_run(run).data.params
        new = [(name, value) for name, value in facts.parameters.items() if name not in sent_before]
        for some in _chunks(new, PARAMETERS_PER_CALL):
            self._client.log_batch(run, params=[_parameter(name, value) for name, value in some])
        if facts.inputs:
            self._client.log_inputs(run, datasets=[_dataset(item) for item in facts.inputs])

    def log(self, run: str, rows: Sequence[MetricRow]) -> None:
        """Metrics, as many per call as the server takes."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(row.time * 1000), row.step) for row in rows for name, value in row.values.items()
        ]
        for some in _chunks(metrics, METRICS_PER_CALL):
            self._client.log_batch(run, metrics=some)

    def rows_lost_from(self, run: str, *, told: int, sure: int) -> int | None:
        """Nothing: a call returns when they are in the database."""
        return None

    def attach(self, run: str, name: str, path: Path) -> None:
        """Upload a file under a name."""
        place, _, last = name.rpartition("/")
        with tempfile.TemporaryDirectory() as directory:
            named = Path(directory) / last
            named.symlink_to(path.resolve())
            self._client.log_artifact(run, str(named), place or None)

    def set_state(self, run: str, state: TrackerState, *, ended_at: float | None) -> None:
        """Running, or how it ended."""
        if state == "running":
            self._client.update_run(run, status=STATES[state])
        else:
            self._client.set_terminated(run, STATES[state], _milliseconds(ended_at))

    def close(self) -> None:
        """Nothing is under way between two calls."""

    def _experiment_id(self) -> str:
        if self._experiment is None:
            experiment = self._client.get_experiment_by_name(self._experiment_name)
            if experiment is None:
                self._experiment = self._client.create_experiment(self._experiment_name, self._artifacts)
            else:
                self._experiment = experiment.experiment_id
        return str(self._experiment)


def open_mlflow(settings: MlflowSettings, *, run_name: str, root: Path, directory: Path, secrets: Secrets) -> Any:
    """The destination that settings name; nothing is sent yet. A SQLite file in `directory` where none is named."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for variable, reference, what in (
        ("MLFLOW_TRACKING_PASSWORD", settings.password, "the password of MLflow"),
        ("MLFLOW_TRACKING_TOKEN", settings.token, "the token of MLflow"),
    ):
        if reference is not None:
            os.environ[variable] = secrets.read(reference, of=what)
    if settings.username is not None:
        os.environ["MLFLOW_TRACKING_USERNAME"] = settings.username
    with needing("tracking names mlflow, which is not installed", "mlflow"):
        from mlflow import MlflowClient
    uri = _uri(settings, root=root, directory=directory, secrets=secrets)
    local = None if uri.startswith("http") else (directory / "mlflow-artifacts").resolve().as_uri()
    return MlflowDestination(
        MlflowClient(tracking_uri=uri), experiment=settings.experiment or run_name, artifacts=local
    )


def _uri(settings: MlflowSettings, *, root: Path, directory: Path, secrets: Secrets) -> str:
    setting = settings.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if setting is None:
        return f"sqlite:///{(directory / 'mlflow.db').resolve()}"
    uri = secrets.read(setting, of="the address of MLflow") if is_reference(setting) else setting
    if uri.startswith("postgresql://"):
        # psycopg 3, which the extra brings; SQLAlchemy's default driver differs between its versions.
        uri = uri.replace("postgresql://", "postgresql+psycopg://", 1)
    plain = "sqlite:///"
    if uri.startswith(plain) and not uri.startswith("sqlite:////"):
        return f"{plain}{(root / uri.removeprefix(plain)).resolve()}"
    return uri


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _tag(name: str, value: str) -> Any:
    from mlflow.entities import RunTag

    return RunTag(name, value[:LONGEST_TAG])


def _parameter(name: str, value: str) -> Any:
    from mlflow.entities import Param

    return Param(name, value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 3]}...")


def _dataset(item: Input) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = item.path or item.name
    return DatasetInput(
        Dataset(item.name, item.fingerprint[:LONGEST_DIGEST], item.source, source, None, None),
        [InputTag("mlflow.data.context", item.role)],
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


INIT_SECONDS, FINISH_SECONDS = 20, 20
LONGEST_LABEL = 64
STEP, SAMPLE = "step", "system/sample"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class WandbDestination:
    """One project at Weights & Biases."""

    def __init__(self, library: Any, settings: WandbSettings, *, project: str, directory: Path) -> None:
        self._library, self._settings, self._project = library, settings, project
        self._directory = directory
        self._facts: dict[str, tuple[RunFacts, str]] = {}
        """By number: what it is, and its group."""
        self._runs: dict[str, Any] = {}
        self._named: set[tuple[str, str]] = set()
        self._rows: dict[str, int] = {}
        """By number: rows that it has been told."""

    def open_run(self, facts: RunFacts, *, parent: str | None, known: str | None) -> str:
        """Our own number for it; the run itself is opened when there is something to tell."""
        run = known or f"charter-{hashlib.blake2b(facts.key.encode(), digest_size=8).hexdigest()}"
        self._facts[run] = (facts, facts.group or parent or run)
        return run

    def describe(self, run: str, facts: RunFacts) -> None:
        """The configuration: parameters, tags and inputs."""
        inputs = {f"{item.role}.{item.name}": item.fingerprint for item in facts.inputs}
        config = {**facts.parameters, "charter": {"tags": dict(facts.tags), "inputs": inputs}}
        self._open(run).config.update(config, allow_val_change=True)

    def log(self, run: str, rows: Sequence[MetricRow]) -> None:
        """One row of history each."""
        opened = self._open(run)
        for row in rows:
            axis = SAMPLE if row.machine else STEP
            for name in row.values:
                if (run, name) not in self._named:
                    opened.define_metric(name, step_metric=axis)
                    self._named.add((run, name))
            opened.log({**row.values, axis: row.step, "time": row.time}, step=row.number)
            self._rows[run] = row.number + 1

    def rows_lost_from(self, run: str, *, told: int, sure: int) -> int | None:
        """Online what the server has not; offline everything that the process wrote which died."""
        self._rows[run] = told
        if run in self._runs:
            return None
        lost_from: int | None = None
        if self._settings.mode == "online":
            arrived = told if told == sure else int(self._open(run).starting_step)
            lost_from = arrived if arrived < told else None
        elif self._note_path(run).exists():
            lost_from = min(told, int(durable.read_json(self._note_path(run))["rows"]))
        self._rows[run] = told if lost_from is None else lost_from
        return lost_from

    def attach(self, run: str, name: str, path: Path) -> None:
        """An artifact of one file."""
        artifact = self._library.Artifact(
            f"{self._facts[run][0].name}-{UNSAFE.sub('-', name)}", type=path.suffix.lstrip(".") or "file"
        )
        artifact.add_file(str(path), name=name)
        self._open(run).log_artifact(artifact)

    def set_state(self, run: str, state: TrackerState, *, ended_at: float | None) -> None:
        """A run that ended is closed, which waits until all of it has arrived."""
        opened = self._open(run)
        opened.summary["charter_state"] = state
        if state == "running":
            return
        self._runs.pop(run, None)
        opened.finish(exit_code=0 if state == "finished" else 1)
        if self._note_path(run).exists():
            durable.remove_file(self._note_path(run))

    def close(self) -> None:
        """Close the run; open parts stay so on the server, and rows that have not arrived are sent again later."""

    def _open(self, run: str) -> Any:
        if run in self._runs:
            return self._runs[run]
        facts, group = self._facts[run]
        labels = [f"{name}:{value}"[:LONGEST_LABEL] for name, value in facts.tags.items() if "charter." not in name]
        online = self._settings.mode == "online"
        durable.make_dir(self._directory)
        self._discard_unfinished(run)
        opened = self._library.init(
            project=self._settings.project or self._project,
            entity=self._settings.entity,
            id=run,
            name=facts.name,
            group=group,
            job_type=facts.tags.get("charter.kind") or facts.tags.get("charter.level", "pipeline"),
            notes=facts.note or None,
            tags=labels,
            dir=str(self._directory),
            mode=self._settings.mode,
            resume="allow" if online else None,
            reinit="create_new",
            save_code=False,
            settings=self._quiet(),
        )
        if not online:
            note = {"directory": str(Path(opened.dir).parent), "rows": self._rows.get(run, 0)}
            durable.write_json(self._note_path(run), note)
        self._runs[run] = opened
        return opened

    def _note_path(self, run: str) -> Path:
        """Says which directory is being written, from which row on; gone when that has ended in good order."""
        return self._directory / f"{run}.open.json"

    def _discard_unfinished(self, run: str) -> None:
        """Remove the files that a lost process left; what they held is told again."""
        if self._note_path(run).exists():
            shutil.rmtree(durable.read_json(self._note_path(run))["directory"], ignore_errors=True)

    def _quiet(self) -> Any:
        address = self._settings.base_url
        return self._library.Settings(
            **({"base_url": address} if address else {}),
            silent=True,
            console="off",
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
        )


def open_wandb(settings: WandbSettings, *, run_name: str, directory: Path, secrets: Secrets) -> WandbDestination:
    """The destination that settings name; nothing is sent yet."""
    if settings.api_key is not None:
        os.environ["WANDB_API_KEY"] = secrets.read(settings.api_key, of="the key of W&B")
    os.environ.setdefault("WANDB_SILENT", "true")
    with needing("tracking names wandb, which is not installed", "wandb"):
        import wandb
    return WandbDestination(wandb, settings, project=run_name, directory=directory)


EVENTS, STATE = "events.out.tfevents.0.charter", "charter.json"
MACHINE = "machine"


class TensorboardDestination:
    """A directory of event files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _library()

    def open_run(self, facts: RunFacts, *, parent: str | None, known: str | None) -> str:
        """The directory of a stage, by the last part of its key; the pipeline itself is the directory above."""
        if known is not None:
            return known
        return "." if parent is None else UNSAFE.sub("-", facts.key.split("-", 1)[1])

    def describe(self, run: str, facts: RunFacts) -> None:
        """Parameters, tags and inputs as texts."""
        texts = {
            "parameters": _table(facts.parameters),
            "tags": _table(facts.tags),
            "inputs": _table({f"{item.role}: {item.name}": item.fingerprint for item in facts.inputs}),
            "note": facts.note,
        }
        events = [_text_event(name, text) for name, text in texts.items() if text]
        if events:
            _append(self._directory / run, events)

    def log(self, run: str, rows: Sequence[MetricRow]) -> None:
        """Scalars; those of machines beside, since their steps are others."""
        _append_rows(self._directory / run, [row for row in rows if not row.machine])
        _append_rows(self._directory / run / MACHINE, [row for row in rows if row.machine])

    def rows_lost_from(self, run: str, *, told: int, sure: int) -> int | None:
        """Nothing: they are on the disk when a call returns."""
        return None

    def attach(self, run: str, name: str, path: Path) -> None:
        """Texts are shown; anything else stays where it is."""
        if path.suffix in (".md", ".json"):
            content = path.read_text(encoding="utf-8", errors="replace")
            shown = content if path.suffix == ".md" else f"```json\n{content}\n```"
            _append(self._directory / run, [_text_event(name, shown)])

    def set_state(self, run: str, state: TrackerState, *, ended_at: float | None) -> None:
        """As a text."""
        _append(self._directory / run, [_text_event("state", state)])

    def close(self) -> None:
        """Every call has written all it was given."""


def _append(directory: Path, events: Sequence[Any]) -> None:
    """Add events to the file of a directory."""
    _write(directory, events, _state(directory))


def _append_rows(directory: Path, rows: Sequence[MetricRow]) -> None:
    """Add rows to the file of a directory; those that it has are left out."""
    state = _state(directory)
    new = [row for row in rows if row.number > state["rows"]]
    if new:
        _write(directory, [event for row in new for event in _row_events(row)], {**state, "rows": new[-1].number})


def _state(directory: Path) -> dict[str, Any]:
    path = directory / STATE
    return durable.read_json(path) if path.exists() else {"bytes": 0, "rows": -1}


def _write(directory: Path, events: Sequence[Any], state: Mapping[str, Any]) -> None:
    """Cut what a kill left half told, write, and say so."""
    durable.make_dir(directory)
    path = directory / EVENTS
    if path.exists() and path.stat().st_size > state["bytes"]:
        durable.truncate(path, state["bytes"])
    with path.open("ab") as file:
        file.write(_records(events if state["bytes"] else [_head(), *events]))
        file.flush()
        os.fsync(file.fileno())
    durable.write_json(directory / STATE, {**state, "bytes": path.stat().st_size})


def _row_events(row: MetricRow) -> list[Any]:
    event_pb2, summary_pb2, _ = _library()
    values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
    event = event_pb2.Event(wall_time=row.time, step=row.step, summary=summary_pb2.Summary(value=values))
    if not row.again:
        return [event]
    restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return [event_pb2.Event(wall_time=row.time, step=row.step, session_log=restart), event]


def _text_event(name: str, text: str) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    event_pb2, _, _ = _library()
    return event_pb2.Event(wall_time=time.time(), step=0, summary=text_pb(name, text))


def _head() -> Any:
    event_pb2, _, _ = _library()
    return event_pb2.Event(wall_time=0.0, file_version="brain.Event:2")


def _records(events: Sequence[Any]) -> bytes:
    _, _, record_writer = _library()
    block = io.BytesIO()
    writer = record_writer(block)
    for event in events:
        writer.write(event.SerializeToString())
    return block.getvalue()


def _table(values: Mapping[str, str]) -> str:
    if not values:
        return ""
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _library() -> tuple[Any, Any, Any]:
    with needing("tracking names tensorboard, which is not installed", "tensorboard"):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    return event_pb2, summary_pb2, RecordWriter
