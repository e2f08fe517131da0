"""The real supervisor, server and stage processes with a stage that needs no torch; real SIGKILLs."""

import importlib.util
import json
import os
import re
import signal
import sqlite3
from pathlib import Path

import pytest

from charter.artifacts import faults
from charter.artifacts.sample_prompts import SAMPLE_PROMPTS
from charter.artifacts.stage_process import run_stage
from charter.artifacts.whole_dir import read_sealed, write_sealed
from charter.ledger import Ledger


def test_a_second_run_does_nothing_and_says_so(work, undisturbed):
    assert work.run().names("stage_done") == ["a", "b", "c"]
    again = work.run()
    assert again.code == 0
    assert again.names("stage_started") == []
    assert {event["why"] for event in again.events if event["event"] == "stage_skipped"} == {"outputs verified"}
    assert work.outputs() == undisturbed
    assert "nothing to be done: all 3 stages" in work.charter("run").out


def test_a_project_elsewhere_with_the_same_spec_has_the_same_outputs_and_fingerprints(work, undisturbed):
    work.run()
    assert work.outputs() == undisturbed
    assert all(re.fullmatch(r"[0-9a-f]{64}", stage["fingerprint"]) for stage in work.status().values())


def test_a_changed_learning_rate_reruns_that_stage_and_what_hangs_on_it(finished):
    finished.edit("b: {kind: sft,", "b: {kind: sft, learning_rate: 3e-4,")
    changed = finished.run()
    assert changed.names("stage_done") == ["b"]
    assert changed.only("stage_pending")["why"] == "learning_rate 1e-05 -> 0.0003"
    finished.edit("a: {kind: pretrain,", "a: {kind: pretrain, learning_rate: 2e-4,")
    upstream = finished.run()
    assert upstream.names("stage_done") == ["a", "b", "c"]
    whys = {event["stage"]: event["why"] for event in upstream.events if event["event"] == "stage_pending"}
    assert whys == {"a": "learning_rate 1e-05 -> 0.0002", "b": "input a changed", "c": "input a changed"}


def test_a_config_that_is_changed_back_reuses_the_old_results(finished):
    finished.edit("a: {kind: pretrain,", "a: {kind: pretrain, learning_rate: 2e-4,")
    finished.run()
    finished.edit("a: {kind: pretrain, learning_rate: 2e-4,", "a: {kind: pretrain,")
    back = finished.run()
    assert (back.code, back.names("stage_started")) == (0, [])


def test_a_changed_price_resource_or_name_reruns_nothing(finished):
    with (finished.root / "charter.yaml").open("a") as file:
        file.write("resources: {price: 2.5, max_nodes: 3}\nbudget: {limit: 9}\nstorage: {keep_last: 5}\n")
    finished.edit("checkpoint_every: 2", "checkpoint_every: 3, resources: {cpus: 1}, timeout: 1h")
    finished.edit("other: other.jsonl", "renamed: other.jsonl")
    finished.edit("data: other,", "data: renamed,")
    again = finished.run()
    assert (again.code, again.names("stage_started"), again.err) == (0, [], "")


def test_a_renamed_project_goes_on_with_its_ledger(work):
    """Killed with everything, renamed, run again: what ran is ended, and nothing is counted twice."""
    assert work.run(CHARTER_KILL="b:checkpoint:2:before:all").code == -signal.SIGKILL
    work.edit("name: count", "name: renamed")
    again = work.run()
    assert (again.code, again.names("attempt_abandoned"), again.names("ledger_rebuilt")) == (0, ["b"], [])
    assert {name: stage["attempts"] for name, stage in work.status().items()} == {"a": 1, "b": 2, "c": 1}
    with Ledger.open(work.root / "run" / "ledger.sqlite", create=False) as ledger:
        assert ledger.running() == ()
        assert {attempt.run for attempt in ledger.attempts()} == {"count", "renamed"}


def test_changed_data_reruns_what_reads_it(finished):
    (finished.root / "other.jsonl").write_text((finished.root / "chat.jsonl").read_text() * 2)
    changed = finished.run()
    assert changed.names("stage_started") == ["c"]
    assert changed.only("stage_pending")["why"] == "input other changed"


def test_damaged_outputs_are_made_again_to_the_same_bits(finished, undisturbed):
    path = finished.stage_dir("a") / "outputs" / "model" / "value.txt"
    path.write_text("tampered")
    assert finished.status()["a"]["why"].startswith("outputs damaged: file model/value.txt has sha256")
    repaired = finished.run()
    assert (repaired.code, repaired.names("stage_started")) == (0, ["a"])
    assert finished.outputs() == undisturbed
    assert (finished.stage_dir("a") / "outputs.damaged-1" / "model" / "value.txt").read_text() == "tampered"


