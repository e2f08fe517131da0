"""One state per stage: status, dashboard, reports, trackers and Prometheus say the same of every awkward run."""

import contextlib
import csv
import io
import os
import subprocess
import time
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")

from dashboard_case import START, ProjectCase
from read_only_tree import open_directory, read_only

from charter.artifacts import durable
from charter.artifacts.job_files import JobFiles, Submission, write_submission
from charter.artifacts.lease import Holder, host_id, start_ticks
from charter.artifacts.stage_state import STATES, TRACKER_STATES, Phase
from charter.dashboard.pages import api
from charter.dashboard.reading import ProjectDirectory, ProjectReader
from charter.dashboard.view.run_view import run_view
from charter.engines.project import load_project
from charter.errors import ExitCode
from charter.ledger import ApiUsage, Ledger
from charter.ledger.call import CallSums, RouteTotals
from charter.ledger.sums import total_of
from charter.report.cost import cost_json, focus_dataset, read_costs
from charter.report.cost_text import by_month
from charter.report.overview import overview
from charter.report.read import read_run
from charter.run.status import status_of
from charter.tracking.forward import StageMetrics, figures
from charter.tracking.progress import RunProgress


class Awkward:
    """Writes the files of one awkward run; each method says where its stage stands, as a phase."""

    def __init__(self, root: Path) -> None:
        self.case = ProjectCase(root)
        self.case.plan()
        self.case.event("run_started", run="demo", todo=["sft", "pm", "ppo", "judged"])

    def begin(self, name: str = "sft", **holder: object) -> Path:
        directory = self.case.directory(name)
        self.case.event("stage_started", stage=name, directory=str(directory), number=1)
        if holder:
            lease = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "host": host_id(), "since": 0.0}
            durable.write_json(directory / "lease.json", asdict(Holder(**{**lease, **holder})))  # type: ignore[arg-type]
        return directory

    def never_run(self):
        return "sft", Phase.PENDING

    def queued(self):
        directory = self.begin()
        sent = Submission(
            scheduler="slurm", name="demo", token="t", number=1, settings="s", attempt=1, nodes=1, spares=0,
            processes=1, accelerator="cpu", count=1, market="owned", job_id="17",
        )  # fmt: skip
        write_submission(JobFiles(directory, 1), sent)
        return "sft", Phase.QUEUED

    def gated(self):
        for name, steps in (("sft", 40), ("pm", 20), ("ppo", 20)):
            self.case.done(name, steps)
        return "judged", Phase.WAITING

    def held(self):
        self.case.event("budget_hold", scope="stage", name="sft", message="$10 are spent")
        return "sft", Phase.HELD

    def held_with_a_checkpoint(self):
        directory = self.begin()
        (directory / "state" / "step-00000010").mkdir(parents=True)
        durable.write_json(directory / "state" / "step-00000010" / "manifest.json", {})
        self.case.event("stage_interrupted", stage="sft")
        self.case.event("budget_hold", scope="run", message="$10 are spent")
        return "sft", Phase.HELD

    def starting(self):
        self.begin(since=time.time())
        return "sft", Phase.STARTING

    def running(self):
        self.case.progress("sft", 3, 40, updated_at=time.time())
        self.begin(since=time.time() - 60)
        return "sft", Phase.RUNNING

    def killed(self):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            ticks = start_ticks(child.pid)
        self.begin(pid=child.pid, start_ticks=ticks)
        supervisor = Holder(pid=child.pid, start_ticks=ticks, host=host_id(), since=0.0)
        durable.write_json(self.case.run / "lease.json", asdict(supervisor))
        return "sft", Phase.INTERRUPTED

    def out_of_money(self):
        directory = self.begin()
        (directory / "state" / "step-00000010").mkdir(parents=True)
        durable.write_json(directory / "state" / "step-00000010" / "manifest.json", {})
        durable.write_json(directory / "failure.json", {"message": "no room", "exit_code": int(ExitCode.BUDGET)})
        self.case.event("stage_interrupted", stage="sft")
        return "sft", Phase.HELD

    def stopped(self):
        durable.write_json(
            self.begin() / "failure.json", {"message": "stopped", "exit_code": int(ExitCode.INTERRUPTED)}
        )
        self.case.event("stage_interrupted", stage="sft")
        return "sft", Phase.STOPPED

    def stale(self):
        self.case.done("sft", 40)
        file = self.case.root / "charter.yaml"
        file.write_text(file.read_text().replace("steps: 40", "steps: 80"))
        return "sft", Phase.STALE

    def failed(self):
        self.begin()
        self.case.failed("sft", "the loss is not a number")
        self.case.event("stage_failed", stage="sft")
        return "sft", Phase.FAILED

    def damaged(self):
        self.case.done("sft", 40)
        with (self.case.directory("sft") / "outputs" / "model" / "weights").open("r+b") as weights:
            weights.truncate(900)
        return "sft", Phase.DAMAGED

    def torn_record(self):
        self.case.done("sft", 40)
        record = self.case.directory("sft") / "record.json"
        record.write_bytes(record.read_bytes()[:100])
        return "sft", Phase.DAMAGED

    def torn_progress(self):
        directory = self.begin(since=0.0)
        (directory / "progress.json").write_text('{"step": 3, "targ')
        return "sft", Phase.STARTING

    def read_only(self):
        self.case.done("sft", 40)
        self.case.attempt("sft", seconds=60, steps=40)
        return "sft", Phase.DONE

    def elsewhere(self):
        self.case.progress("sft", 3, 40, updated_at=time.time())
        self.begin(host="another-host/boot", pid=1)
        return "sft", Phase.RUNNING

    def elsewhere_and_silent(self):
        lease = self.begin(host="another-host/boot", pid=1) / "lease.json"
        os.utime(lease, (1.0, 1.0))
        self.case.event("attempt_abandoned", stage="sft")
        return "sft", Phase.INTERRUPTED

    def elsewhere_by_the_ledger(self):
        self.begin()
        self.case.attempt("sft", seconds=5, outcome="running", after=time.time() - 1_790_000_000.0 - 10)
        return "sft", Phase.RUNNING


