"""What every engine must do, tested on a real one: `class TestSlurm(SchedulerContract, RunContract)` with a fixture.

The fixture `engine` gives an `EngineUnderTest`. `SchedulerContract` asks the engine's own verbs with tiny jobs;
`RunContract` runs a small project on it and does to it what happens on real clusters. All engines here run on this
machine, so that tests see the processes of jobs.
"""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_workplace import PROMPTS, RECORDS, EngineWorkplace
from waiting import eventually

from charter.artifacts.batch_files import finished_batches
from charter.artifacts.job_files import NodeRecord
from charter.launch.job import StageJob
from charter.launch.scheduler import JobState, Scheduler

HOSTILE = "a b;$(touch HOSTILE) `touch HOSTILE` '\"\\ \t%n é"
HELD = "a:4"
"""A stage that something is done to waits after three of its eight steps, and one checkpoint, until the gate opens."""
PREEMPT, LOSE_NODE, NODES, RESTARTS, RECORDS_OF_STARTS = "preempt", "lose_node", "nodes", "restarts", "records"
"""What an engine can: preempt a job, lose a node, run on several, start a job again by itself, say when it ran."""


@dataclass
class EngineUnderTest:
    """A running engine, and what can happen to it."""

    name: str
    """As in `--on`."""
    open: Callable[[], Scheduler]
    can: frozenset[str] = frozenset({NODES, RECORDS_OF_STARTS})
    launch: Mapping[str, Any] = field(default_factory=dict)
    """Section `launch` of a project that uses it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of processes that ask it; also set in this one while tests run."""
    patience_seconds: float = 600.0
    """Only there to end a hang."""
    preempt: Callable[[Scheduler, str], None] | None = None
    """Take a running job's place away, as for a more important one."""
    lose_node: Callable[[Scheduler, str], None] | None = None
    """Let the engine give up the (first) node of a job. The job's processes were frozen before: what is left of them
    must survive this, so that it can be woken as a zombie."""
    restore: Callable[[], None] = lambda: None
    """Give back what the last test has taken away."""