THOROUGH = pytest.mark.thorough
BOUNDARIES = [
    "b:start:0:before",
    pytest.param("b:step:3:after", marks=THOROUGH),
    "b:checkpoint:2:before",
    pytest.param("b:checkpoint:2:after", marks=THOROUGH),
    pytest.param("b:checkpoint:4:before", marks=THOROUGH),
    "b:checkpoint:4:after",
    pytest.param("b:outputs:6:before", marks=THOROUGH),
    "b:outputs:6:after",
    "b:record:6:after",
]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_killed_stage_is_started_again_and_gives_the_same_bits(work, undisturbed, boundary):
    done = work.run(CHARTER_KILL=boundary)
    assert done.code == 0, done.err
    finished_anyway = boundary.startswith("b:record")
    assert done.names("stage_restart") == ([] if finished_anyway else ["b"])
    assert work.outputs() == undisturbed
    assert work.status()["b"]["attempts"] == (1 if finished_anyway else 2)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_after_a_kill_of_everything_the_next_run_goes_on_at_once(work, undisturbed, boundary):
    assert work.run(CHARTER_KILL=f"{boundary}:all").code == -signal.SIGKILL
    again = work.run()
    assert again.code == 0, again.err
    assert "a" not in again.names("stage_started")
    assert work.outputs() == undisturbed


@pytest.mark.parametrize("launch", ["process", pytest.param("fork", marks=THOROUGH)])
def test_both_ways_of_launching_give_the_same_bits(work, undisturbed, launch):
    assert work.run(CHARTER_LAUNCH=launch, CHARTER_KILL="b:checkpoint:2:after").code == 0
    assert work.outputs() == undisturbed


def stage_once(directory: Path, **environment: str) -> int:
    """One attempt in a fork of this process, with faults as asked; its exit code or minus its signal."""
    spec = importlib.util.spec_from_file_location("counting_stage", Path(__file__).parent / "counting_stage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ.update(environment)
        faults.reset_count()
        os._exit(run_stage(lambda: module.run, directory))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_every_crash_point_of_a_stage_recovers_to_the_same_bits(work, undisturbed, tmp_path):
    """All durable actions of one attempt, a crash before and one after each: not luck but the whole list."""
    work.run("--only", "a")
    work.run("--only", "b")
    job = (work.stage_dir("b") / "job.json").read_text()
    expected = undisturbed["b"]

    def fresh(number: int) -> Path:
        directory = tmp_path / f"b-{number}"
        directory.mkdir()
        (directory / "job.json").write_text(job)
        return directory

    assert stage_once(fresh(0), CHARTER_FAULT_LOG=str(tmp_path / "log")) == 0
    actions = (tmp_path / "log").read_text().splitlines()
    assert len(actions) > 15
    for number in range(1, len(actions) + 1):
        for when in ("before", "after"):
            directory = fresh(2 * number + (when == "after"))
            assert stage_once(directory, CHARTER_FAULT_AT=f"{number}:{when}") == -signal.SIGKILL, actions[number - 1]
            assert stage_once(directory) == 0, actions[number - 1]
            record = json.loads((directory / "record.json").read_text())
            assert record["outputs"] == expected, (actions[number - 1], when)
            steps = [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]
            assert steps == [1, 2, 3, 4, 5, 6], (actions[number - 1], when)
            left = [
                path.name
                for path in directory.rglob("*")
                if path.name.startswith((".tmp-", ".gc-")) or ".damaged" in path.name
            ]
            assert left == [], (actions[number - 1], when)


@pytest.mark.thorough
def test_a_disk_that_fills_at_any_point_loses_nothing(work, undisturbed):
    for number in (3, 8, 12, 16, 20, 24):
        full = work.run("--only", "b", CHARTER_LAUNCH="process", CHARTER_FAULT_AT=f"{number}:enospc")
        assert full.code in (0, 8), (number, full.err)
    assert work.run().code == 0
    assert work.outputs() == undisturbed


def test_a_stage_that_fails_twice_at_the_same_step_stops_the_run(work):
    failed = work.run(COUNTING_FAIL="b:3:stage")
    assert failed.code == 5
    assert failed.names("stage_restart") == ["b"]
    assert "stage b: the loss is not a number" in failed.err
    assert "failed twice at step 2" in failed.err
    state = work.status()["b"]
    assert (state["state"], state["why"], state["attempts"]) == ("failed", "the loss is not a number", 2)
    assert work.run().code == 0
    assert work.status()["b"]["state"] == "done"


def test_a_defect_leaves_its_traceback_in_the_log_only(work):
    failed = work.run(COUNTING_FAIL="b:3:defect")
    assert failed.code == 5
    assert "Traceback" not in failed.err + failed.out
    assert "KeyError" in failed.err
    assert "Traceback" in (work.stage_dir("b") / "log.txt").read_text()


def test_exit_code_zero_without_a_record_is_not_done(work):
    failed = work.run(COUNTING_FAIL="b:3:exit0")
    assert failed.code == 5
    assert "without reaching its target" in failed.err
    assert work.status()["b"]["state"] == "failed"


def test_a_stage_that_runs_longer_than_its_timeout_is_ended(work):
    work.edit("b: {kind: sft,", "b: {kind: sft, timeout: 0.5,")
    failed = work.run(COUNTING_FAIL="b:3:hang")
    assert failed.code == 5
    assert "ran longer than its timeout of 0.5 s" in failed.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 6), (signal.SIGINT, 130)])