RUNS = [name for name in vars(Awkward) if not name.startswith("_") and name not in ("begin",)]


def by_status(case):
    stages = {stage["name"]: stage for stage in status_of(case.project, case.root)["stages"]}
    return {name: (stage["phase"], stage["state"]) for name, stage in stages.items()}


def by_dashboard(case):
    snapshot = ProjectReader(ProjectDirectory(key="k", root=case.root, label="demo")).snapshot(wait=True)
    return {stage.name: (stage.phase, None) for stage in snapshot.stages}


def by_report(case):
    return {stage.name: (stage.phase, stage.state) for stage in overview(read_run(case.root)).stages}


def by_cost(case):
    run = read_run(case.root)
    stages = cost_json(overview(run), run.accounted)["stages"]
    return {stage["name"]: (stage["phase"], stage["state"]) for stage in stages}


def by_trackers(case):
    """The words of trackers and of Prometheus, of stages that have begun by the events."""
    progress = RunProgress(run_dir=case.run)
    progress.look()
    views = tuple(
        StageMetrics(name=path.name.rpartition("-")[0], standing=standing, progress={}, machines=())
        for path, standing in progress.stages.items()
    )
    gauge = next(
        item for item in figures("demo", progress.run, views, cost_usd=None) if item.name == "charter_stage_state"
    )
    words = {labels[1]: labels[2] for labels, _ in gauge.values}
    assert words == {view.name: view.standing.state for view in views}
    return words


@pytest.fixture
def place():
    with open_directory() as directory:
        yield directory


@pytest.mark.parametrize("name", RUNS)
def test_every_view_gives_the_same_state(place, name):
    awkward = Awkward(place / "demo")
    stage, phase = getattr(awkward, name)()
    case = awkward.case
    case.project = load_project(case.root / "charter.yaml")
    with read_only(case.root) if name == "read_only" else contextlib.nullcontext():
        views = {view.__name__: view(case) for view in (by_status, by_dashboard, by_report, by_cost)}
    assert {view: found[stage][0] for view, found in views.items()} == dict.fromkeys(views, phase)
    states = {found[stage][1] for found in views.values()} - {None}
    has_checkpoint = name in ("held_with_a_checkpoint", "out_of_money")
    assert states == {"interrupted" if has_checkpoint else STATES[phase]}
    assert len({tuple(found.items()) for found in ({s: p for s, (p, _) in v.items()} for v in views.values())}) == 1
    word = by_trackers(case).get(stage)
    assert word in (None, TRACKER_STATES[states.pop()] or "running")


def figures_of_status(case):
    return {
        stage["name"]: (stage["step"], stage["target_step"]) for stage in status_of(case.project, case.root)["stages"]
    }


def figures_of_dashboard(case):
    view = run_view(ProjectReader(ProjectDirectory(key="k", root=case.root, label="demo")).snapshot(wait=True))
    progress = {row.name: (row.stage.step, row.stage.target_step) for row in view.rows}
    stages = {row.name: (row.seconds, row.usd, row.planned_seconds) for row in view.rows}
    return progress, stages, (view.wall_seconds, view.money.spent_usd, view.money.forecast_usd)


