"""Stages of several real processes: one that ends, hangs or is lost takes the others with it, and all start again."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from charter.artifacts.group import read_sign

MEMORY_CGROUP = Path("/sys/fs/cgroup/memory")


def grouped(place, processes=3, **stage):
    more = "".join(f", {name}: {value}" for name, value in stage.items())
    text = (place.root / "charter.yaml").read_text()
    head = text[: text.index("  b:")]
    head = head.replace("checkpoint_every: 2", f"checkpoint_every: 2, global_batch: 12{more}")
    (place.root / "charter.yaml").write_text(f'{head}resources: {{accelerators: "cpu:{processes}"}}\n')
    return place


@pytest.fixture
def make_group(tmp_path, new_workplace):
    made = []

    def make(**stage):
        made.append(grouped(new_workplace(tmp_path / "project"), **stage))
        return made[-1]

    yield make
    for process in [process for place in made for process in place.running]:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def expected(tmp_path_factory, new_workplace):
    """The outputs of three processes that nothing happened to."""
    place = grouped(new_workplace(tmp_path_factory.mktemp("undisturbed") / "project"))
    done = place.run(COUNTING_MODULE="group_stage")
    assert done.code == 0, done.err
    return place.outputs()


def pids(work):
    (directory,) = (work.root / "run" / "stages").glob("a-*")
    return [int(path.read_text().split()[0]) for path in sorted(directory.glob("pid-?"))]


def start(work, **environment):
    """A run whose three processes have all come to the end of step 3, and stay there until they are let go."""
    process = work.start(COUNTING_MODULE="group_stage", COUNTING_HOLD="a:3", **environment)
    work.wait_for(lambda: len(list((work.root / "run" / "stages").glob("a-*/pid-?"))) == 3)
    work.wait_for(lambda: all(last_sign(work, rank) == "step 4" for rank in range(3)))
    return process


def last_sign(work, rank):
    """What a process has last said that it is at; before its second step nobody knows its pace."""
    sign = read_sign(work.stage_dir("a"), rank)
    return sign and sign.what


def ledger(work):
    with sqlite3.connect(work.root / "run" / "ledger.sqlite") as connection:
        rows = connection.execute("select outcome, note from attempts order by attempt_id").fetchall()
    connection.close()
    return rows


@pytest.mark.parametrize("launch", ["fork", pytest.param("process", marks=pytest.mark.thorough)])
def test_when_one_process_is_killed_all_start_again_and_the_bits_are_the_same(make_group, expected, launch):
    work = make_group()
    done = work.run(COUNTING_MODULE="group_stage", CHARTER_KILL="a:meet:5:before", CHARTER_FAULT_RANK="1",
                    CHARTER_LAUNCH=launch)  # fmt: skip
    assert done.code == 0, done.err
    assert (done.only("stage_restart")["message"], done.only("stage_restart")["rank"]) == (
        "process 1 of 3 was killed by SIGKILL",
        1,
    )
    assert [event["first_step"] for event in done.events if event["event"] == "stage_started"] == [0, 4]
    assert work.outputs() == expected
    groups = {path.name for path in (work.stage_dir("a") / "meeting").iterdir()}
    assert len(groups) == 2, "every start has a name of its own"


@pytest.mark.parametrize("frozen", ["one", pytest.param("all", marks=pytest.mark.thorough)])
def test_frozen_processes_are_found_and_started_again(make_group, expected, frozen):
    # A busy machine may let a process stand still for seconds, or start one that late, and its peers wait for it.
    work = make_group(hang_timeout="10s")
    process = start(work)
    for pid in pids(work)[1:2] if frozen == "one" else pids(work):
        os.kill(pid, signal.SIGSTOP)
    done = work.wait(process)
    assert done.code == 0, done.err
    restart = done.only("stage_restart")
    assert restart["failure"] == "hung"
    assert "gave no sign of life for" in restart["message"]
    assert [outcome for outcome, _ in ledger(work)] == ["hung", "done"]
    assert work.outputs() == expected
    if frozen == "one":
        log = (work.stage_dir("a") / "log.txt").read_text()
        assert "_meet" in log, "a process that waits for the frozen one prints where"


def test_the_first_cause_is_told_not_what_followed_from_it(make_group):
    work = make_group()
    failed = work.run(COUNTING_MODULE="group_stage", GROUP_FAIL="a:4:1:stage")
    assert failed.code == 5
    assert "stage a: process 1 of 3: the loss is not a number" in failed.err
    assert "failed twice at step 3" in failed.err
    assert "log-1.txt" in failed.err
    failure = json.loads((work.stage_dir("a") / "failure.json").read_text())
    assert (failure["exit_code"], failure["label"], failure["failure"]) == (5, "stage", "error")
    assert "the loss is not a number" in work.status()["a"]["why"]
    assert "lost another process" in (work.stage_dir("a") / "log-2.txt").read_text()


def test_no_process_outlives_the_supervisor(make_group, expected):
    work = make_group()
    process = start(work)
    running = pids(work)
    os.kill(running[2], signal.SIGSTOP)
    process.kill()
    work.wait(process)
    work.wait_for(lambda: not any(map(work.is_running, running)))
    again = work.run(COUNTING_MODULE="group_stage")
    assert again.code == 0, again.err
    assert work.outputs() == expected


def test_processes_notice_that_rank_0_is_gone_even_under_a_frozen_supervisor(make_group):
    work = make_group()
    process = start(work, CHARTER_LAUNCH="process")
    running = pids(work)
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(running[0], signal.SIGKILL)
    work.wait_for(lambda: not any(map(work.is_running, running)))
    process.kill()


def test_a_second_run_is_refused_and_disturbs_nothing(make_group, expected):
    work = make_group()
    first = start(work)
    for pid in pids(work):
        os.kill(pid, signal.SIGSTOP)
    second = work.run(COUNTING_MODULE="group_stage")
    for pid in pids(work):
        os.kill(pid, signal.SIGCONT)
    work.release("a")
    assert (second.code, second.out) == (2, "")
    assert f"held by pid {first.pid} on " in second.err
    assert work.wait(first).code == 0
    assert work.outputs() == expected


@pytest.mark.parametrize("how", [pytest.param("run", marks=pytest.mark.thorough), "one process", "notice"])
def test_all_stop_at_a_boundary_when_one_is_asked_or_the_machine_will_go(make_group, expected, how):
    work = make_group()
    process = start(work)
    match how:
        case "run":
            process.send_signal(signal.SIGTERM)
        case "one process":
            os.kill(pids(work)[1], signal.SIGTERM)
        case "notice":
            (work.root / "run" / "preempt-notice").touch()
    stopped = work.wait(process)
    assert stopped.code == 6, stopped.err
    assert [outcome for outcome, _ in ledger(work)] == ["interrupted"]
    step = work.status()["a"]["step"]
    assert step > 0
    again = work.run(COUNTING_MODULE="group_stage")
    assert again.code == 0, again.err
    assert again.only("stage_started")["first_step"] == step
    assert work.outputs() == expected


def test_another_number_of_processes_is_refused_without_reshard(make_group):
    work = make_group()
    killed = work.run(COUNTING_MODULE="group_stage", CHARTER_KILL="a:checkpoint:4:after:all")
    assert killed.code == -signal.SIGKILL
    work.edit("cpu:3", "cpu:2")
    refused = work.run(COUNTING_MODULE="group_stage")
    assert refused.code == 8
    assert "world_size 3 -> 2" in refused.err
    assert "--reshard" in refused.err
    assert work.run("--reshard", COUNTING_MODULE="group_stage").code == 0
    frozen = json.loads((work.stage_dir("a") / "record.json").read_text())["frozen"]
    assert frozen["world_size"] == 2
    assert "world_size 3 -> 2; no longer bit-identical" in frozen["resharded"]


@pytest.fixture
def memory_group():
    """A control group (v1) of 720 MiB, of which the supervisor takes half; skipped without the right.

    The supervisor is then larger than the process that eats the rest, and yet smaller than any process of the stage
    in the kernel's count, which adds that half to each: it may choose once more before a victim's memory is free.
    """
    place = MEMORY_CGROUP / f"charter-test-{os.getpid()}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(720 * 2**20))
    except OSError as error:
        pytest.skip(f"no memory control group of our own: {error}")
    yield place
    while place.exists():  # what meters the run ends a moment after it
        with contextlib.suppress(OSError):
            place.rmdir()


def test_a_process_that_the_kernel_kills_for_memory_is_told_as_that(make_group, memory_group):
    work = make_group()
    enter = f"open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    run = Path(__file__).parent / "counting_run.py"
    ballast = "ballast = bytearray(b'x') * 280 * 2**20"  # beside some 90 MiB that the supervisor has anyway
    code = f"import os, runpy, sys; {enter}; {ballast}; sys.argv = [{str(run)!r}, {str(work.root)!r}]; runpy.run_path({str(run)!r}, run_name='__main__')"  # noqa: E501
    environment = {**os.environ, "PYTHONPATH": str(run.parent), "COUNTING_MODULE": "group_stage"}
    done = subprocess.run(  # no fork: its memory would count for another group
        [sys.executable, "-c", code],
        env={**environment, "GROUP_FAIL": "a:3:1:eat"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 5, done.stderr
    assert "process 1 of 3 was killed by the kernel for lack of memory" in done.stderr
    assert "micro_batch" in done.stderr
    assert len(ledger(work)) == 2, "tried once more, not a third time"
