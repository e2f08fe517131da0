"""What `kubectl` says when something is wrong, as it says it; the calls themselves are tested against a real server."""

from dataclasses import replace

import pytest
from kubernetes_jobs import ONE, QUEUED, SETTINGS

from charter.errors import MissingExtraError, StageError, UsageError
from charter.launch.kubernetes.scheduler import (
    TRIES,
    ClusterOutOfReachError,
    Kubectl,
    KubectlOutput,
    KubernetesScheduler,
)

REFUSED = "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?"


class Faults:
    """Answers in their order, then success."""

    def __init__(self, *answers):
        self.answers, self.commands, self.pauses = list(answers), [], []

    def __call__(self, command, text):
        self.commands.append(command)
        return self.answers.pop(0) if self.answers else KubectlOutput(code=0, out="job.batch/x\n", err="")


def kubectl(faults, settings=SETTINGS):
    return Kubectl(settings=settings, call=faults, pause=faults.pauses.append)


def test_a_cluster_out_of_reach_is_tried_again():
    faults = Faults(
        KubectlOutput(code=1, out="", err=REFUSED), KubectlOutput(code=1, out="", err="etcdserver: request timed out")
    )
    scheduler = KubernetesScheduler(SETTINGS, kubectl=kubectl(faults))
    assert scheduler.submit(ONE) == "job/charter-r1-sft-ab12"
    assert faults.pauses == [0.5, 1.0]


def test_a_cluster_that_stays_out_of_reach_is_said_after_a_few_tries():
    faults = Faults(*[KubectlOutput(code=1, out="", err=REFUSED)] * TRIES)
    with pytest.raises(ClusterOutOfReachError, match="jobs that run are not affected"):
        KubernetesScheduler(SETTINGS, kubectl=kubectl(faults)).poll(["job/a"])


@pytest.mark.parametrize("said", ["", "W1129 deprecated\n{}", "null", "[]", '{"kind": "List"}', '{"kind": 5}'])
def test_rubbish_is_an_error_and_no_news_of_jobs(said):
    faults = Faults(KubectlOutput(code=0, out=said, err=""))
    with pytest.raises(StageError, match="printed no JSON"):
        KubernetesScheduler(SETTINGS, kubectl=kubectl(faults)).poll(["job/a"])


def test_a_submission_that_got_through_unheard_is_not_made_twice():
    exists = 'Error from server (AlreadyExists): error when creating "STDIN": jobs.batch "x" already exists'
    faults = Faults(KubectlOutput(code=1, out="", err=REFUSED), KubectlOutput(code=1, out="", err=exists))
    assert KubernetesScheduler(SETTINGS, kubectl=kubectl(faults)).submit(ONE) == "job/charter-r1-sft-ab12"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ('Error from server (Forbidden): jobs.batch is forbidden: User "a" cannot create', UsageError),
        ('Error from server (BadRequest): strict decoding error: unknown field "spec.x"', UsageError),
        ('Error from server (NotFound): namespaces "a" not found', StageError),
    ],
)
def test_what_the_cluster_refuses(said, error):
    with pytest.raises(error, match=said[:30].replace("(", r"\(").replace(")", r"\)")):
        KubernetesScheduler(SETTINGS, kubectl=kubectl(Faults(KubectlOutput(code=1, out="", err=said)))).submit(ONE)


THERE = "localqueue.kueue.x-k8s.io/team-b\nlocalqueue.kueue.x-k8s.io/team-a\n"
FORBIDDEN = 'Error from server (Forbidden): localqueues.kueue.x-k8s.io is forbidden: User "a" cannot list resource'


@pytest.mark.parametrize(
    "answer", [KubectlOutput(code=0, out=THERE, err=""), KubectlOutput(code=1, out="", err=FORBIDDEN)]
)
def test_a_queue_is_looked_for_in_the_served_version(answer):
    faults = Faults(answer)
    assert KubernetesScheduler(QUEUED, kubectl=kubectl(faults, QUEUED)).submit(ONE) == "job/charter-r1-sft-ab12"
    asked, created = faults.commands
    assert asked == [
        "kubectl", "--namespace", "alignment", "get", "localqueues.kueue.x-k8s.io", "--output", "name"
    ]  # fmt: skip
    assert "create" in created


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            KubectlOutput(code=0, out=THERE.replace("team-a", "team-aa"), err=""),
            "no LocalQueue 'team-a'.*\n.*it has team-b, ",
        ),
        (KubectlOutput(code=0, out="", err="No resources found in alignment namespace."), "it has none"),
        (
            KubectlOutput(code=1, out="", err='error: the server doesn\'t have a resource type "localqueues"'),
            "the cluster has no Kueue",
        ),
    ],
)
def test_a_queue_that_is_not_there_is_refused_before_a_job_waits(answer, message):
    faults = Faults(answer)
    with pytest.raises(UsageError, match=message):
        KubernetesScheduler(QUEUED, kubectl=kubectl(faults, QUEUED)).submit(ONE)
    assert len(faults.commands) == 1, "nothing is created"


def test_a_kind_that_the_cluster_does_not_have_is_passed_over():
    lacking = KubectlOutput(code=1, out="", err='error: the server doesn\'t have a resource type "jobsets"')
    faults = Faults(
        KubectlOutput(code=0, out="", err=""), lacking, KubectlOutput(code=0, out="trainjob.trainer/x\n", err="")
    )
    assert KubernetesScheduler(SETTINGS, kubectl=kubectl(faults)).find("x") == "trainjob/x"


def test_context_and_namespace_stand_in_every_call():
    faults = Faults()
    settings = replace(SETTINGS, context="prod", namespace="alignment")
    KubernetesScheduler(settings, kubectl=kubectl(faults, settings)).cancel("jobset/x")
    [command] = faults.commands
    assert command[:5] == ["kubectl", "--context", "prod", "--namespace", "alignment"]
    assert command[6] == "jobsets.jobset.x-k8s.io,pods", "the set first, so that nothing takes the place of its pods"


def test_without_kubectl_it_is_said_how_to_get_it():
    with pytest.raises(MissingExtraError, match="apt-get install kubernetes-client"):
        KubernetesScheduler(SETTINGS, kubectl=Kubectl(settings=SETTINGS, program="kubectl-is-not-here")).poll(["job/a"])
