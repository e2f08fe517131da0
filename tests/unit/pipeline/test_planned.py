"""A run whose plan says that it cannot fit is refused; one that has no plan for another reason is not."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from charter.artifacts.stage_state import Phase
from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import DataError, InfeasibleError
from charter.run.planned import plan_now
from charter.run.runner import RunOptions, check_work, find_work, plan_work, refuse_overflow
from charter.run.submit import submit_supervisor

TOO_BIG = {"hidden_size": 16384, "num_layers": 128, "num_heads": 128, "intermediate_size": 65536, "vocab_size": 32000}
FILE = {
    "name": "big",
    "models": {"base": {"architecture": TOO_BIG, "tokenizer": {"train_on": "text", "vocab_size": 300}}},
    "data": {"text": "text.jsonl"},
    "pipeline": {
        "pretrain": {
            "kind": "pretrain", "init": "base", "data": "text", "steps": 20, "global_batch": 16, "seq_len": 128
        }
    },
    "resources": {"accelerators": "cpu"},
}  # fmt: skip


@pytest.fixture
def root(tmp_path):
    (tmp_path / "charter.yaml").write_text(json.dumps(FILE))
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a few words"}) + "\n")
    return tmp_path


@pytest.fixture
def work(root):
    return find_work(load_project(root), root, RunOptions())


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--yes"),
        (
            "run",
            "resume",
        ),
        ("run", "--dry-run"),
        ("submit", "--on", "subprocess"),
    ],
)
def test_a_command_whose_plan_does_not_fit_is_refused(root, words):
    ended = CliRunner().invoke(app, [*words, "-C", str(root)])
    assert isinstance(ended.exception, InfeasibleError)
    assert "stage 'pretrain' does not fit" in str(ended.exception)
    assert not list((root / "run").glob("stages/*"))


def test_a_dry_run_anyway_is_not_refused(root):
    ended = CliRunner().invoke(app, ["run", "--dry-run", "--anyway", "-C", str(root)])
    assert (ended.exit_code, "would run" in ended.output) == (0, True)


def test_a_stage_with_steps_in_a_checkpoint_is_not_refused(work):
    begun = replace(work.verdicts["pretrain"], phase=Phase.INTERRUPTED, step=3)
    check_work(plan_work(replace(work, verdicts={"pretrain": begun}), RunOptions()), RunOptions())
    with pytest.raises(InfeasibleError, match="does not fit"):
        check_work(plan_work(replace(work, verdicts={"pretrain": replace(begun, step=0)}), RunOptions()), RunOptions())


def test_a_stage_that_is_done_is_not_refused(work):
    assert plan_work(replace(work, todo=()), RunOptions()).planned.overflow is None
    overflow = plan_now(work.pipeline.project, work.pipeline.root).overflow
    refuse_overflow(overflow, replace(work, todo=()), RunOptions())


def test_stages_sent_to_another_machine_are_not_refused(work):
    options = RunOptions(launcher="slurm")
    ready = plan_work(work, options)
    assert ready.planned.overflow is not None
    refuse_overflow(ready.planned.overflow, ready.work, options)


def test_a_plan_that_fails_otherwise_refuses_nothing(work, monkeypatch):
    def unreadable(*_):
        raise DataError("text.jsonl: not text")

    monkeypatch.setattr("charter.plan.project_plan.plan_project", unreadable)
    planned = plan_work(work, RunOptions()).planned
    assert (planned.plan, planned.problem, planned.overflow) == (None, "DataError: text.jsonl: not text", None)


def test_no_place_on_offer_is_no_overflow(work, monkeypatch):
    def nowhere(*_):
        raise InfeasibleError("no place offers what resources ask for")

    monkeypatch.setattr("charter.plan.project_plan.plan_project", nowhere)
    assert plan_work(work, RunOptions()).planned.problem.startswith("InfeasibleError")


def test_a_supervisor_sent_anyway_runs_anyway(root, monkeypatch):
    sent = []
    monkeypatch.setattr("charter.launch.scheduler.SubprocessScheduler.submit", lambda _, job: sent.append(job) or "1")
    submit_supervisor(load_project(root), root, "subprocess", [], anyway=True)
    assert sent[0].command[-1] == "--anyway"
