"""The real SkyPilot on what Charter writes: its schema takes the YAML, and its optimizer chooses by our numbers.

SkyPilot lives in an environment of its own below ~/.cache/charter-benchmarks, made when missing; no cloud is asked.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from charter.catalog.price_book import PriceBook
from charter.engines.project import load_project
from charter.errors import StageError
from charter.launch.rendered.skypilot import PIPELINE
from charter.plan.project_plan import plan_project
from charter.run.submit import HOME, TIMES, run_optimizer, write_dry_run
from charter.templates.shipped import find_template, write_template

VERSION = "0.14.1"
ENVIRONMENT = Path.home() / ".cache" / "charter-benchmarks" / f"skypilot-{VERSION}"
SECONDS_PER_HOUR = 3600
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has SkyPilot."""
    found = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "bin" / "sky").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(found), "-m", "pip", "install", "-q", f"skypilot=={VERSION}"], check=True)
    return found


@pytest.fixture
def dry_run(tmp_path: Path) -> Path:
    """A directory with the pipeline, prices and times of an 8B project, whose judge has a key."""
    directory = tmp_path / "cai-8b"
    write_template(find_template("cai-8b"), directory)
    served = ["serving.judge.endpoint=http://judge:8000/v1", "serving.judge.api_key=env:JUDGE_KEY"]
    project = load_project(
        directory, overrides=["launch.skypilot={bucket: s3://alignment/cai-8b, setup: pip install x}", *served]
    )
    out = tmp_path / "dry"
    out.mkdir()
    write_dry_run(project, plan_project(project, directory), PriceBook.bundled(), out)
    return out


def prices(directory: Path, cloud: str, accelerator: str, count: int) -> list[tuple[float | None, float | None]]:
    """On demand and spot, of every machine with these accelerators: read from the files that SkyPilot was given."""
    catalog = directory / HOME / ".sky" / "catalogs" / "v8" / cloud / "vms.csv"
    rows = list(csv.DictReader(catalog.open(newline="")))
    if cloud == "gcp":
        where = {
            (row["Region"], row["GpuInfo"])
            for row in rows
            if row["AcceleratorName"] == accelerator and float(row["AcceleratorCount"]) == count
        }
        letters = {"H100": "a3-highgpu", "A100-80GB": "a2-ultragpu"}
        rows = [
            row
            for row in rows
            if row["InstanceType"] == f"{letters[accelerator]}-{count}g" and row["Region"] in {r for r, _ in where}
        ]
    else:
        rows = [
            row for row in rows if row["AcceleratorName"] == accelerator and float(row["AcceleratorCount"]) == count
        ]
    return [tuple(float(row[name]) if row[name] else None for name in ("Price", "SpotPrice")) for row in rows]


def cheapest(directory: Path, task: str) -> float:
    """The least that a task can cost, by our own times and prices."""
    costs = []
    for row in json.loads((directory / TIMES).read_text()):
        if row["task"] == task:
            for on_demand, spot in prices(directory, row["infra"], row["accelerator"], row["count"]):
                price = spot if row["use_spot"] else on_demand
                if price is not None:
                    costs.append(price * row["seconds"] / SECONDS_PER_HOUR)
    return min(costs)


def test_the_optimizer_chooses_the_cheapest_by_our_times_and_prices(python, dry_run):
    found = run_optimizer(dry_run, python, target="cost")
    assert (found["skypilot"], found["target"]) == (VERSION, "COST")
    _, *tasks = yaml.safe_load_all((dry_run / PIPELINE).read_text())
    assert [row["task"] for row in found["tasks"]] == [task["name"] for task in tasks]
    for row in found["tasks"]:
        assert row["usd"] == pytest.approx(cheapest(dry_run, row["task"]), rel=1e-3), row


def test_for_time_it_takes_the_fastest_and_pays_no_less(python, dry_run):
    by_cost, by_time = run_optimizer(dry_run, python, target="cost"), run_optimizer(dry_run, python, target="time")
    table = json.loads((dry_run / TIMES).read_text())
    for row in by_time["tasks"]:
        assert row["seconds"] == min(known["seconds"] for known in table if known["task"] == row["task"])
    assert by_time["total"]["seconds"] <= by_cost["total"]["seconds"]
    assert by_time["total"]["usd"] >= by_cost["total"]["usd"]


def test_its_schema_refuses_a_misspelt_field(python, dry_run):
    text = (dry_run / PIPELINE).read_text()
    (dry_run / PIPELINE).write_text(text.replace("use_spot:", "use_spots:", 1))
    with pytest.raises(StageError, match="use_spots"):
        run_optimizer(dry_run, python, target="cost")
