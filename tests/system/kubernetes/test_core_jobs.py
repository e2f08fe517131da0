"""Core Jobs against a real API server, scheduler and Job controller (1.20); pods are processes of this machine."""

import base64
import os
import signal
from dataclasses import replace

import pytest

from charter.errors import StageError, UsageError
from charter.launch.kubernetes.scheduler import ClusterOutOfReachError, Kubectl, KubernetesScheduler

pytestmark = pytest.mark.slow


def test_a_job_from_submission_to_its_end(scheduler, kubelets, job, wait):
    asked = job("echo started $CHARTER_RESTART $CHARTER_ENGINE_JOB; sleep 1", accelerators_per_node=2, cpus_per_node=3)
    number = scheduler.submit(asked)
    running = wait(number, phase="running")
    done = wait(number, phase="ended")
    assert (done.cause, done.exit_code, done.restarts) == ("done", 0, 0)
    assert done.nodes == running.nodes
    assert done.nodes[0] in {kubelet.node for kubelet in kubelets}
    assert scheduler.logs(number).startswith(f"started 0 {asked.name}-")
    [attempt] = scheduler.attempts(number)
    assert (attempt.accelerators, attempt.cpus, attempt.nodes, attempt.state) == (2, 3, done.nodes, "Completed")
    assert attempt.seconds is not None
    assert attempt.seconds >= 1


def test_submitting_twice_is_one_job_and_it_is_found_by_its_name(scheduler, job, server):
    asked = job("sleep 60")
    number = scheduler.submit(asked)
    assert scheduler.submit(asked) == number
    assert scheduler.find(asked.name) == number
    assert scheduler.find("charter-tests-sft-never") is None
    jobs = server.request("GET", "/apis/batch/v1/namespaces/default/jobs")["items"]
    assert [item["metadata"]["name"] for item in jobs].count(asked.name) == 1
    scheduler.cancel(number)


def test_a_killed_pod_ends_its_job_and_the_supervisor_sends_another(scheduler, kubelets, job, wait):
    number = scheduler.submit(job("sleep 600"))
    wait(number, phase="running")
    [process] = [found for kubelet in kubelets if (found := kubelet.process_of(number.partition("/")[2]))]
    os.killpg(process.pid, signal.SIGKILL)
    failed = wait(number, phase="ended")
    assert (failed.cause, failed.exit_code, failed.restarts) == ("failed", -9, 0)
    assert failed.reason == "BackoffLimitExceeded"
    [attempt] = scheduler.attempts(number)
    assert attempt.state == "Error"


def test_cancel_ends_job_and_process(scheduler, kubelets, job, wait):
    number = scheduler.submit(job("trap '' TERM; sleep 600"))
    wait(number, phase="running")
    [process] = [found for kubelet in kubelets if (found := kubelet.process_of(number.partition("/")[2]))]
    scheduler.cancel(number)
    assert wait(number, phase="ended").cause == "cancelled"
    assert process.wait(timeout=30) != 0
    scheduler.cancel(number)
    assert scheduler.find(number.partition("/")[2]) is None


def test_a_lost_node_is_told_while_its_process_runs_on(scheduler, kubelets, job, wait, tmp_path):
    """1.20 starts the job elsewhere at once; a newer one waits for the lost node, and `status` then says `ended`."""
    flag, go = tmp_path / "flag", tmp_path / "go"
    second = f"while [ ! -e {go} ]; do sleep 0.2; done; exit 0"
    number = scheduler.submit(job(f"if [ -e {flag} ]; then {second}; fi; touch {flag}; sleep 600"))
    running = wait(number, phase="running")
    [kubelet] = [node for node in kubelets if node.node == running.nodes[0]]
    zombie = kubelet.process_of(number.partition("/")[2])
    kubelet.freeze()
    lost = wait(number, cause="node_lost")
    assert lost.restarts == 1
    go.touch()
    assert zombie.poll() is None, "the process of a lost node runs on: this is what fences are for"
    assert wait(number, phase="ended").cause == "done"
    assert zombie.poll() is None
    kubelet.thaw()
    assert zombie.wait(timeout=30) != 0, "the node is told to end it when it comes back"


