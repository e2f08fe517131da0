"""Jobs on a real Slurm, with slurmdbd and without: what becomes of them, and what its records say of it."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, slurm_cluster

from charter.errors import InfeasibleError, UsageError
from charter.launch.job import StageJob
from charter.launch.slurm.commands import SlurmUnreachableError
from charter.launch.slurm.scheduler import SlurmScheduler
from charter.spec.launching import SlurmSettings

SETTLES = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: {}); print('hears', flush=True)\n"
STAYS = SETTLES.format("None") + "while True: time.sleep(0.1)"
STOPS = SETTLES.format("sys.exit(6)") + "while True: time.sleep(0.1)"
"""A process that is asked to stop before it says that it hears is simply ended."""


@pytest.fixture(scope="module")
def without_slurmdbd() -> Iterator[SlurmCluster]:
    """A cluster that keeps its records in the file of jobcomp."""
    with slurm_cluster() as started:
        yield started


@pytest.fixture(scope="module", params=["slurmdbd", "jobcomp"])
def kept(request: pytest.FixtureRequest) -> SlurmCluster:
    """A cluster that keeps its records here."""
    found: SlurmCluster = request.getfixturevalue("cluster" if request.param == "slurmdbd" else "without_slurmdbd")
    return found


@pytest.fixture
def engine(kept: SlurmCluster) -> Iterator[SlurmScheduler]:
    yield SlurmScheduler(SlurmSettings(seconds_between_polls=0), environ=kept.environment)
    empty(kept)


def empty(cluster: SlurmCluster) -> None:
    """Nothing runs or waits there."""
    cluster.run("scancel", "--user=root", check=False)
    cluster.wait_until(lambda: not cluster.run("squeue", "-h"), "an empty queue")


def job(directory: Path, code: str, **values: object) -> StageJob:
    """A job of a few lines of Python."""
    usual: dict[str, object] = {
        "name": f"charter-test-{os.urandom(4).hex()}",
        "run": "test",
        "stage": "tiny",
        "kind": "sft",
        "attempt": 1,
        "command": (sys.executable, "-c", code),
        "directory": directory,
        "log": directory / "log.txt",
    }
    return StageJob(**{**usual, **values})  # type: ignore[arg-type]


def hears(directory):
    """Whether the process of a job there is ready for signals."""
    log = directory / "log.txt"
    return log.exists() and "hears" in log.read_text()


def wait_for(cluster, engine, job_id, phase, **wanted):
    """Poll until a job is so."""

    def found():
        state = engine.poll([job_id])[job_id]
        return state if state.phase == phase and all(getattr(state, k) == v for k, v in wanted.items()) else None

    return cluster.wait_until(found, f"job {job_id} to be {phase} {wanted}")


def test_a_preempted_job_is_let_go_and_every_start_is_recorded(kept, engine, work_dir):
    job_id = engine.submit(job(work_dir, STAYS, accelerator="H100-80GB", accelerators_per_node=2))
    wait_for(kept, engine, job_id, "running")
    (node,) = kept.nodes_of(job_id)
    kept.preempt(node, seconds=1)
    held = wait_for(kept, engine, job_id, "queued", restarts=1, cause="preempted")
    engine.release(job_id)
    again = wait_for(kept, engine, job_id, "running", restarts=1)
    assert (held.cause, again.cause) == ("preempted", "preempted")
    engine.cancel(job_id)
    wait_for(kept, engine, job_id, "ended", cause="cancelled")
    first, second = engine.attempts(job_id)
    assert (first.state, first.restart, second.state, second.restart) == ("PREEMPTED", 0, "CANCELLED", 1)
    assert {first.accelerators, second.accelerators} == {2}
    # Slurm would have held it for two minutes.
    assert second.started_at - first.ended_at < 100


def test_a_job_that_stops_when_it_is_preempted_says_so(kept, engine, work_dir):
    job_id = engine.submit(job(work_dir, STOPS))
    wait_for(kept, engine, job_id, "running")
    kept.wait_until(lambda: hears(work_dir), "the job's process")
    kept.preempt(kept.nodes_of(job_id)[0], seconds=0.1)
    state = wait_for(kept, engine, job_id, "ended")
    assert (state.cause, state.exit_code) == ("preempted", 6)


def test_a_lost_node_leaves_a_zombie_and_its_job_starts_elsewhere(kept, engine, work_dir):
    job_id = engine.submit(job(work_dir, STAYS, nodes=2))
    wait_for(kept, engine, job_id, "running")
    lost = kept.nodes_of(job_id)[0]
    (zombie,) = kept.wait_until(
        lambda: [pid for pid, where in kept.processes_of(job_id, "lambda").items() if where == lost], "its process"
    )
    kept.lose_node(lost)
    try:
        engine.release(job_id)
        state = wait_for(kept, engine, job_id, "running", restarts=1, cause="node_lost")
        assert lost not in state.nodes
        assert Path(f"/proc/{zombie}").exists(), "what ran there lives on"
    finally:
        kept.bring_back(lost)
    kept.wait_until(lambda: not Path(f"/proc/{zombie}").exists(), "the end of the zombie")
    engine.cancel(job_id)
    wait_for(kept, engine, job_id, "ended")
    first, second = engine.attempts(job_id)
    assert (first.state, second.state) == ("NODE_FAIL", "CANCELLED")
    assert second.started_at - first.ended_at < 100


def test_a_time_limit_is_told_before_it_comes(cluster, without_slurmdbd, work_dir):
    # Slurm's clock for this ticks in half minutes, and its least limit is a minute: on both clusters at once. It tells
    # up to a tick too early: one that is to hear it is told after 40 s at the earliest, not while it starts.
    sent = []
    for there in (cluster, without_slurmdbd):
        engine = SlurmScheduler(SlurmSettings(seconds_between_polls=0), environ=there.environment)
        limits = [(STOPS, 120), (STAYS, 60)]
        jobs = [
            engine.submit(job(work_dir, code, time_limit_seconds=seconds, stop_before_seconds=50))
            for code, seconds in limits
        ]
        sent.append((there, engine, jobs))
    for there, engine, jobs in sent:
        told, cut = (wait_for(there, engine, job_id, "ended") for job_id in jobs)
        assert (told.cause, told.exit_code) == ("time_limit", 6)
        assert (cut.cause, cut.reason) == ("time_limit", "TIMEOUT")
        empty(there)


def test_a_job_that_depends_on_another_runs_after_it_or_never(kept, engine, work_dir):
    good, bad = (engine.submit(job(work_dir, f"import sys; sys.exit({code})")) for code in (0, 1))
    after_good = engine.submit(job(work_dir, "pass"), after=(good,))
    after_bad = engine.submit(job(work_dir, "pass"), after=(good, bad))
    assert wait_for(kept, engine, after_good, "ended").cause == "done"
    assert wait_for(kept, engine, after_bad, "ended").cause == "cancelled"
    (first,), (second,) = engine.attempts(good), engine.attempts(after_good)
    assert second.started_at >= first.ended_at
    assert engine.attempts(after_bad) == ()


def test_one_lost_task_of_an_array_starts_again_alone(kept, engine, work_dir):
    job_id = engine.submit(job(work_dir, STAYS, shards=6, cpus_per_node=4))
    kept.wait_until(
        lambda: all(it.phase == "running" for it in engine.poll([job_id])[job_id].tasks.values()), "all tasks to run"
    )
    states = engine.poll([job_id])[job_id].tasks
    lost = states[0].nodes[0]
    there = {task for task, state in states.items() if state.nodes == (lost,)}
    kept.lose_node(lost)
    try:
        engine.release(job_id)
        kept.wait_until(
            lambda: (
                (state := engine.poll([job_id])[job_id]).restarts == len(there)
                and all(it.phase == "running" and it.nodes for it in state.tasks.values())
            ),
            "the lost tasks to run again",
        )
    finally:
        kept.bring_back(lost)
    engine.cancel(job_id)
    wait_for(kept, engine, job_id, "ended")
    attempts = engine.attempts(job_id)
    assert {it.shard for it in attempts if it.state == "NODE_FAIL"} == there
    assert len(attempts) == 6 + len(there)


def test_records_are_those_of_sacct_to_the_second(kept, engine, work_dir):
    if "slurmdbd" not in kept.configuration.read_text():
        pytest.skip("sacct needs slurmdbd")
    job_id = engine.submit(job(work_dir, STAYS, nodes=2, accelerator="H100-80GB", accelerators_per_node=4))
    wait_for(kept, engine, job_id, "running")
    kept.run("scontrol", "requeue", job_id)
    wait_for(kept, engine, job_id, "queued", restarts=1)
    engine.release(job_id)
    wait_for(kept, engine, job_id, "running", restarts=1)
    engine.cancel(job_id)
    wait_for(kept, engine, job_id, "ended")
    attempts = engine.attempts(job_id)
    rows = [
        row.split("|")
        for row in kept.run(
            "env", "SLURM_TIME_FORMAT=%s", "sacct", "-D", "-X", "-P", "-n", "-j", job_id,
            "--format=State,Start,End,ElapsedRaw,AllocTRES",
        ).splitlines()
    ]  # fmt: skip
    found = [(it.started_at, it.ended_at, it.seconds, it.accelerators) for it in attempts]
    assert found == [
        (float(start), float(end), float(elapsed), int(re.search(r"gres/gpu=(\d+)", tres)[1]))
        for _, start, end, elapsed, tres in rows
    ]
    assert [it.state for it in attempts] == ["REQUEUED", "CANCELLED"]


def test_a_controller_that_restarts_loses_nothing(kept, work_dir):
    engine = SlurmScheduler(SlurmSettings(seconds_between_polls=0), environ=kept.impatient_environment)
    gate = work_dir / "gate"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.1)"
    job_id = engine.submit(job(work_dir, code))
    wait_for(kept, engine, job_id, "running")
    kept.wait_until(lambda: kept.processes_of(job_id, "pathlib"), "the job's process")
    kept.stop_controller()
    assert engine.poll([job_id])[job_id].phase == "running"
    with pytest.raises(SlurmUnreachableError, match="does not answer"):
        engine.find("charter-test")
    kept.begin_controller()
    gate.touch()
    assert wait_for(kept, engine, job_id, "ended").cause == "done"


def test_what_the_cluster_does_not_have_is_said(kept, engine, work_dir):
    with pytest.raises(InfeasibleError, match="gpu_types"):
        engine.submit(job(work_dir, "pass", accelerator="B200-192GB", accelerators_per_node=1))
    with pytest.raises(UsageError, match="partition"):
        SlurmScheduler(SlurmSettings(partition="nowhere"), environ=kept.environment).submit(job(work_dir, "pass"))
    with pytest.raises(UsageError, match=r"resources\.shards"):
        engine.submit(job(work_dir, "pass", shards=30_000))


def test_a_signal_that_kills_is_an_exit_code(kept, engine, work_dir):
    job_id = engine.submit(job(work_dir, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"))
    assert wait_for(kept, engine, job_id, "ended", cause="failed").exit_code == -signal.SIGKILL
