"""The engine contract on a real Slurm of four nodes, with slurmdbd."""

from collections.abc import Iterator

import pytest
from scheduler_contract import (
    LOSE_NODE,
    NODES,
    PREEMPT,
    RECORDS_OF_STARTS,
    RESTARTS,
    EngineUnderTest,
    RunContract,
    SchedulerContract,
)
from slurm_cluster import SlurmCluster

from charter.launch.slurm.scheduler import SlurmScheduler
from charter.spec.launching import SlurmSettings


@pytest.fixture
def engine(cluster: SlurmCluster) -> Iterator[EngineUnderTest]:
    lost: list[str] = []

    def preempt(scheduler: SlurmScheduler, job_id: str) -> None:
        cluster.preempt(cluster.nodes_of(job_id)[0])

    def lose(scheduler: SlurmScheduler, job_id: str) -> None:
        """The controller gives up the first node; its slurmd is dead, what it started lives on."""
        lost.append(cluster.nodes_of(job_id)[0])
        cluster.lose_node(lost[-1])

    def restore() -> None:
        while lost:
            cluster.bring_back(lost.pop())

    yield EngineUnderTest(
        name="slurm",
        open=lambda: SlurmScheduler(SlurmSettings(seconds_between_polls=0.2)),
        can=frozenset({PREEMPT, LOSE_NODE, NODES, RESTARTS, RECORDS_OF_STARTS}),
        environment={"SLURM_CONF": str(cluster.configuration)},
        launch={"slurm": {"seconds_between_polls": "0.5s"}},
        preempt=preempt,
        lose_node=lose,
        restore=restore,
    )
    cluster.run("scancel", "--user=root", check=False)


class TestSlurm(SchedulerContract, RunContract):
    """All of it."""
