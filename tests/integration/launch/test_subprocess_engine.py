"""The engine contract on this machine's own jobs."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scheduler_contract import (
    LOSE_NODE,
    NODES,
    PREEMPT,
    RECORDS_OF_STARTS,
    EngineUnderTest,
    RunContract,
    SchedulerContract,
)

from charter.artifacts.lease import ends_within, read_holder
from charter.launch.subprocess_scheduler import KEEPER, STATE_VARIABLE, SubprocessScheduler


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
        preempt=lambda scheduler, job_id: scheduler.preempt(job_id),
        lose_node=lose,
    )
    for path in state.glob(f"*/{KEEPER}"):
        keeper = read_holder(path)
        if keeper is not None and keeper.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper.pid, signal.SIGTERM)
            ends_within(keeper, 120)


class TestSubprocess(SchedulerContract, RunContract):
    """All of it."""