def test_preemption_is_told(scheduler, kubelets, job, wait, server):
    """1.20 knows no disruption: whether it counts as a failure is a race there; the supervisor goes on either way."""
    server.request(
        "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000}
    )
    low = [scheduler.submit(job("sleep 25", cpus_per_node=8)) for _ in kubelets]
    for number in low:
        wait(number, phase="running")
    urgent = KubernetesScheduler(replace(scheduler._settings, priority_class="urgent"))
    number = urgent.submit(job("sleep 1", cpus_per_node=8))
    while urgent.poll([number])[number].phase != "ended":
        pass
    ends = [wait(other, phase="ended") for other in low]
    disturbed = [state for state in ends if state.restarts or state.cause != "done"]
    assert len(disturbed) == 1, "one made room"
    assert disturbed[0].restarts == 1 or disturbed[0].exit_code == -15


def test_a_time_limit_leaves_time_for_stopping(scheduler, job, wait):
    script = "trap 'echo stopping; exit 6' TERM; while :; do sleep 0.1; done"
    number = scheduler.submit(replace(job(script), time_limit_seconds=5.0))
    wait(number, phase="running")
    state = wait(number, phase="ended")
    assert (state.cause, state.exit_code) == ("time_limit", 6)
    assert scheduler.attempts(number)[0].state == "DeadlineExceeded"
    assert "stopping" in scheduler.logs(number)


def test_a_secret_reaches_the_process_and_not_the_object(scheduler, settings, job, wait, server):
    data = {"key": base64.b64encode(b"hunter2").decode()}
    server.request("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "judge"}, "data": data})
    with_secret = KubernetesScheduler(replace(settings, secrets={"JUDGE_KEY": "judge/key"}), kubectl=scheduler._kubectl)
    asked = job("test ${#JUDGE_KEY} = 7")
    number = with_secret.submit(asked)
    assert wait(number, phase="ended").cause == "done"
    assert "hunter2" not in str(server.request("GET", f"/apis/batch/v1/namespaces/default/jobs/{asked.name}"))


def test_words_that_look_like_something_else_arrive_as_they_are(scheduler, job, wait):
    words = ("49689e12", "1e3", "0x1F", "017", "0o17", "1_000", ".5", "-1", "yes", "null", "~", "$(HOME)", "$$", "a: b")
    asked = job("")
    number = scheduler.submit(replace(asked, command=("/usr/bin/printf", "%s\n", *words), environment={"A": "1e3"}))
    assert wait(number, phase="ended").cause == "done"
    assert scheduler.logs(number).splitlines() == list(words)


def test_many_jobs_are_asked_about_in_one_call(scheduler, job, calls):
    numbers = [scheduler.submit(job("sleep 60")) for _ in range(8)]
    calls.clear()
    assert set(scheduler.poll(numbers)) == set(numbers)
    assert len(calls) == 1
    for number in numbers:
        scheduler.cancel(number)


def test_a_job_that_cannot_be_placed_says_why_it_waits(scheduler, kubelets, job, wait):
    number = scheduler.submit(job("true", accelerators_per_node=64))
    state = wait(number, phase="queued", restarts=0)
    while not state.reason:
        state = scheduler.poll([number])[number]
    assert "Insufficient nvidia.com/gpu" in state.reason
    scheduler.cancel(number)


def test_an_api_server_that_is_away_is_not_a_lost_job(scheduler, server, job, wait):
    number = scheduler.submit(job("sleep 8"))
    wait(number, phase="running")
    server.stop_program("kube-apiserver")
    with pytest.raises(ClusterOutOfReachError, match="does not answer"):
        scheduler.poll([number])
    server.start_api_server()
    assert wait(number, phase="ended").cause == "done"


def test_what_the_server_refuses_is_said(scheduler, settings, job):
    lost = KubernetesScheduler(replace(settings, namespace="nowhere"))
    with pytest.raises(StageError, match='namespaces "nowhere" not found'):
        lost.submit(job("true"))
    with pytest.raises(UsageError, match="is invalid"):
        scheduler.submit(job("true", environment={"NOT=A NAME": "1"}))
    unknown = replace(settings, context="elsewhere")
    with pytest.raises(StageError, match="elsewhere"):
        KubernetesScheduler(unknown, kubectl=Kubectl(settings=unknown)).poll(["job/x"])
