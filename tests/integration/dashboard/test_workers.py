"""Child processes: asked once for many, killed when nobody waits, started again after they died."""

import os
import signal
import threading

import pytest
from dashboard_case import lively
from waiting import eventually

from charter.dashboard.work import pool
from charter.dashboard.work.child import JOBS, answer
from charter.dashboard.work.pool import LANES, Workers

FILE = """
name: asked
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {infra: aws, accelerators: [H100:8]}
"""


@pytest.fixture
def workers():
    found = Workers(per_lane=1)
    yield found
    found.close()


@pytest.fixture
def root(tmp_path):
    (tmp_path / "charter.yaml").write_text(FILE)
    return tmp_path


def asked(root, **controls):
    return {"root": str(root), "question": controls, "state": 0}


@pytest.fixture
def slow(tmp_path):
    """What takes long enough to be stopped: a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "never.jsonl")
    return {"path": str(tmp_path / "never.jsonl"), "id": "x"}


def test_an_answer_is_kept_until_its_files_change(workers, root):
    first = workers.wait("plan", asked(root), "one state", seconds=300)
    assert first["found"]["name"] == "asked"
    assert workers.known("plan", asked(root), "one state") is first
    assert workers.known("plan", asked(root), "another state") is None


def test_many_who_ask_the_same_share_one_process(workers, root):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(workers.wait("plan", asked(root), 0, seconds=300)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(item is found[0] for item in found)


def test_an_error_is_an_answer(workers, root):
    found = workers.wait("plan", asked(root, accelerators="Z9:8"), 0, seconds=300)
    assert "no accelerator is called 'Z9'" in found["error"]
    assert workers.wait("plan", asked(root), 0, seconds=300)["found"]["name"] == "asked", "the process lives on"


class Answering:
    """A child that gives what is next in a list."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, job, arguments, tell):
        return self.answers.pop(0)

    def kill(self):
        pass


def test_an_error_is_asked_again_after_a_moment_an_answer_never(monkeypatch):
    monkeypatch.setattr(pool, "ERROR_SECONDS", float("inf"))
    child = Answering({"error": "the server is away"}, {"found": 1}, {"found": 2})
    found = Workers(per_lane=1, child=lambda: child)
    assert found.wait("find", {}, 0) == {"error": "the server is away"}
    assert found.known("find", {}, 0) == found.wait("find", {}, 0) == {"error": "the server is away"}
    monkeypatch.setattr(pool, "ERROR_SECONDS", -1.0)
    assert found.known("find", {}, 0) is None
    assert found.wait("find", {}, 0) == found.wait("find", {}, 0) == found.known("find", {}, 0) == {"found": 1}
    found.close()


def test_a_ledger_that_cannot_be_read_is_an_error_and_not_a_project_without_a_run(tmp_path):
    case = lively(tmp_path / "demo", pid=os.getpid())
    (case.run / "ledger.sqlite").write_bytes(b"SQLite format 3\x00" + b"nothing" * 4000)
    assert "damaged" in answer({"job": "accuracy", "arguments": {"root": str(case.root)}}, print)["error"]
    (tmp_path / "new").mkdir()
    assert "none" in answer({"job": "accuracy", "arguments": {"root": str(tmp_path / "new")}}, print)["found"]


def test_work_that_nobody_waits_for_is_killed(workers, root, slow):
    given_up = workers.ask("find", slow, 0)
    child = eventually(lambda: given_up.child)
    process = eventually(lambda: child._process)
    workers.leave(given_up)
    assert eventually(lambda: process.poll() is not None), "killed, though it was in the middle of a read"
    (root / "r.jsonl").write_text('{"id": "x"}\n')
    assert workers.wait("find", {"path": str(root / "r.jsonl"), "id": "x"}, 0, seconds=300) == {"found": {"offset": 0}}


def test_work_goes_on_while_somebody_waits(workers, slow):
    one, other = workers.ask("find", slow, 0), workers.ask("find", slow, 0)
    assert one is other
    child = eventually(lambda: one.child)
    process = eventually(lambda: child._process)
    workers.leave(one)
    assert process.poll() is None
    workers.leave(other)
    assert eventually(lambda: process.poll() is not None)


def test_a_lane_that_is_busy_does_not_hold_up_the_other(workers, root, slow):
    busy = workers.ask("find", slow, 0)
    assert workers.wait("plan", asked(root), 0, seconds=300)["found"]["name"] == "asked"
    workers.leave(busy)


def test_a_process_that_dies_is_asked_once_more(workers, root, slow):
    going = workers.ask("find", slow, 0)
    first = eventually(lambda: (child := going.child) and child._process)
    os.kill(first.pid, signal.SIGKILL)
    second = eventually(lambda: (child := going.child) and child._process is not first and child._process)
    assert second
    os.kill(second.pid, signal.SIGKILL)
    assert "was killed, twice" in going.answer.result(timeout=300)["error"]
    assert workers.known("find", slow, 0) is None, "what was killed is no answer to keep"
    workers.leave(going)


def test_waiting_has_an_end(workers, slow):
    assert workers.wait("find", slow, 0, seconds=0.2) == {"error": "no answer within 0 s"}


def test_closing_ends_everything(root, slow):
    found = Workers(per_lane=1)
    going = found.ask("find", slow, 0)
    process = eventually(lambda: (child := going.child) and child._process)
    found.close()
    assert process.poll() is not None
    assert found.wait("plan", asked(root), 0, seconds=5) == {"error": "the dashboard is ending"}


def test_every_job_has_a_lane():
    assert {job for jobs in LANES.values() for job in jobs} == set(JOBS)
    assert pool.PER_LANE >= 1


def test_a_defect_is_told_without_its_text(capsys):
    found = answer({"job": "find", "arguments": {"path": 7}}, lambda _: None)
    assert found["error"].startswith("a defect of Charter (")
    assert "Traceback" in capsys.readouterr().err
