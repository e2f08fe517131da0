"""MLflow: runs by its REST interface or in its database; the same call twice leaves one point."""

import getpass
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts.stage_state import TrackerState
from charter.errors import MissingExtraError, how_to_install
from charter.spec.tracking import MlflowSettings
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
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise MissingExtraError(f"tracking names mlflow, which is not installed: {how_to_install('mlflow')}") from None
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
