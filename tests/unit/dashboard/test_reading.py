"""What a snapshot says of a project's files, and that it is read again only when they change."""

import json
import os
import subprocess
import sys
import threading

import pytest
from dashboard_case import ProjectCase, lively

from charter.dashboard import reading
from charter.dashboard.reading import ProjectDirectory, ProjectReader, check_roots, find_projects, key_of
from charter.dashboard.snapshot import LedgerNow
from charter.errors import DataError, UsageError


def reader_of(root):
    return ProjectReader(ProjectDirectory(key=key_of(root), root=root, label=root.name))


def states(snapshot):
    return {stage.name: stage.state for stage in snapshot.stages}


def test_states_of_a_run_in_the_middle(case):
    snapshot = reader_of(case.root).snapshot()
    assert states(snapshot) == {"sft": "done", "pm": "running", "ppo": "pending", "judged": "pending"}
    assert snapshot.stage("pm").step == 10
    assert snapshot.stage("pm").checkpoint_at is not None
    assert snapshot.stage("ppo").inputs == ("sft", "pm")
    assert (snapshot.owner, snapshot.budget_limit_usd, snapshot.problems) == ("ada", 10.0, ())


def test_the_sums_of_the_ledger_and_what_was_lost(case):
    """Two attempts of 50 s and 60 s and one of 30 s at $36 an hour; the first was killed and all of it done again."""
    ledger = reader_of(case.root).snapshot().ledger
    assert ledger.whole.totals.micro_usd == 1_400_000
    assert ledger.stage("sft").totals.lost_to_kills_micro_usd == 500_000
    assert [(group.name, group.sums.micro_usd) for group in ledger.by_owner] == [("ada", 1_400_000)]
    assert {group.name for group in ledger.by_tag} == {"team: alignment", "goal: safe"}
    assert ledger.outcomes["sft"] == {"killed": 1, "done": 1}
    assert ledger.spend[-1][1] == 1_400_000
    assert [value for _, value in ledger.spend] == sorted(value for _, value in ledger.spend)


def test_a_dead_process_is_an_interruption_though_no_file_has_changed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        reader = reader_of(lively(tmp_path / "demo", pid=child.pid).root)
        assert states(reader.snapshot(wait=True))["pm"] == "running"
    finally:
        child.kill()
        child.wait()
    assert states(reader.snapshot(wait=True))["pm"] == "interrupted"


@pytest.mark.parametrize("how", ["done", "failed"])
def test_a_stage_that_ends_while_it_is_looked_at_is_not_taken_for_interrupted(tmp_path, monkeypatch, how):
    """Its process lived until a moment ago, and left what tells how it ended before it went."""
    case = lively(tmp_path / "demo", pid=os.getpid())

    def just_ended(lease):
        if lease.parent == case.stages["pm"].directory:
            case.done("pm", 20) if how == "done" else case.failed("pm", "the loss is not a number")

    monkeypatch.setattr("charter.artifacts.stage_state.read_holder", just_ended)
    assert states(reader_of(case.root).snapshot())["pm"] == how


def test_a_gate_waits_only_when_its_inputs_are_done(tmp_path):
    case = lively(tmp_path / "demo", pid=os.getpid())
    case.done("pm", 20)
    case.done("ppo", 20)
    found = reader_of(case.root).snapshot().stage("judged")
    assert found.state == "waiting"
    assert "charter approve judged" in found.why


def test_a_failure_and_a_changed_stage_say_why(tmp_path):
    case = ProjectCase(tmp_path / "demo")
    case.done("sft", 40)
    case.failed("pm", "the loss is not a number")
    assert reader_of(case.root).snapshot().stage("pm").failure == "the loss is not a number"
    path = case.root / "charter.yaml"
    path.write_text(path.read_text().replace("steps: 40", "steps: 80"))
    changed = reader_of(case.root).snapshot().stage("sft")
    assert (changed.phase, changed.state) == ("stale", "pending")
    assert changed.why == "steps 40 -> 80"


def test_nothing_is_read_again_while_nothing_changes(case, monkeypatch):
    reader = reader_of(case.root)
    first = reader.snapshot(wait=True)
    monkeypatch.setattr(reader, "_fresh", lambda version: pytest.fail("read again"))
    assert reader.snapshot(wait=True) is first


@pytest.mark.parametrize("change", ["progress", "event", "attempt", "file", "approval"])
def test_every_change_is_seen(case, change):
    reader = reader_of(case.root)
    before = reader.snapshot(wait=True).version
    match change:
        case "progress":
            case.progress("pm", 11, 20)
        case "event":
            case.event("budget_warning", message="80 %")
        case "attempt":
            case.attempt("ppo", seconds=5)
        case "file":
            (case.root / "charter.yaml").write_text((case.root / "charter.yaml").read_text() + "deadline: 2d\n")
        case "approval":
            (case.run / "approvals").mkdir()
    assert reader.snapshot(wait=True).version != before


