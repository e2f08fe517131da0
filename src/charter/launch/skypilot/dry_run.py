"""SkyPilot's optimizer on Charter's times and prices, without a cloud: files for it, and a run of it elsewhere."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.catalog.price_book import PriceBook
from charter.errors import StageError
from charter.launch.skypilot.catalog_export import CATALOG_VERSION, catalog_files
from charter.launch.skypilot.task import render_pipeline
from charter.launch.skypilot.time_table import time_table
from charter.plan.plan import Plan
from charter.spec.project import Project

PIPELINE, TIMES, HOME = "pipeline.yaml", "times.json", "home"
SCRIPT = Path(__file__).with_name("optimizer_script.py")
SECONDS = 300.0


def write_dry_run(project: Project, plan: Plan, book: PriceBook, directory: Path, stages: Sequence[str] = ()) -> None:
    """Write the pipeline, the table of times, and the catalog where SkyPilot looks for it below `home`."""
    catalog = directory / HOME / ".sky" / "catalogs" / CATALOG_VERSION
    for name, text in catalog_files(book).items():
        durable.make_dir((catalog / name).parent)
        durable.write_file(catalog / name, text)
    durable.write_file(directory / PIPELINE, render_pipeline(project, stages))
    durable.write_json(directory / TIMES, time_table(project, plan, stages))


def run_optimizer(directory: Path, python: Path, *, target: str = "cost") -> dict[str, Any]:
    """What SkyPilot would choose for every task, by its own optimizer; `python` is one that has SkyPilot."""
    done = subprocess.run(
        [str(python), str(SCRIPT), target],
        cwd=directory,
        env={"HOME": str(directory / HOME), "PATH": "/usr/bin:/bin", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != 0:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise StageError(f"SkyPilot's optimizer did not take the pipeline (exit code {done.returncode}):\n  {said}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