class SchedulerContract:
    """The five verbs, with jobs that are a line of Python each."""

    @pytest.fixture
    def scheduler(self, engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
        for name, value in engine.environment.items():
            monkeypatch.setenv(name, value)
        opened = engine.open()
        yield opened
        opened.close()
        engine.restore()

    @pytest.mark.smoke
    def test_a_job_runs_to_its_end_and_says_how(self, engine, scheduler, tmp_path):
        code = "import os, sys; print('hello from', os.environ['WORD']); sys.exit(0)"
        job_id = scheduler.submit(tiny(tmp_path, code, environment={"WORD": "here"}))
        assert scheduler.find("charter-nobody") is None
        state = ended(engine, scheduler, job_id)
        assert (state.phase, state.cause, state.exit_code or 0) == ("ended", "done", 0)
        soon(engine, lambda: "hello from here" in scheduler.logs(job_id), "the log")
        assert "hello from here" in (tmp_path / "log.txt").read_text()

    def test_a_failed_job_says_its_exit_code(self, engine, scheduler, tmp_path):
        state = ended(engine, scheduler, scheduler.submit(tiny(tmp_path, "import sys; sys.exit(3)")))
        assert (state.cause, state.exit_code) == ("failed", 3)

    def test_a_job_is_found_by_its_name_while_it_runs_and_by_another_client(self, engine, scheduler, tmp_path):
        job = tiny(tmp_path, "import time; time.sleep(600)")
        job_id = scheduler.submit(job)
        other = engine.open()
        try:
            assert other.find(job.name) == job_id
            assert other.poll([job_id])[job_id].phase in ("queued", "running")
        finally:
            other.close()
        scheduler.cancel(job_id)

    @pytest.mark.smoke
    def test_a_cancelled_job_ends_with_its_processes(self, engine, scheduler, tmp_path):
        write = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
        code = f"import os, pathlib, time; {write}; time.sleep(600)"
        job_id = scheduler.submit(tiny(tmp_path, code))
        pid = int(soon(engine, lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the job's pid"))
        soon(engine, lambda: scheduler.poll([job_id])[job_id].phase == "running", "the engine to say that it runs")
        scheduler.cancel(job_id)
        state = ended(engine, scheduler, job_id)
        assert (state.phase, state.cause) == ("ended", "cancelled")
        soon(engine, lambda: not alive(pid), "the end of its process")
        scheduler.cancel(job_id)

    def test_jobs_are_asked_about_together_and_an_unknown_one_is_unknown(self, engine, scheduler, tmp_path):
        jobs = [
            scheduler.submit(tiny(tmp_path / str(number), f"import sys; sys.exit({number})")) for number in range(3)
        ]
        for job_id in jobs:
            ended(engine, scheduler, job_id)
        states = scheduler.poll([*jobs, "987654321"])
        assert [states[job_id].exit_code or 0 for job_id in jobs] == [0, 1, 2]
        assert states["987654321"].phase == "unknown"

    def test_an_array_is_one_submission_of_tasks_with_numbers_of_their_own(self, engine, scheduler, tmp_path):
        code = (
            "import os, pathlib, sys; n = os.environ['CHARTER_SHARD'];"
            f"pathlib.Path({str(tmp_path)!r}, 'task-' + n).touch(); sys.exit(4 if n == '3' else 0)"
        )
        job_id = scheduler.submit(tiny(tmp_path, code, shards=6))
        state = ended(engine, scheduler, job_id)
        assert {path.name for path in tmp_path.glob("task-*")} == {f"task-{number}" for number in range(6)}
        assert (state.cause, state.exit_code) == ("failed", 4)
        if state.tasks:
            codes = {number: task.exit_code or 0 for number, task in state.tasks.items()}
            assert codes == {0: 0, 1: 0, 2: 0, 3: 4, 4: 0, 5: 0}

    def test_every_node_of_a_job_knows_its_number(self, engine, scheduler, tmp_path):
        needs(engine, NODES)
        code = f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, 'node-' + os.environ['CHARTER_NODE_RANK']).touch()"
        state = ended(engine, scheduler, scheduler.submit(tiny(tmp_path, code, nodes=2)))
        assert state.cause == "done"
        assert {path.name for path in tmp_path.glob("node-*")} == {"node-0", "node-1"}

    def test_what_a_job_is_told_arrives_as_it_is(self, engine, scheduler, tmp_path):
        code = "import json, os, sys; print('TOLD' + json.dumps([os.environ['ODD'], sys.argv[1]]))"
        job = tiny(tmp_path, code, environment={"ODD": HOSTILE}, arguments=(HOSTILE,), labels={"owner": HOSTILE})
        job_id = scheduler.submit(job)
        assert ended(engine, scheduler, job_id).cause == "done", scheduler.logs(job_id)
        log = soon(engine, lambda: "TOLD" in (text := (tmp_path / "log.txt").read_text()) and text, "the log")
        line = next(line for line in log.splitlines() if "TOLD" in line)
        assert json.loads(line[line.index("TOLD") + 4 :]) == [HOSTILE, HOSTILE]
        assert not list(tmp_path.rglob("HOSTILE"))
        assert not Path("HOSTILE").exists()

    def test_a_secret_arrives_and_is_never_rendered(self, engine, scheduler, tmp_path, monkeypatch):
        value = secrets.token_hex(16)
        monkeypatch.setenv("CONTRACT_KEY", value)
        code = "import hashlib, os; print('HASH' + hashlib.sha256(os.environ['CONTRACT_KEY'].encode()).hexdigest())"
        job = tiny(tmp_path, code, keys={"CONTRACT_KEY": "env:CONTRACT_KEY"})
        assert value not in scheduler.render(job)
        job_id = scheduler.submit(job)
        assert ended(engine, scheduler, job_id).cause == "done"
        wanted = f"HASH{hashlib.sha256(value.encode()).hexdigest()}"
        soon(engine, lambda: wanted in (tmp_path / "log.txt").read_text(), "the hash of the secret")

    def test_rendering_is_pure(self, scheduler, tmp_path):
        job = tiny(tmp_path, "pass")
        assert scheduler.render(job) == scheduler.render(job)
        assert not (tmp_path / "log.txt").exists()

    def test_the_engines_records_say_when_a_job_ran(self, engine, scheduler, tmp_path):
        needs(engine, RECORDS_OF_STARTS)
        before = time.time()
        job_id = scheduler.submit(tiny(tmp_path, "import time; time.sleep(2)"))
        ended(engine, scheduler, job_id)

        def recorded() -> Any:
            starts = scheduler.attempts(job_id)
            return starts if starts and all(start.ended_at is not None for start in starts) else None

        (start,) = soon(engine, recorded, "the record of its start")
        assert start.restart == 0
        assert before - 1 <= start.started_at <= start.ended_at <= time.time() + 1
        assert start.seconds >= 1


class RunContract:
    """A project on the engine: the same bits whatever happens, one writer at a time, every start in the ledger."""

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
        """The outputs of an undisturbed run on this machine."""
        here = EngineWorkplace(tmp_path_factory.mktemp("here") / "project", on="local")
        here.write()
        here.run()
        return here.outputs()

    @pytest.fixture
    def work(
        self, engine: EngineUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[EngineWorkplace]:
        for name, value in engine.environment.items():
            monkeypatch.setenv(name, value)
        place = EngineWorkplace(
            tmp_path / "project",
            on=engine.name,
            launch=engine.launch,
            environment=engine.environment,
            patience_seconds=engine.patience_seconds,
        )
        yield place
        place.close()
        scheduler = engine.open()
        for stage in ("a", "b", "made"):
            with contextlib.suppress(Exception):
                if (job_id := place.job_id(stage)) is not None:
                    scheduler.cancel(job_id)
        scheduler.close()
        engine.restore()

    @pytest.fixture
    def scheduler(self, engine: EngineUnderTest, work: EngineWorkplace) -> Iterator[Scheduler]:
        opened = engine.open()
        yield opened
        opened.close()

    def test_a_run_gives_the_same_outputs_as_here(self, engine, work, expected):
        work.write()
        work.run()
        assert work.outputs() == expected
        for stage in ("a", "b"):
            (row,) = work.ledger(stage)
            assert (row["infra"], row["outcome"]) == (engine.name, "done")
            assert row["job_id"] == work.job_id(stage)
            assert row["clock"] == "engine"
            assert len(work.jobs(stage)) == 1

    def test_a_killed_worker_is_started_again(self, work, expected):
        work.write(held=HELD)
        process = work.start()
        record = work.wait_at_gate("a")
        os.kill(record.first_pid, signal.SIGKILL)
        work.open_gate()
        events = work.finish(process)
        assert [event["failure"] for event in events if event["event"] == "stage_restart"] == ["lost"]
        assert work.outputs() == expected
        first, second = work.ledger("a")
        assert (first["outcome"], second["outcome"], second["first_step"]) == ("killed", "done", 2)

    def test_a_lost_node_and_its_zombie_never_write_beside_their_successor(self, engine, work, scheduler, expected):
        needs(engine, LOSE_NODE)
        work.write(held=HELD)
        process = work.start()
        record = work.wait_at_gate("a")
        frozen = freeze(record)
        engine.lose_node(scheduler, work.job_id("a"))
        successor = work.wait_at_gate("a", not_pid=record.first_pid)
        assert [found for found in frozen if alive(found)], "the zombie is still there"
        # Its agent stays frozen until the zombie has come to write, and was kept from it by nobody but the fence.
        os.kill(record.first_pid, signal.SIGCONT)
        work.open_gate()
        work.wait_for(lambda: not alive(record.first_pid), "the end of the zombie")
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGCONT)
        work.finish(process)
        assert work.outputs() == expected
        assert successor.first_pid != record.first_pid
        rows = work.ledger("a")
        assert [row["outcome"] for row in rows] == ["killed", "done"]
        tokens = json.loads((work.stage_dir("a") / ".fence").read_text())
        assert tokens["pid"] == successor.first_pid, "nobody has taken the directory from the successor"

    def test_two_attempts_alive_at_once_and_the_earlier_one_ends(self, work, expected):
        """As if an engine took a start for lost that is not: its command is run once more beside it."""
        work.write(held=HELD)
        process = work.start()
        record = work.wait_at_gate("a")
        agent = psutil.Process(record.pid)
        again = subprocess.Popen(agent.cmdline(), env=agent.environ(), cwd=agent.cwd(), start_new_session=True)
        work.wait_at_gate("a", not_pid=record.first_pid)
        work.open_gate()
        work.wait_for(lambda: not alive(record.first_pid), "the end of the earlier attempt")
        work.finish(process)
        again.wait(timeout=work.patience_seconds)
        assert work.outputs() == expected
        assert {"killed", "done"} >= {row["outcome"] for row in work.ledger("a")}
        assert work.ledger("a")[-1]["outcome"] == "done"

    def test_a_preempted_job_goes_on_from_its_checkpoint(self, engine, work, scheduler, expected):
        needs(engine, PREEMPT)
        work.write(held=HELD)
        process = work.start()
        record = work.wait_at_gate("a")
        engine.preempt(scheduler, work.job_id("a"))
        work.wait_for(lambda: not alive(record.first_pid), "the end of the preempted start")
        work.open_gate()
        events = work.finish(process)
        assert [event["failure"] for event in events if event["event"] == "stage_restart"] == ["preempted"]
        assert work.outputs() == expected
        assert len(work.ledger("a")) == 2
        assert work.ledger("a")[1]["first_step"] >= 2

    def test_a_stage_that_outlasts_its_time_limit_is_stopped_at_a_checkpoint_and_goes_on(self, work, expected):
        # The stage waits at the gate, which nobody opens, until it is stopped 20 s after its start.
        work.write(held=HELD, launch={"time_limit": "30m", "stop_before": "1780s"})
        events = work.run()
        restarts = [event for event in events if event["event"] == "stage_restart"]
        assert restarts
        assert {event["failure"] for event in restarts} == {"time_limit"}
        assert work.outputs() == expected
        assert {row["outcome"] for row in work.ledger("a")} == {"interrupted", "done"}

    def test_a_job_outlives_its_supervisor_and_the_next_one_goes_on_with_it(self, work, expected):
        work.write(held=HELD)
        process = work.start()
        work.wait_at_gate("a")
        work.kill_supervisor(process)
        job_id = work.job_id("a")
        process = work.start()
        work.wait_for(lambda: work.named("job_found"), "the job to be found")
        work.open_gate()
        work.finish(process)
        assert [event["job"] for event in work.named("job_found")] == [job_id]
        assert work.outputs() == expected
        (row,) = work.ledger("a")
        assert (row["job_id"], row["outcome"]) == (job_id, "done")

    def test_what_a_job_did_while_no_supervisor_lived_is_in_the_ledger(self, engine, work, scheduler, expected):
        work.write(held=HELD)
        process = work.start()
        work.wait_at_gate("a")
        work.kill_supervisor(process)
        work.open_gate()
        work.wait_for(lambda: work.outputs()["a"], "the end of the stage")
        work.wait_for(lambda: all(record.ended_at for record in work.node_records("a")), "the end of its agent")
        work.run()
        assert work.outputs() == expected
        (row,) = work.ledger("a")
        (record,) = work.node_records("a")
        assert (row["job_id"], row["clock"]) == (work.job_id("a"), "engine")
        # Engines count whole seconds, and a job is there before its agent and after it.
        assert row["started_at"] <= record.started_at + 1
        assert row["started_at"] + row["duration_milliseconds"] / 1000 >= record.ended_at - 1
        if RECORDS_OF_STARTS in engine.can:
            (start,) = scheduler.attempts(work.job_id("a"))
            assert (row["started_at"], row["duration_milliseconds"]) == (start.started_at, round(start.seconds * 1000))

    def test_a_job_that_is_no_longer_what_the_file_says_is_ended(self, work):
        work.write(held=HELD)
        process = work.start()
        record = work.wait_at_gate("a")
        work.kill_supervisor(process)
        work.write(stage_environment={"COUNTING_SECONDS_PER_STEP": "0.1"})
        work.run()
        work.wait_for(lambda: not alive(record.first_pid), "the end of the old job")
        assert len(work.jobs("a")) == 2
        assert len(work.ledger("a")) == 2

    def test_a_run_that_is_stopped_stops_its_job_at_a_checkpoint(self, work, expected):
        work.write(held=HELD)
        process = work.start("--grace", str(work.patience_seconds))
        record = work.wait_at_gate("a")
        process.send_signal(signal.SIGTERM)
        work.finish(process, code=6)
        assert not alive(record.first_pid)
        (row,) = work.ledger("a")
        assert row["outcome"] == "interrupted"
        work.open_gate()
        work.run()
        assert work.ledger("a")[1]["first_step"] == row["last_step"] >= 3
        assert work.outputs() == expected

    def test_a_failing_stage_ends_the_run_with_its_own_words(self, work):
        work.write(stage_environment={"COUNTING_FAIL": "a:3:stage"})
        work.finish(work.start(), code=5)
        assert "the loss is not a number" in (work.root / "err.txt").read_text()
        assert [row["outcome"] for row in work.ledger("a")] == ["failed", "failed"]

    def test_processes_of_two_nodes_work_together(self, engine, work, tmp_path):
        needs(engine, NODES)
        together = {
            "resources": {"cpus": 2, "accelerators": "cpu:2", "num_nodes": 2},
            "pipeline": {
                "a": {
                    "kind": "pretrain",
                    "init": "base",
                    "data": "chat",
                    "steps": 6,
                    "checkpoint_every": 2,
                    "global_batch": 4,
                }
            },
        }
        here = EngineWorkplace(tmp_path / "here", on="local")
        here.write(**together)
        here.run(module="held_group_stage")
        work.write(held=HELD, **together)
        process = work.start(module="held_group_stage")
        record = work.wait_at_gate("a", place=1)
        assert record.processes == 2
        os.kill(record.first_pid, signal.SIGKILL)
        work.open_gate()
        events = work.finish(process)
        (restart,) = [event for event in events if event["event"] == "stage_restart"]
        assert restart["rank"] == 2
        assert work.outputs() == here.outputs()

    def test_a_lost_shard_is_made_again_alone_and_all_are_published_once(self, work, tmp_path):
        records = {"pipeline": {"made": {**RECORDS["made"], "resources": {"shards": 5}}}}
        here = EngineWorkplace(tmp_path / "here", on="local")
        here.write(pipeline=RECORDS)
        here.run(module="sharded_stage")
        work.write(stage_environment={"CHARTER_KILL": "made:make:3:before", "CHARTER_FAULT_RANK": "3"}, **records)
        work.run(module="sharded_stage")
        assert work.outputs() == here.outputs()
        assert finished_batches(work.stage_dir("made")) == PROMPTS
        assert len(work.jobs("made")) == 2
        array, rest = work.jobs("made")
        assert [record.exit_code for record in array.nodes()].count(0) == 4
        assert len([*rest.nodes()]) == 1
        rows = work.ledger("made")
        assert sorted(row["outcome"] for row in rows).count("done") == 5
        assert len(rows) == 6

    def test_an_array_is_one_submission_when_nothing_happens(self, work, tmp_path):
        records = {"pipeline": {"made": {**RECORDS["made"], "resources": {"shards": 4}}}}
        work.write(**records)
        work.run(module="sharded_stage")
        (files,) = work.jobs("made")
        assert len([*files.nodes()]) == 4
        assert len(work.ledger("made")) == 4


def tiny(
    directory: Path,
    code: str,
    *,
    environment: Mapping[str, str] | None = None,
    keys: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    **more: Any,
) -> StageJob:
    """A job of one line of Python."""
    directory.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    return StageJob(
        name=f"charter-contract-tiny-{token}",
        run="contract",
        stage="tiny",
        kind="sft",
        attempt=1,
        command=(sys.executable, "-c", code, *arguments),
        directory=directory,
        log=directory / "log.txt",
        environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
        secrets=keys or {},
        **more,
    )


def ended(engine: EngineUnderTest, scheduler: Scheduler, job_id: str) -> JobState:
    """The state of a job, once it has ended."""

    def found() -> JobState | None:
        state = scheduler.poll([job_id])[job_id]
        return state if state.phase == "ended" else None

    state: JobState = soon(engine, found, f"the end of job {job_id}")
    return state


def soon(engine: EngineUnderTest, found: Callable[[], Any], what: str) -> Any:
    """Ask again and again until it says something."""

    def look() -> Any:
        with contextlib.suppress(FileNotFoundError):
            return found()

    return eventually(look, f"waited for {what}", seconds=engine.patience_seconds, every=0.1)


def needs(engine: EngineUnderTest, what: str) -> None:
    """Skip a test of what an engine cannot do."""
    if what not in engine.can:
        pytest.skip(f"{engine.name} cannot: {what}")


def freeze(record: NodeRecord) -> list[int]:
    """Stop the processes of a start where they are, the agent first; their numbers."""
    pids = [record.pid, record.first_pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def alive(pid: int) -> bool:
    """Whether a process runs, or is frozen; one that has ended and waits for its parent's notice does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
