"""What a tracker should have been told of a run, from the run's own files; and what MLflow has."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from charter.metering.row import METER_GLOB
from charter.tracking.base import read_metrics

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


def is_metered(root: Path, stage: str) -> bool:
    """Whether there is a sample of the machine on which a stage of a project runs."""
    return any(path.stat().st_size for path in (root / "run" / "stages").glob(f"{stage}-????????/{METER_GLOB}"))


def tracking_processes(root: Path) -> list[int]:
    """The follower and the senders of a project's run, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if str(root / "run") in words and any(word.startswith("charter.tracking.") for word in words):
                found.append(int(path.parent.name))
    return found


def kill_tracking(root: Path) -> int:
    """SIGKILL to follower and senders, as if at one moment; how many there were.

    All stand still first: else a sender would see that its follower has gone, and leave in good order.
    """
    processes = tracking_processes(root)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    return len(processes)