def test_a_broken_file_leaves_what_the_run_has_left(case):
    (case.root / "charter.yaml").write_text("name: demo\npipeline: {sft: {kind: sfft}}\n")
    snapshot = reader_of(case.root).snapshot()
    assert states(snapshot) == {"sft": "done", "pm": "running"}
    assert "charter.yaml does not load" in snapshot.problems[0]
    (case.root / "charter.yaml").unlink()
    gone = reader_of(case.root).snapshot()
    assert states(gone) == {"sft": "done", "pm": "running"}
    assert gone.name == "demo"


def test_a_damaged_ledger_is_said_not_raised(case):
    (case.run / "ledger.sqlite").write_bytes(b"SQLite format 3\x00" + b"nothing" * 4000)
    snapshot = reader_of(case.root).snapshot()
    assert snapshot.ledger.problem
    assert any("ledger" in problem for problem in snapshot.problems)
    assert len(snapshot.stages) == 4


def break_ledger(case):
    (case.run / "ledger.sqlite").write_bytes(b"SQLite format 3\x00" + b"nothing" * 4000)


def test_a_ledger_that_breaks_leaves_the_figures_that_were_read(case):
    reader = reader_of(case.root)
    before, attempts = reader.snapshot(wait=True), reader.attempts("sft")
    assert len(attempts) == 2
    break_ledger(case)
    after = reader.snapshot(wait=True)
    assert after.ledger.problem
    assert after.ledger.whole == before.ledger.whole
    assert after.ledger.read_at == before.ledger.read_at == pytest.approx(before.read_at)
    assert "as it was last read, at 20" in after.problems[-1]
    assert reader.attempts("sft") == attempts
    break_ledger(case)
    case.progress("pm", 12, 20)
    assert reader.snapshot(wait=True).ledger.read_at == before.ledger.read_at


def test_a_ledger_that_was_never_read_is_not_said_to_be_of_a_moment(case):
    break_ledger(case)
    reader = reader_of(case.root)
    assert "not known" in reader.snapshot().problems[-1]
    assert reader.attempts("sft") == ()


def test_attempts_are_asked_once_for_a_snapshot_and_not_of_a_ledger_with_a_problem(case, monkeypatch):
    asked = []
    real = reading.read_attempts

    def counted(**where):
        asked.append(where["stage"])
        return real(**where)

    monkeypatch.setattr(reading, "read_attempts", counted)
    reader = reader_of(case.root)
    for stage in ("sft", "pm", "sft", "pm"):
        reader.attempts(stage)
    assert asked == ["sft", "pm"]
    case.attempt("sft", seconds=5)
    reader.snapshot(wait=True)
    assert len(reader.attempts("sft")) == 3
    break_ledger(case)
    reader.snapshot(wait=True)
    reader.attempts("sft")
    assert asked == ["sft", "pm", "sft"]


def test_attempts_that_cannot_be_read_are_those_of_before(case, monkeypatch):
    reader = reader_of(case.root)
    before = reader.attempts("sft")

    def fails(**_):
        raise DataError("the server hung up")

    monkeypatch.setattr(reading, "read_attempts", fails)
    case.progress("pm", 12, 20)
    reader.snapshot(wait=True)
    assert reader.attempts("sft") == before


def test_a_server_is_never_asked_while_a_page_waits(case, monkeypatch):
    """After the first reading: one that hangs would hold every page."""
    path = case.root / "charter.yaml"
    path.write_text(path.read_text() + "storage: {ledger: 'postgresql://db.lab/charter'}\n")
    hanging = threading.Event()
    monkeypatch.setattr(reading, "read_ledger", lambda **_: LedgerNow())
    monkeypatch.setattr(reading, "LOOK_SECONDS", 0.0)
    reader = reader_of(case.root)
    first = reader.snapshot()
    monkeypatch.setattr(reading, "read_ledger", lambda **_: hanging.wait(120) and LedgerNow())
    case.progress("pm", 12, 20)
    reader._read_until = 0.0
    assert reader.snapshot() is first
    hanging.set()


@pytest.mark.parametrize("name", ["progress.json", "record.json", "failure.json", "job.json", "lease.json"])
def test_half_written_files_do_no_harm(case, name):
    directory = case.directory("pm")
    shown = {}
    for content in ("", "{", "[1]", "null", '"text"', '{"step": "many", "target_step": []}'):
        (directory / name).write_text(content)
        shown[content] = len(reader_of(case.root).snapshot().stages)
    assert set(shown.values()) == {4}, shown


def test_discovery(tmp_path):
    for path in ("a/x", "a/y/z", ".hidden/p", "node_modules/q", "deep/1/2/3/4/5"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "charter.yaml").write_text("name: x\n")
    (tmp_path / "a/x/inner").mkdir()
    (tmp_path / "a/x/inner/charter.yaml").write_text("name: inner\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = find_projects([tmp_path, tmp_path / "a"])
    assert [item.label for item in found] == ["a/x", "a/y/z"]
    assert len({item.key for item in found}) == 2
    with pytest.raises(UsageError, match="no directory"):
        check_roots([tmp_path / "nowhere"])


def test_a_run_without_its_file_is_a_project(tmp_path):
    (tmp_path / "old" / "run").mkdir(parents=True)
    (tmp_path / "old" / "run" / "events.jsonl").write_text(json.dumps({"time": 1.0, "event": "run_started"}) + "\n")
    assert [item.label for item in find_projects([tmp_path])] == ["old"]
