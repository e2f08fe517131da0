"""The child process: one question per line on stdin, one answer per line on stdout, until stdin ends."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from charter.errors import CharterError, UsageError
from charter.spec.project import DataSpec, Project

# -------- Jobs of a child process, by name: plain JSON in, plain JSON out.


if TYPE_CHECKING:
    from charter.plan.plan import Plan

Json = Mapping[str, Any]
Tell = Callable[[Json], None]


def plan(asked: Json, tell: Tell) -> Json:
    """A project's plan under a what-if, beside the plan as it is."""
    from charter.engines.project import load_project
    from charter.plan.project_plan import plan_project
    from charter.report.what_if import WhatIfQuestion, command, plan_view

    root, today = Path(asked["root"]), datetime.now(tz=UTC).date()
    project, base = _as_it_is(root, json.dumps(asked["state"]), today)
    changes = WhatIfQuestion(**asked["question"]).overrides(project)
    if not changes:
        return asdict(plan_view(base, base))
    changed = load_project(root, overrides=changes, env=dict(os.environ))
    planned = plan_project(changed, root, today=today)
    return asdict(plan_view(planned, base, changed=changes, command=command(changes, str(root))))


@lru_cache(maxsize=8)
def _as_it_is(root: Path, state: str, today: date) -> "tuple[Project, Plan]":
    """A project and its plan without a change, made once for many questions; `state` is that of its files."""
    from charter.engines.project import load_project
    from charter.plan.project_plan import plan_project

    project = load_project(root, env=dict(os.environ))
    return project, plan_project(project, root, today=today)


def count(asked: Json, tell: Tell) -> Json:
    """The figures of a data set, and of what was set aside; tells a sample first where the whole takes long."""
    from charter.report.data_page.counting import count_rows, count_set_aside, sample_rows

    path = Path(asked["path"])
    spec = DataSpec(**asked["spec"]) if asked.get("spec") else None
    sample = sample_rows(path, spec)
    if sample is not None:
        tell({"sample": asdict(sample)})
    counted = count_rows(path, spec, tell=lambda rows: tell({"rows": rows}))
    aside = count_set_aside(Path(asked["aside"])) if asked.get("aside") else None
    return asdict(counted) | {"aside": None if aside is None else asdict(aside)}


def find(asked: Json, tell: Tell) -> Json:
    """Return the position of the record with an id in a JSONL file."""
    from charter.report.data_page.records import find_id

    position = find_id(Path(asked["path"]), asked["id"])
    return {"offset": position}


def compare(asked: Json, tell: Tell) -> Json:
    """Runs side by side."""
    from charter.report.run_compare.comparison import compare_runs, read_sides
    from charter.report.run_compare.views import chart_data, page_rows

    sides = read_sides([Path(root) for root in asked["roots"]], asked["labels"])
    comparison = compare_runs(sides)
    return {"rows": page_rows(comparison), "charts": chart_data(comparison)}


def accuracy(asked: Json, tell: Tell) -> Json:
    """Estimate against actual, and the paces that plans use and that this run shows."""
    from charter.report.estimate_actual import accuracy_chart, accuracy_rows, read_accuracy

    try:
        accuracy_tables = read_accuracy(Path(asked["root"]))
    except UsageError as error:
        return {"none": str(error)}
    return {"rows": accuracy_rows(accuracy_tables), "charts": accuracy_chart(accuracy_tables)}


def sweeps(asked: Json, tell: Tell) -> Json:
    """Tables of a project's sweeps, as `charter report --sweep` prints them, or why there is none."""
    from charter.engines.project import load_project
    from charter.report.sweep import read_sweep, sweep_table

    root = Path(asked["root"])
    project = load_project(root, env=dict(os.environ))
    tables: list[Json] = []
    for name in project.sweeps:
        try:
            tables.append({"name": name, "table": asdict(sweep_table(read_sweep(root, project, root, name)))})
        except CharterError as error:
            tables.append({"name": name, "none": str(error)})
    return {"sweeps": tables}


JOBS: Mapping[str, Callable[[Json, Tell], Json]] = {
    "plan": plan,
    "count": count,
    "find": find,
    "compare": compare,
    "accuracy": accuracy,
    "sweeps": sweeps,
}


# -------- The child process: one question per line on stdin, one answer per line on stdout, until stdin ends.


POLITENESS = 5
"""Added to the process's niceness: pages come first."""


def main() -> None:
    """Answer until there is nobody left to ask."""
    os.nice(POLITENESS)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, answer(request, lambda progress: _say(answers, {"progress": progress})))


def answer(asked: dict[str, Any], tell: Any) -> dict[str, Any]:
    """Return the result of a job, or the reason why it has none, in words for people."""
    try:
        return {"found": JOBS[asked["job"]](asked["arguments"], tell)}
    except CharterError as error:
        return {"error": str(error), "label": error.label}
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"error": f"a defect of Charter ({type(error).__name__}); the terminal of the dashboard has the rest"}


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, allow_nan=False) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
