"""A lost or emptied ledger: what finished stages keep of it is shown, and written back by the next run."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from charter.ledger import Ledger
from charter.ledger.rebuilding import rebuilt_attempts
from charter.report.read import read_run
from charter.run.accounts import rebuild_ledger
from charter.run.budget import read_spending
from charter.run.call_costs import write_timings
from charter.spec.project import Project

START = 1_795_000_000.0
PROJECT = Project(name="cai-tiny", models={}, pipeline={}, owner="ann", tags={"team": "a"})
OF_STAGE = dict(run="r", stage="sft", kind="sft", fingerprint="f")


def stages_of(root):
    """The stages of a run's directories, with the timings that the supervisor writes at the end of each."""
    found = []
    for path in sorted((root / "run" / "stages").iterdir()):
        job = json.loads((path / "job.json").read_text())
        spec = SimpleNamespace(kind=job["kind"])
        found.append(
            SimpleNamespace(name=job["stage"], spec=spec, directory=path, asked_fingerprint=job["fingerprint"])
        )
    return found


@pytest.fixture
def lost(tmp_path, fixture_run):
    """A finished run whose ledger was emptied, its stages, and what the ledger had."""
    root = fixture_run.write_run(tmp_path)
    stages = stages_of(root)
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        for stage in stages:
            write_timings(ledger, PROJECT, stage)
        had = ledger.totals()
    for path in (root / "run").glob("ledger.sqlite*"):
        path.unlink()
    return root, stages, had


@pytest.mark.parametrize("emptied", [True, False])
def test_lost_ledger_is_read_from_the_stages_and_said(lost, emptied):
    root, _, had = lost
    (root / "run" / "plan.json").unlink()
    if emptied:
        (root / "run" / "ledger.sqlite").touch()
    run = read_run(root, check_calls=True)
    assert sum(item.cost_micro_usd for item in run.accounted) == pytest.approx(had.micro_usd, abs=20)
    assert "ledger.sqlite is empty or gone" in run.notes[0]
    assert "`charter run` writes them back" in run.notes[0]


def test_next_run_writes_a_lost_ledger_back_once(lost):
    root, stages, had = lost
    assert rebuild_ledger(PROJECT, root, stages) == tuple(stage.name for stage in stages)
    assert rebuild_ledger(PROJECT, root, stages) == ()
    with Ledger.open(root / "run" / "ledger.sqlite", create=False) as ledger:
        now = ledger.total()
        ledger.check_sums()
        assert {attempt.owner for attempt in ledger.attempts()} == {"ann"}
    assert now.totals.milliseconds == pytest.approx(had.milliseconds, abs=20)
    assert now.totals.useful_milliseconds == pytest.approx(had.useful_milliseconds, abs=20)
    assert now.totals.micro_usd == pytest.approx(had.micro_usd, abs=20)


def test_stage_of_a_whole_ledger_is_not_counted_twice(tmp_path, fixture_run):
    root = fixture_run.write_run(tmp_path)
    stages = stages_of(root)
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        for stage in stages:
            write_timings(ledger, PROJECT, stage)
        had = ledger.total()
    assert rebuild_ledger(PROJECT, root, stages) == ()
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        assert ledger.total() == had


def test_a_renamed_project_counts_its_stages_once(tmp_path, fixture_run):
    root = fixture_run.write_run(tmp_path)
    stages = stages_of(root)
    renamed = replace(PROJECT, name="renamed")
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        for stage in stages:
            write_timings(ledger, PROJECT, stage)
        had = ledger.total()
        assert read_spending(ledger, renamed, now=START).total.totals.micro_usd == had.totals.micro_usd > 0
    assert rebuild_ledger(renamed, root, stages) == ()
    with Ledger.open(root / "run" / "ledger.sqlite") as ledger:
        assert ledger.total() == had


@pytest.mark.parametrize("content", ["", "[]", '{"seconds": "x"}', "null"])
def test_torn_timings_give_no_attempts(tmp_path, content):
    assert rebuilt_attempts(tmp_path, **OF_STAGE) == ()
    (tmp_path / "timings.json").write_text(content)
    assert rebuilt_attempts(tmp_path, **OF_STAGE) == ()


def test_unpriced_timings_stay_unpriced(tmp_path):
    told = {"finished_at": START, "seconds": 8.0, "useful_seconds": 8.0, "cost_usd": None}
    (tmp_path / "timings.json").write_text(json.dumps(told))
    (attempt,) = rebuilt_attempts(tmp_path, **OF_STAGE)
    assert (attempt.started_at, attempt.seconds, attempt.price_micro_usd_per_hour) == (START - 8.0, 8.0, None)