def figures_of_cost(case):
    run = read_run(case.root)
    cost = cost_json(overview(run), run.accounted)
    progress = {stage["name"]: (stage["step"], stage["target_step"]) for stage in cost["stages"]}
    stages = {
        stage["name"]: (stage["actual"]["seconds"], stage["actual"]["usd"], stage["planned"]["seconds"])
        for stage in cost["stages"]
    }
    return progress, stages, (cost["wall_seconds"], cost["actual"]["usd"], cost["forecast"]["usd"])


def with_money(place, name):
    """Return an awkward run that has paid for machines, for calls, and perhaps for calls of which nobody knows."""
    awkward = Awkward(place / "demo")
    getattr(awkward, name)()
    case = awkward.case
    case.attempt("sft", seconds=50, outcome="killed", steps=2)
    case.attempt("pm", seconds=30, after=20, outcome="killed", steps=0)
    with Ledger.open(case.run / "ledger.sqlite") as ledger:
        sums = CallSums(requests=4, settled_micro_usd=70_000, unknown_micro_usd=20_000)
        route = RouteTotals(endpoint="http://judge/v1", model="m", first_at=START, last_at=START + 9, sums=sums)
        fingerprint = case.stages["sft"].fingerprint
        ledger.record_usage([ApiUsage(run="demo", stage="sft", fingerprint=fingerprint, store_id="1", route=route)])
    case.project = load_project(case.root / "charter.yaml")
    return case


@pytest.mark.parametrize("name", RUNS)
def test_every_view_gives_the_same_figures(place, name):
    case = with_money(place, name)
    of_dashboard, of_cost = figures_of_dashboard(case), figures_of_cost(case)
    assert figures_of_status(case) == of_dashboard[0] == of_cost[0]
    assert of_dashboard[1] == of_cost[1]
    assert of_dashboard[2] == pytest.approx(of_cost[2])


class OneProject:
    """What the dashboard's API asks of a site, for one project."""

    def __init__(self, case):
        self._reader = ProjectReader(ProjectDirectory(key="k", root=case.root, label="demo"))

    def readers(self):
        return [self._reader]

    def reader(self, key):
        return self._reader if key == "k" else None


def states_and_money_of_api(case):
    """Of one run, of the table of runs, and of the stages as CSV."""
    answer = api.run(OneProject(case), {"run": "k"}, lambda _: "")
    (row,) = api.runs(OneProject(case), {}, lambda _: "")["runs"]
    rows = list(csv.DictReader(io.StringIO(api.csv_of(answer["stages"]))))
    for name in ("state", "phase", "spent_usd", "limit_usd", "done_share"):
        assert row[name] == answer[name], name
    assert row["seconds_left"] == (answer["seconds_left"] if answer["state"] == "running" else None)
    for in_json, in_csv in zip(answer["stages"], rows, strict=True):
        assert {key: "" if value is None else str(value) for key, value in in_json.items()} == in_csv
    return answer


@pytest.mark.parametrize("name", RUNS)
def test_api_budget_showback_and_export_agree(place, name):
    case = with_money(place, name)
    answer = states_and_money_of_api(case)
    run = read_run(case.root)
    cost, facts = cost_json(overview(run), run.accounted, run.usage), read_costs(case.project, case.root)
    status = status_of(case.project, case.root)
    assert answer["phase"] == cost["phase"]
    names = ("name", "phase", "step", "target_step")
    views = [[tuple(stage[key] for key in names) for stage in of["stages"]] for of in (answer, cost, status)]
    assert views[0] == views[1] == views[2]
    settled, most = cost["actual"]["micro_usd"], cost["actual"]["micro_usd_most"]
    assert most - settled == 20_000
    (line,) = facts.lines
    assert (round(1e6 * line.settled_usd), round(1e6 * line.spent_usd)) == (settled, most)
    assert line.forecast_p50_usd == pytest.approx(answer["forecast_usd"])
    ends = (line.forecast_p10_usd, line.forecast_p50_usd, line.forecast_p90_usd)
    assert ends == pytest.approx([cost["forecast"][key] for key in ("usd_p10", "usd", "usd_p90")])
    for parts in facts.groups.values():
        assert (total_of(parts).micro_usd, total_of(parts).most_micro_usd) == (settled, most)
    with Ledger.open(case.run / "ledger.sqlite", create=False) as ledger:
        for by in ("owner", "run", "stage", "tag:team", "tag:goal"):
            months = by_month(ledger.sums(by=(by, "day")))
            assert (total_of(months).micro_usd, total_of(months).most_micro_usd) == (settled, most), by
    assert 1e6 * answer["spent_usd"] == pytest.approx(settled)
    assert 1e6 * sum(stage["spent_usd"] or 0.0 for stage in answer["stages"]) == pytest.approx(settled)
    exported = sum(Decimal(row["BilledCost"] or 0) for row in focus_dataset(case.project, case.root))
    assert round(exported * 1_000_000) == settled
