"""The engine contract on Kubernetes: a real API server, scheduler and Job controller; pods are processes here.

The server is 1.20, which knows no Indexed Jobs (arrays), no JobSets (several nodes) and no disruptions (preemption):
the tests of these are left out, and what is rendered for them is checked against the schemas of newer releases.
"""

import pytest
from scheduler_contract import LOSE_NODE, RECORDS_OF_STARTS, EngineUnderTest, RunContract, SchedulerContract
from waiting import eventually

from charter.launch.kubernetes.scheduler import KubernetesScheduler

pytestmark = pytest.mark.slow
NO_ARRAYS = "this API server (1.20) has no Indexed Jobs"


@pytest.fixture
def engine(server, kubelets, settings):
    def lose(scheduler, job_id):
        """Nobody hears from the node any more, until Kubernetes has given it up."""
        [node] = scheduler.poll([job_id])[job_id].nodes
        next(kubelet for kubelet in kubelets if kubelet.node == node).freeze()
        eventually(lambda: (state := scheduler.poll([job_id])[job_id]).restarts or state.phase == "ended", every=0.5)

    launch = {
        "image": settings.image,
        "volume_claim": settings.volume_claim,
        "mount_path": settings.mount_path,
        "validation": settings.validation,
    }
    return EngineUnderTest(
        name="kubernetes",
        open=lambda: KubernetesScheduler(settings),
        can=frozenset({LOSE_NODE, RECORDS_OF_STARTS}),
        launch={"kubernetes": launch},
        environment={"KUBECONFIG": str(server.kubeconfig)},
        lose_node=lose,
        patience_seconds=240,
    )


class TestKubernetes(SchedulerContract, RunContract):
    """What an API server of 1.20 can."""

    def test_an_array_is_one_submission_of_tasks_with_numbers_of_their_own(self):
        pytest.skip(NO_ARRAYS)

    def test_a_lost_shard_is_made_again_alone_and_all_are_published_once(self):
        pytest.skip(NO_ARRAYS)

    def test_an_array_is_one_submission_when_nothing_happens(self):
        pytest.skip(NO_ARRAYS)
