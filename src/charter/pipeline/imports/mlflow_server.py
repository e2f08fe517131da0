"""Runs on an MLflow server or in its database, by MLflow's own client."""

import hashlib
import json
import os
from typing import Any

from charter.errors import DataError, MissingExtraError
from charter.pipeline.imports.found import FoundRun
from charter.pipeline.imports.mlflow_places import refuse_missing_place
from charter.pipeline.imports.mlflow_points import MlflowRun, Point, found_run

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
            "reading a run from an MLflow server needs mlflow: pip install 'charter-plan[mlflow]'; "
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
            Point(step=item.step, value=item.value, time=item.timestamp / 1000)
            for item in client.get_metric_history(run_id, name)
        ]
        for name in sorted(run.data.metrics)
    }
    told = {name: [[item.step, item.value, item.time] for item in series] for name, series in points.items()}
    return MlflowRun(
        run_id=run_id,
        source=f"MLflow run {run_id}",
        content=hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest(),
        started_at=run.info.start_time / 1000 if run.info.start_time else None,
        ended_at=run.info.end_time / 1000 if run.info.end_time else None,
        points=points,
        finished=run.info.status == "FINISHED",
        parameters=dict(run.data.params),
    )
