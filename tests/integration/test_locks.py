import json
import os
import signal
import sys
from pathlib import Path

import forks


def started(work, stage="a"):
    return any((work.root / "run" / "stages").glob(f"{stage}-*/progress.json"))


def test_two_runs_in_one_directory_at_once(work, undisturbed):
    first = work.start(COUNTING_HOLD="a:3")
    work.wait_for(lambda: started(work))
    second = work.run()
    assert second.code == 2
    assert f"held by pid {first.pid} on " in second.err
    assert second.out == ""
    work.release("a")
    done = work.wait(first)
    assert done.code == 0, done.err
    assert work.outputs() == undisturbed


def test_a_second_stage_process_in_one_stage_directory_is_refused(work):
    first = work.start(COUNTING_FAIL="a:3:hang")
    work.wait_for(lambda: started(work))
    holder = json.loads((work.stage_dir("a") / "lease.json").read_text())["pid"]
    second = forks.run(
        [sys.executable, "-m", "counting_stage", "--stage-dir", str(work.stage_dir("a"))],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    assert f"pid {holder}" in second.stderr
    first.kill()


def test_stop_from_another_terminal(work, undisturbed):
    assert work.charter("stop").out.startswith("no run is active")
    process = work.start(COUNTING_HOLD="a:3")
    work.wait_for(lambda: started(work))
    stopped = work.charter("stop")
    assert stopped.code == 0, stopped.err
    assert f"pid {process.pid}" in stopped.out
    assert work.wait(process).code == 6
    assert work.run().code == 0
    assert work.outputs() == undisturbed


def test_a_stopped_process_that_comes_back_cannot_write_into_a_taken_directory(work, undisturbed):
    """An orphan that was only suspended is ended before its directory is used again."""
    process = work.start(COUNTING_HOLD="a:3", CHARTER_LAUNCH="process")
    work.wait_for(lambda: started(work))
    pid = json.loads((work.stage_dir("a") / "lease.json").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    work.wait(process)
    assert work.run().code == 0
    assert not work.is_running(pid)
    assert work.outputs() == undisturbed
