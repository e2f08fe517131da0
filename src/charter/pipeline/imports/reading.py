"""Which of the readers a foreign run is for: by what was asked, else by what lies there."""

from pathlib import Path

from charter.errors import UsageError
from charter.pipeline.imports.engine_logs import read_engine_log
from charter.pipeline.imports.found import Format, FoundRun
from charter.pipeline.imports.mlflow_files import read_run_directory, run_directory
from charter.pipeline.imports.mlflow_server import read_run_on_server
from charter.pipeline.imports.trainer_states import is_trainer_state, read_trainer_run

TRAINERS = ("transformers", "trl")


def read_run(run: str, *, format: Format | None = None, tracking_uri: str | None = None) -> FoundRun:
    """The run that a path means, or with a tracking URI the MLflow run of that id."""
    if tracking_uri is not None:
        if format not in (None, "mlflow"):
            raise UsageError(f"--tracking-uri is of MLflow, but --format says {format}; leave one of them out")
        return read_run_on_server(run, tracking_uri)
    path = Path(run)
    if not path.exists():
        hint = "give --tracking-uri for the id of an MLflow run" if format in (None, "mlflow") else "correct the path"
        raise UsageError(f"there is no file or directory {run}; {hint}")
    if format in TRAINERS or (format is None and is_trainer_state(path)):
        return read_trainer_run(path)
    if format in (None, "mlflow") and (directory := run_directory(path)) is not None:
        return read_run_directory(directory)
    if format == "mlflow":
        raise UsageError(f"{path} holds no MLflow run (a meta.yaml beside metrics/); give --tracking-uri and a run id")
    return read_engine_log(path, format)
