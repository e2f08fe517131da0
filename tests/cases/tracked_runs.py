"""What a tracker should have been told of a run, from the run's own files; and what MLflow has."""

import json
from pathlib import Path
from typing import Any

from charter.tracking.jsonl import read_metrics

Points = dict[str, dict[str, list[tuple[int, float]]]]
"""Stage -> metric -> (step, value) in the order of steps."""


def written_points(root: Path) -> Points:
    """What the stages of a project have written."""
    found: Points = {}
    for path in sorted((root / "run" / "stages").glob("*/metrics.jsonl")):
        series: dict[str, list[tuple[int, float]]] = {}
        for point in read_metrics(path):
            for name, value in point.values.items():
                series.setdefault(name, []).append((point.step, value))
        found[path.parent.name.rpartition("-")[0]] = series
    return found


def mlflow_points(client: Any, experiment: str, parent: str) -> Points:
    """What MLflow has of the stages below a parent run, system metrics apart."""
    found: Points = {}
    for run in nested_runs(client, experiment, parent):
        names = [name for name in run.data.metrics if not name.startswith("system/")]
        found[run.data.tags["charter.stage"]] = {
            name: sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, name))
            for name in names
        }
    return found


def nested_runs(client: Any, experiment: str, parent: str) -> list[Any]:
    """The runs below a parent."""
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'"))


def told(root: Path, tracker: str) -> dict[str, Any]:
    """What Charter has written down of a tracker."""
    content: dict[str, Any] = json.loads((root / "run" / "tracking" / f"{tracker}.json").read_text())
    return content


def same_points(found: Points, wanted: Points) -> bool:
    """Whether every point is there once; what depends on the clock may be that of another time when a step was done."""
    return found == wanted
