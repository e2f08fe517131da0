"""The commands as a user types them; the stages are those of the counting project."""

import json
import os
import pty
import sys

import forks


def test_a_dry_run_says_what_would_run_and_why_and_starts_nothing(work):
    dry = work.charter("run", "--dry-run")
    assert dry.code == 0, dry.err
    assert dry.out.split()[:5] == ["a", "would", "run", "never", "run"]
    assert not (work.root / "run" / "stages").exists()
    (work.root / "chat.jsonl").unlink()
    assert work.charter("run", "--dry-run").code == 8


def test_an_override_counts_like_the_file(finished):
    dry = finished.charter("run", "--dry-run", "--set", "pipeline.c.learning_rate=0.5")
    assert [line.split()[:2] for line in dry.out.splitlines()] == [["a", "stays"], ["b", "stays"], ["c", "would"]]


def test_json_events_are_one_object_per_line(finished):
    events = [json.loads(line) for line in finished.charter("run", "--json-events").out.splitlines()]
    assert [event["event"] for event in events] == ["run_started", *["stage_skipped"] * 3, "run_done"]


def test_progress_events_carry_step_rate_and_metrics(work):
    progress = next(event for event in work.run().events if event["event"] == "stage_progress")
    assert {"stage", "step", "target_step", "unit", "rate_per_second", "metrics", "cost_usd"} <= set(progress)


def test_logs_of_a_stage(work):
    assert work.charter("logs", "a").code == 2
    work.run(COUNTING_FAIL="b:3:defect")
    logs = work.charter("logs", "b")
    assert logs.code == 0
    assert "KeyError" in logs.out
    assert work.charter("logs", "nobody").code == 2


def test_verify_finds_what_size_and_time_do_not_show(work, undisturbed):
    work.run()
    path = work.stage_dir("a") / "outputs" / "model" / "value.txt"
    before = path.stat()
    path.write_text("0" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert work.status()["a"]["state"] == "done"
    found = json.loads(work.charter("status", "--json", "--verify").out)["stages"][0]
    assert (found["state"], found["why"][:15]) == ("interrupted", "outputs damaged")
    assert work.status()["a"]["state"] == "interrupted"
    assert work.run().code == 0
    assert work.outputs() == undisturbed


def test_status_for_people(finished):
    lines = finished.charter("status").out.splitlines()
    assert lines[0] == "count"
    assert lines[1].split()[:5] == ["✔", "a", "pretrain", "done", "6/6"]


def test_accept_of_a_stage_that_is_current_or_new_is_refused(work):
    new = work.charter("artifacts", "accept", "a", "--yes")
    assert (new.code, "no finished result" in new.err) == (2, True)
    work.run()
    current = work.charter("artifacts", "accept", "a", "--yes")
    assert (current.code, "nothing to accept" in current.err) == (2, True)


def test_env_and_doctor_need_no_project(work):
    found = json.loads(work_free("check", "versions", "--json"))
    assert found["torch"]
    assert found["python"].startswith("3.")
    checks = json.loads(work.charter("check", "environment", "--json").out)["checks"]
    assert {"python", "torch", "disk", "locks"} <= {check["name"] for check in checks}


def work_free(*arguments):
    command = [sys.executable, "-m", "charter.cli.main", *arguments]
    return forks.run(command, capture_output=True, text=True, check=True).stdout


def test_a_terminal_gets_the_live_view(finished):
    main, side = pty.openpty()
    command = [sys.executable, "-m", "charter.cli.main", "run", "-C", str(finished.root)]
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("CI", None)
    done = forks.run(command, stdin=side, stdout=side, stderr=side, env=environment, check=False)
    os.close(side)
    shown = os.read(main, 65536).decode()
    os.close(main)
    assert done.returncode == 0
    assert "nothing to be done: all 3 stages" in shown
    assert "\x1b[?25l" in shown


def test_a_template_is_never_written_over_a_project(work):
    done = work.charter("run", "--template", "cai-smoke")
    assert done.code == 2
    assert (work.root / "charter.yaml").read_text().startswith("name: count")
