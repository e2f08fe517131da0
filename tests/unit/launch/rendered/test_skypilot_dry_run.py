"""What SkyPilot's optimizer is given: prices as its catalog, times by its names."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charter.catalog.offer import Market
from charter.catalog.price_book import PriceBook
from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import InfeasibleError, StageError, UsageError
from charter.launch.rendered.skypilot import CLOUDS, PIPELINE, sky_accelerator
from charter.launch.rendered.skypilot_script import secret_names
from charter.plan.project_plan import plan_project
from charter.run.submit import (
    COLUMNS,
    HOME,
    SCRIPT,
    TIMES,
    catalog_files,
    run_optimizer,
    time_table,
    write_dry_run,
)
from charter.templates.shipped import find_template, write_template


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """An 8B project, and its plan on whole machines of three clouds."""
    directory = tmp_path_factory.mktemp("project") / "cai-8b"
    write_template(find_template("cai-8b"), directory)
    small = ["resources.accelerators=[H100:8]", "resources.max_nodes=1"]
    project = load_project(directory, overrides=["launch.skypilot={bucket: s3://b/c, setup: pip install x}", *small])
    return project, plan_project(project, directory), directory


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_every_offer_of_a_known_cloud_is_in_the_catalog_with_its_prices():
    book = PriceBook.bundled()
    files = catalog_files(book)
    for offer in book.offers(cloud="lambda"):
        (row,) = [
            row
            for row in rows(files["lambda/vms.csv"])
            if (row["InstanceType"], row["Region"]) == (offer.instance_type, offer.region)
        ]
        assert row["AcceleratorName"] == sky_accelerator(offer.accelerator)
        assert float(row["AcceleratorCount"]) == offer.count
        assert float(row["Price"]) == offer.usd_per_hour(Market.ON_DEMAND)
        assert row["SpotPrice"] == ""


def test_a_google_machine_has_the_price_of_both_and_its_accelerators_none():
    found = rows(catalog_files(PriceBook.bundled())["gcp/vms.csv"])
    machines = [row for row in found if row["InstanceType"]]
    free = [row for row in found if row["AcceleratorName"]]
    assert machines
    assert len(machines) == len(free)
    assert all(float(row["Price"]) == 0 for row in free)
    assert {row["InstanceType"] for row in free} == {""}


def test_the_files_have_the_columns_and_the_clouds_that_skypilot_knows():
    files = catalog_files(PriceBook.bundled())
    clouds = {name.partition("/")[0] for name in files} - {"common"}
    assert clouds <= CLOUDS
    assert {"aws", "gcp", "lambda"} <= clouds
    for cloud in clouds:
        assert tuple(rows(files[f"{cloud}/vms.csv"])[0]) == COLUMNS
    sold = {row["AcceleratorName"]: row["Clouds"] for row in rows(files["common/accelerators.csv"])}
    assert "'Lambda'" in sold["H100"]
    assert "'GCP'" in sold["H100"]


def test_the_table_has_the_fastest_option_of_one_machine_by_skypilots_names(planned):
    project, plan, _ = planned
    table = time_table(project, plan)
    assert {row["task"] for row in table} == {stage.name.replace("_", "-") for stage in plan.stages}
    for row in table:
        stage = plan.stage(row["task"].replace("-", "_"))
        same = [
            option.seconds.p50
            for option in stage.options
            if option.num_nodes == 1
            and option.place.infra == row["infra"]
            and sky_accelerator(option.place.accelerator.name) == row["accelerator"]
            and option.place.per_node == row["count"]
            and (option.price.market == "spot") == row["use_spot"]
        ]
        assert row["seconds"] == round(min(same))


def test_a_stage_that_fits_on_no_single_machine_is_told(planned, tmp_path):
    project, plan, _ = planned
    stages = tuple(stage for stage in plan.stages if stage.name != "ppo")
    from dataclasses import replace

    with pytest.raises(InfeasibleError, match="stage ppo fits on no single machine"):
        time_table(project, replace(plan, stages=stages))


def test_a_dry_run_is_three_kinds_of_file_and_secrets_are_names(planned, tmp_path):
    project, plan, _ = planned
    write_dry_run(project, plan, PriceBook.bundled(), tmp_path, ["helpful"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [HOME, PIPELINE, TIMES]
    assert {row["task"] for row in json.loads((tmp_path / TIMES).read_text())} == {"helpful"}
    assert (tmp_path / HOME / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv").is_file()
    assert secret_names("a: 1\n---\nsecrets: {B: null, A: null}\n") == ["A", "B"]


def test_what_the_optimizer_says_when_it_fails_is_told(tmp_path):
    without_sky = tmp_path / "python"
    without_sky.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    without_sky.chmod(0o755)
    (tmp_path / HOME).mkdir()
    with pytest.raises(StageError, match=r"exit code 1(.|\n)*No module named 'sky'"):
        run_optimizer(tmp_path, without_sky, target="cost")


def test_the_script_for_skypilots_python_imports_nothing_of_charter():
    code = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='look')"
    subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=Path(SCRIPT).anchor)


def test_submit_shows_what_the_optimizer_chose(planned, tmp_path):
    """A Python that answers as SkyPilot's would, from the table it was given: the seam, without SkyPilot."""
    *_, directory = planned
    fake = tmp_path / "python"
    fake.write_text(
        f"""#!{sys.executable}
import json
rows = [row for row in json.load(open("times.json")) if row["task"] == "helpful"][:1]
tasks = [dict(task=row["task"], cloud=row["infra"], region="r", instance_type="i", use_spot=row["use_spot"], usd=2.0,
              accelerators={{row["accelerator"]: row["count"]}}, seconds=row["seconds"]) for row in rows]
print(json.dumps(dict(tasks=tasks, total=dict(seconds=tasks[0]["seconds"], usd=2.0))))
"""
    )
    fake.chmod(0o755)
    words = ["submit", "helpful", "-C", str(directory), "--on", "skypilot", "--optimizer", str(fake)]
    more = [
        "--set",
        "launch.skypilot={bucket: s3://b/c, setup: pip install x}",
        "--set",
        "resources.accelerators=[H100:8]",
    ]
    done = CliRunner().invoke(app, [*words, *more, "--set", "resources.max_nodes=1"], catch_exceptions=False)
    first, last = done.stdout.splitlines()
    assert first.startswith("helpful")
    assert "8 x H100" in first
    assert last.endswith("$2.00: machines alone, one after the other")
    for wrong in (["--on", "slurm", "--optimizer", str(fake)], ["--on", "skypilot", "--optimizer", str(tmp_path)]):
        assert isinstance(CliRunner().invoke(app, [*words[:4], *wrong, *more]).exception, UsageError)
