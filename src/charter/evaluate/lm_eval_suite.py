"""The suite `lm_eval`: local tasks of lm-evaluation-harness, for what is usually measured of language models.

Knowledge, reasoning, mathematics, reading, code: what a task asks and how it is marked is the task's own file.
Nothing is downloaded: a task names local files (`dataset_path: json`, with `data_files` beside the task's file). A
task may bring functions of its own, so its directory is code, and to be trusted as such.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from charter.errors import CharterError, DataError, MissingExtraError
from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, figure_of, mean, proportion
from charter.evaluate.intervals import Z_95, Interval
from charter.evaluate.lm_eval_adapter import charter_lm

PACKAGE = "lm_eval"
PIP_COMMAND = "pip install lm-eval"
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
"""Read by the `datasets` package when it is imported, which happens here and nowhere before."""
ROLES = ("policy", "against")


def check_library() -> None:
    """Raise where the harness is not installed."""
    if find_spec(PACKAGE) is None:
        raise MissingExtraError(f"the suite lm_eval needs lm-evaluation-harness: {PIP_COMMAND}")


def lm_eval(bench: Bench) -> list[Figure]:
    """Every metric of every task, for the policy and what it is measured against."""
    check_library()
    paths = [item.location() for item in bench.job.inputs.get("lm_eval_tasks", ())]
    found = []
    for role in ROLES:
        if bench.has(role):
            for path in paths:
                found += _figures(role, _evaluated(bench, role, path))
    if not found:
        raise DataError(f"stage {bench.job.stage}: the tasks of {', '.join(map(str, paths))} gave no metric")
    return found


def _evaluated(bench: Bench, role: str, path: Path) -> Mapping[str, Any]:
    """What the harness makes of the tasks of one file or directory; relative paths in them start there."""
    directory = path if path.is_dir() else path.parent
    with _offline(), contextlib.chdir(directory):
        tasks = import_module("lm_eval.tasks")
        model = charter_lm(bench.model(role), batch=bench.spec.rollout_batch, seed=bench.seed("lm_eval"))
        try:
            manager = tasks.TaskManager(include_path=str(directory), include_defaults=False)
            results: Mapping[str, Any] = import_module("lm_eval").simple_evaluate(
                model=model,
                tasks=_names(manager, path),
                task_manager=manager,
                bootstrap_iters=0,
                random_seed=bench.seed("lm_eval", "random") % 2**32,
                numpy_random_seed=bench.seed("lm_eval", "numpy") % 2**32,
                torch_random_seed=bench.seed("lm_eval", "torch") % 2**32,
                fewshot_random_seed=bench.seed("lm_eval", "few_shot") % 2**32,
            )
        except CharterError:
            raise
        except Exception as error:  # a task is a foreign program: whatever it raises is a fault of its files
            raise DataError(
                f"{path}: lm-evaluation-harness cannot run these tasks: {type(error).__name__}: {error}\n"
                "  tasks must be local: `dataset_path: json` and `data_files` beside the task's file"
            ) from error
    return results


def _names(manager: Any, path: Path) -> list[Any]:
    """The tasks of a file, or all of a directory, in alphabetical order."""
    if path.is_file():
        return [str(path)]
    names = sorted(manager.all_subtasks)
    if not names:
        raise DataError(f"{path} holds no task of lm-evaluation-harness (YAML files with `task:`)")
    return names


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in OFFLINE}
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _figures(role: str, results: Mapping[str, Any]) -> list[Figure]:
    found = []
    for task, metrics in sorted(results["results"].items()):
        samples = results.get("samples", {}).get(task, ())
        for name, value in sorted(metrics.items()):
            metric, comma, filter_name = name.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                rows = [row.get(metric) for row in samples if row.get("filter", filter_name) == filter_name]
                error = metrics.get(f"{metric}_stderr,{filter_name}")
                suffix = "" if filter_name == "none" else f".{filter_name}"
                key, label = f"lm_eval.{role}.{task}.{metric}{suffix}", f"{task}: {metric} of the {role}{suffix}"
                found += figure_of_metric(key, label, float(value), rows, error)
    return found


def figure_of_metric(key: str, label: str, value: float, rows: Sequence[Any], error: Any) -> list[Figure]:
    """A metric with an interval from its rows where they are numbers whose mean it is, else from its standard error.

    One that is neither, or has one row only, has no interval and is left out with a line in the log.
    """
    numbers = [float(row) for row in rows if isinstance(row, bool | int | float) and math.isfinite(row)]
    is_mean = len(numbers) == len(rows) > 1 and math.isclose(sum(numbers) / len(numbers), value, abs_tol=1e-9)
    if is_mean and set(numbers) <= {0.0, 1.0}:
        return [proportion(key, label, numbers)]
    if is_mean:
        return [mean(key, label, numbers, unit="")]
    if isinstance(error, int | float) and math.isfinite(error) and math.isfinite(value) and len(rows) > 1:
        half, method = Z_95 * float(error), "normal, the harness's standard error"
        unit = SHARE if value - half >= 0 and value + half <= 1 else ""
        return [figure_of(key, label, value, Interval(low=value - half, high=value + half), len(rows), unit, method)]
    print(f"{key}: {value} on {len(rows)} rows has no interval and is left out", flush=True)
    return []
