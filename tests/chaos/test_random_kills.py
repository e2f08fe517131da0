"""SIGKILL at random moments of a whole pipeline, again and again; the outputs are the undisturbed ones.

The kills come from outside, at times drawn from a seed, on the supervisor or on a stage; nothing in the code knows.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import stage_pids

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]
CHARTER = [sys.executable, "-m", "charter.cli.main"]
MOST_KILLS = 12


def charter(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHARTER, *arguments], capture_output=True, text=True)


def status(project: Path) -> dict:
    return json.loads(charter("status", "-C", str(project), "--json").stdout)


def outputs(project: Path) -> dict[str, dict[str, str]]:
    return {stage["name"]: stage["outputs"] for stage in status(project)["stages"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[dict[str, dict[str, str]], float]:
    """Outputs of a run that nothing happened to, and how long it took."""
    project = tmp_path_factory.mktemp("undisturbed") / "project"
    charter("init", "--template", "cai-smoke", str(project))
    began = time.monotonic()
    done = charter("run", "-C", str(project), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return outputs(project), time.monotonic() - began


def kill_somebody(project: Path, supervisor: subprocess.Popen, draws: random.Random) -> None:
    """Kill a stage process or the supervisor, whichever the draw says."""
    stages = stage_pids(project)
    victim = draws.choice(stages) if stages and draws.random() < 0.5 else supervisor.pid
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_kills_change_no_byte_and_no_cent(undisturbed, tmp_path, seed):
    expected, seconds = undisturbed
    draws, project = random.Random(seed), tmp_path / "project"
    charter("init", "--template", "cai-smoke", str(project))
    kills = 0
    for _ in range(4 * MOST_KILLS):
        run = subprocess.Popen(
            [*CHARTER, "run", "-C", str(project), "--yes", "--set", "resources.price=3.6"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while run.poll() is None and kills < MOST_KILLS:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(timeout=seconds * draws.uniform(0.03, 0.15))  # a kill for every tenth of the run, or so
            if run.poll() is None:
                kill_somebody(project, run, draws)
                kills += 1
        problems = run.communicate()[1]
        if run.returncode == 0:
            break
        assert run.returncode in (-signal.SIGKILL, 5), problems
    assert outputs(project) == expected
    assert kills >= 3
    cost = json.loads(charter("cost", "report", "-C", str(project), "--json").stdout)
    attempts = cost["attempts"]
    assert all(attempt["ended_at"] is not None for attempt in attempts)
    assert sum(attempt["outcome"] == "done" for attempt in attempts) == len(expected)
    assert sum(attempt["outcome"] == "killed" for attempt in attempts) >= 1
    assert sum(attempt["micro_usd"] for attempt in attempts) == cost["actual"]["micro_usd"] > 0