def test_a_run_that_is_asked_to_stop_saves_first_and_continues_later(work, undisturbed, number, code):
    process = work.start(COUNTING_HOLD="b:3")
    work.wait_for(lambda: any((work.root / "run" / "stages").glob("b-*/progress.json")))
    process.send_signal(number)
    stopped = work.wait(process)
    assert stopped.code == code, stopped.err
    (state,) = [stage for stage in work.status().values() if stage["state"] == "interrupted"]
    assert state["name"] == "b"
    assert state["step"] > 0
    assert "continues from its checkpoint" in state["why"]
    again = work.run()
    assert again.events[0]["event"] == "run_started"
    assert next(e for e in again.events if e["event"] == "stage_started")["first_step"] == state["step"]
    assert work.outputs() == undisturbed


def test_a_dead_supervisor_leaves_no_process_behind(work):
    process = work.start(COUNTING_FAIL="a:3:hang")
    work.wait_for(lambda: any((work.root / "run" / "stages").glob("a-*/progress.json")))
    pid = json.loads((work.stage_dir("a") / "lease.json").read_text())["pid"]
    os.kill(process.pid, signal.SIGKILL)
    work.wait(process)
    work.wait_for(lambda: not work.is_running(pid))


def test_a_killed_stage_server_is_replaced(work, undisturbed):
    process = work.start(COUNTING_HOLD="a:3")
    work.wait_for(lambda: any((work.root / "run" / "stages").glob("a-*/progress.json")))
    stage = json.loads((work.stage_dir("a") / "lease.json").read_text())["pid"]
    server = int(Path(f"/proc/{stage}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    done = work.wait(process)
    assert done.code == 0, done.err
    assert done.names("stage_restart") == ["a"]
    assert work.outputs() == undisturbed


def test_independent_stages_run_side_by_side_when_allowed(work, undisturbed):
    with (work.root / "charter.yaml").open("a") as file:
        file.write("resources: {max_parallel_stages: 2, cpus: 1}\n")
    done = work.run(COUNTING_SECONDS_PER_STEP="0.1")
    order = [(e["event"], e["stage"]) for e in done.events if e["event"] in ("stage_started", "stage_done")]
    assert order.index(("stage_started", "c")) < order.index(("stage_done", "b"))
    assert work.outputs() == undisturbed


def test_only_runs_a_stage_and_what_it_needs(work):
    assert work.run("--only", "c").names("stage_done") == ["a", "c"]
    unknown = work.run("--only", "d")
    assert (unknown.code, "no stage is called 'd'" in unknown.err) == (2, True)


def test_the_ledger_has_every_attempt_with_its_price_and_work(work):
    with (work.root / "charter.yaml").open("a") as file:
        file.write("resources: {price: 3.6}\n")
    work.run(CHARTER_KILL="b:checkpoint:4:after")
    with sqlite3.connect(work.root / "run" / "ledger.sqlite") as connection:
        rows = connection.execute(
            "select stage, outcome, first_step, last_step, tokens, price_micro_usd_per_hour from attempts"
            " order by attempt_id"
        ).fetchall()
    connection.close()
    assert sorted(row[:3] for row in rows) == [("a", "done", 0), ("b", "done", 4), ("b", "killed", 0), ("c", "done", 0)]
    assert {row[5] for row in rows} == {3_600_000}
    assert {row[:3]: row[4] for row in rows} == {
        ("a", "done", 0): 60,
        ("b", "killed", 0): 40,
        ("b", "done", 4): 20,
        ("c", "done", 0): 60,
    }


def test_a_run_over_its_budget_stops_with_a_checkpoint(work):
    with (work.root / "charter.yaml").open("a") as file:
        file.write("resources: {price: 100000}\nbudget: {limit: 50}\n")
    over = work.run(COUNTING_HOLD="a:3")
    assert over.code == 4
    assert "over its limit of $50" in over.err
    assert work.status()["a"]["state"] == "interrupted"
    assert work.run().code == 4
    work.edit("limit: 50", "limit: 5000000")
    assert work.run().code == 0


def test_a_stage_started_under_other_conditions_is_not_continued_in_silence(work):
    assert work.run(CHARTER_KILL="b:checkpoint:4:after:all").code == -signal.SIGKILL
    refused = work.run(ATEN_CPU_CAPABILITY="default")
    assert refused.code == 8
    assert re.search(r"cpu_capability \w+ -> default", refused.err)
    assert "--reshard" in refused.err
    assert work.run("--reshard", ATEN_CPU_CAPABILITY="default").code == 0
    record = json.loads((work.stage_dir("b") / "record.json").read_text())
    assert "no longer bit-identical" in record["frozen"]["resharded"]


def test_threads_stay_as_they_were_when_the_stage_started(work):
    work.edit("b: {kind: sft,", "b: {kind: sft, resources: {cpus: 1},")
    assert work.run(CHARTER_KILL="b:checkpoint:4:after:all").code == -signal.SIGKILL
    work.edit("resources: {cpus: 1}", "resources: {cpus: 2}")
    assert work.run().code == 0
    assert json.loads((work.stage_dir("b") / "record.json").read_text())["frozen"]["threads"] == 1


def test_a_newer_revision_is_shown_and_can_be_accepted(finished, monkeypatch):
    path = finished.stage_dir("a")
    record = read_sealed(path / "record.json")
    old = path.with_name("a-00000000")
    path.rename(old)
    record["fingerprint"] = "0" * 64
    record["identity"]["revision"] = 0
    write_sealed(old / "record.json", record)
    job = read_sealed(old / "job.json")
    job["identity"]["revision"] = 0
    write_sealed(old / "job.json", job)
    assert finished.status()["a"]["why"] == "Charter computes this kind differently (revision 0 -> 3)"
    refused = finished.charter("artifacts", "accept", "a")
    assert refused.code == 2
    accepted = finished.charter("artifacts", "accept", "a", "--yes")
    assert accepted.code == 0, accepted.err
    assert "revision 0 -> 3" in accepted.out
    state = finished.status()["a"]
    assert (state["state"], state["why"], state["fingerprint"]) == (
        "done",
        "kept by `charter artifacts accept`",
        "0" * 64,
    )
    finished.edit("a: {kind: pretrain,", "a: {kind: pretrain, learning_rate: 2e-4,")
    assert finished.status()["a"]["state"] == "pending"


def test_a_pin_keeps_a_finished_stage_and_refuses_to_run_anything_else(finished):
    pin = finished.status()["a"]["fingerprint"]
    finished.edit("a: {kind: pretrain,", f"a: {{kind: pretrain, learning_rate: 2e-4, expected_fingerprint: {pin},")
    kept = finished.run()
    assert (kept.code, kept.names("stage_started")) == (0, [])
    finished.edit(pin, "f" * 64)
    refused = finished.run()
    assert refused.code == 2
    assert "pipeline.a.expected_fingerprint: expected ffffffff" in refused.err


def test_status_has_the_fields_that_machines_rely_on(work):
    pending = json.loads(work.charter("status", "--json").out)
    assert set(pending) >= {"run", "stages"}
    fields = {"name", "kind", "state", "step", "target_step", "attempts", "fingerprint", "outputs", "why"}
    assert all(set(stage) >= fields for stage in pending["stages"])
    assert {stage["state"] for stage in pending["stages"]} == {"pending"}


def test_status_of_a_finished_stage(finished):
    stage = finished.status()["b"]
    assert (stage["state"], stage["step"], stage["target_step"], stage["attempts"]) == ("done", 6, 6, 1)
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in stage["outputs"].values())


def test_a_running_stage_is_seen_as_running(work):
    process = work.start(COUNTING_FAIL="a:3:hang")
    work.wait_for(lambda: any((work.root / "run" / "stages").glob("a-*/progress.json")))
    assert work.status()["a"]["state"] == "running"
    assert work.status()["b"]["state"] == "pending"
    process.kill()


def test_a_stage_that_falls_over_in_answers_goes_on_without(work, undisturbed):
    with (work.root / "charter.yaml").open("a") as file:
        file.write("samples: {prompts: chat}\n")
    done = work.run(COUNTING_FAIL="b:3:answering")
    assert done.code == 0, done.err
    assert done.names("stage_restart") == ["b"]
    assert "it goes on without them" in done.only("stage_note")["message"]
    assert not (work.stage_dir("b") / SAMPLE_PROMPTS).exists()
    assert (work.stage_dir("c") / SAMPLE_PROMPTS).exists()
    assert work.outputs() == undisturbed
