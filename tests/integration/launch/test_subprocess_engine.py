"""The engine contract on this machine's own jobs."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scheduler_contract import (
    LOSE_NODE,
    NODES,
    PREEMPT,
    RECORDS_OF_STARTS,
    EngineUnderTest,
    RunContract,
    SchedulerContract,
    tiny,
)
from waiting import eventually

from charter.artifacts.lease import ends_within, read_holder
from charter.errors import UsageError
from charter.launch import scheduler
from charter.launch.scheduler import KEEPER, STATE_VARIABLE, SubprocessScheduler


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineUnderTest]:
    state = tmp_path / "subprocess-state"

    def lose(scheduler: SubprocessScheduler, job_id: str) -> None:
        """The keeper is gone, and with it everybody who knows of the job's processes."""
        keeper = read_holder(state / job_id / KEEPER)
        os.kill(keeper.pid, signal.SIGKILL)
        assert ends_within(keeper, 120)

    yield EngineUnderTest(
        name="subprocess",
        open=lambda: SubprocessScheduler(state),
        can=frozenset({PREEMPT, LOSE_NODE, NODES, RECORDS_OF_STARTS}),
        environment={STATE_VARIABLE: str(state)},
        preempt=lambda scheduler, job_id: scheduler._signal(job_id, signal.SIGUSR1),
        lose_node=lose,
    )
    for path in state.glob(f"*/{KEEPER}"):
        keeper = read_holder(path)
        if keeper is not None and keeper.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper.pid, signal.SIGTERM)
            ends_within(keeper, 120)


def test_a_keeper_that_comes_too_late_runs_no_job(tmp_path, monkeypatch):
    """Whoever submits is told that there is none: it would run beside the next one of its stage."""
    monkeypatch.setattr(scheduler, "START_SECONDS", 0.0)
    monkeypatch.setattr(scheduler, "KEEPER", "looked-for-in-vain.json")
    job = tiny(tmp_path / "job", "import time; time.sleep(600)", arguments=(str(tmp_path),))
    with pytest.raises(UsageError, match="did not start"):
        SubprocessScheduler(tmp_path / "state").submit(job)
    eventually(lambda: working_for(tmp_path) == [], lambda: working_for(tmp_path))


def working_for(directory: Path) -> list[list[str]]:
    """The commands that run and name something below a directory: keepers and jobs."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if any(word.startswith(str(directory)) for word in words)]


class TestSubprocess(SchedulerContract, RunContract):
    """All of it."""
