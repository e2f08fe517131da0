"""The engine contract on a real Ray cluster."""

import pytest
from ray_cluster import RayCluster
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

from charter.launch.ray.scheduler import RayScheduler
from charter.spec.launching import RaySettings


@pytest.fixture
def engine(cluster: RayCluster) -> EngineUnderTest:
    """Nodes are lost by falling silent, with all that is on them frozen; preempted by an autoscaler's notice."""

    def lose(scheduler: RayScheduler, job_id: str) -> None:
        cluster.freeze_node(scheduler.poll([job_id])[job_id].nodes[0])

    def preempt(scheduler: RayScheduler, job_id: str) -> None:
        cluster.drain_node(scheduler.poll([job_id])[job_id].nodes[0], deadline_seconds=600)

    return EngineUnderTest(
        name="ray",
        open=lambda: RayScheduler(RaySettings(address=cluster.address)),
        can=frozenset({PREEMPT, LOSE_NODE, NODES, RESTARTS, RECORDS_OF_STARTS}),
        launch={"ray": {"address": cluster.address}},
        environment={"RAY_AUTH_MODE": "disabled"},
        patience_seconds=900.0,
        preempt=preempt,
        lose_node=lose,
        restore=cluster.mend,
    )


class TestRay(SchedulerContract, RunContract):
    """All of it."""
