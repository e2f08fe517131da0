import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.job_files import JobFiles, read_submission, write_submission
from charter.errors import UsageError
from charter.launch.agent import AgentTask, command_of, parse
from charter.launch.job import secrets_of
from charter.launch.job_launcher import JobLauncher
from charter.launch.launcher import StageStart
from charter.launch.scheduler import JobState
from charter.launch.servers import PoolSpec
from charter.launch.submission import (
    SubmissionFacts,
    job_name,
    preview_job,
    run_words,
    settings_of,
    stage_job,
    submission_of,
    supervisor_job,
)
from charter.physics.node import CORES_PER_ACCELERATOR
from charter.spec.launching import Launch, NodeChecks
from charter.spec.project import ModelSpec, Project, Resources, Serving
from charter.spec.stage import EvalStage, GenerateStage, SftStage
from charter.spec.stage_base import StageResources

ASKED = SubmissionFacts(number=2, token="0a1b2c3d", python="python3")
HERE = Path("/everywhere/run/stages/sft-12345678")


def project(**more):
    stages = {
        "sft": SftStage(init="base", data=("chat",)),
        "many": GenerateStage(policy="base", prompts=("chat",), resources=StageResources(shards=8)),
        "eval": EvalStage(policy="sft", against="base"),
    }
    models = {"base": ModelSpec(model="m")}
    return Project(**{"name": "Harmless 8b", "models": models, "pipeline": stages, **more})


def request(stage="sft", processes=1):
    return StageStart(stage=stage, module="charter.train.sft", stage_dir=HERE, attempt=1, processes=processes)


def of_nodes(**more):
    return project(resources=Resources(accelerators=("H100:8",), num_nodes=2, cpus=16), **more)


def test_accelerators_have_cores_unless_the_file_says_how_many(monkeypatch):
    monkeypatch.setattr("charter.launch.machine.usable_cores", lambda: 2)
    machine = Resources(accelerators=("H100:8",), num_nodes=2)
    job = stage_job(project(resources=machine), request(processes=16), ASKED, scheduler="slurm")
    assert job.cpus_per_node == 8 * CORES_PER_ACCELERATOR
    pool = PoolSpec(model="m", served_name="m", path="/m", engine="vllm", replicas=8)
    served = stage_job(project(resources=machine), replace(request("eval"), pools=(pool,)), ASKED, scheduler="slurm")
    assert served.cpus_per_node == 8 * CORES_PER_ACCELERATOR
    here = stage_job(project(resources=machine), request(processes=16), ASKED, scheduler="subprocess")
    assert here.cpus_per_node == 8, "this machine's own cores decide what runs at once"


def test_a_stage_of_two_nodes_is_one_job_of_an_agent_on_each():
    job = stage_job(of_nodes(), request(processes=16), ASKED, scheduler="slurm")
    assert (job.nodes, job.processes_per_node, job.accelerator, job.accelerators_per_node) == (2, 8, "H100", 8)
    assert job.cpus_per_node == 8, "16 cores, shared by 16 processes, are one for each"
    assert parse(job.command[3:]) == AgentTask(
        stage_dir=HERE,
        module="charter.train.sft",
        job=2,
        token="0a1b2c3d",
        nodes=2,
        processes=8,
        meter_seconds=10.0,
        check_disk_bytes=2 * 1024**3,
        layout="world_size=16",
    )
    assert job.log == HERE / "jobs" / "0002" / "log.txt"
    assert job.name == "charter-harmless-8b-sft-0a1b2c3d"


def test_another_engine_has_one_process_beside_it_on_each_node():
    machine = Resources(accelerators=("cpu:2",), num_nodes=2, cpus=8)
    stages = {"sft": SftStage(init="base", data=("chat",), engine="trl")}
    asked = project(resources=machine, pipeline=stages, launch=Launch(launcher="torchrun"))
    job = stage_job(asked, request(), ASKED, scheduler="slurm")
    task = parse(job.command[3:])
    assert (task.nodes, task.processes, task.launcher, task.layout) == (2, 1, "direct", "world_size=4")
    assert (job.nodes, job.processes_per_node, job.cpus_per_node) == (2, 2, 4)
    assert job.environment["OMP_NUM_THREADS"] == "2"


def test_processes_that_nodes_cannot_share_evenly_are_refused():
    with pytest.raises(UsageError, match="15 processes, which 2 nodes cannot share evenly"):
        stage_job(of_nodes(), request(processes=15), ASKED, scheduler="slurm")


def test_spares_are_asked_for_beside_the_nodes_of_a_stage_that_has_several():
    launch = Launch(node_checks=NodeChecks(spares=1))
    job = stage_job(of_nodes(launch=launch), request(processes=16), ASKED, scheduler="slurm")
    assert (job.nodes, job.spare_nodes, parse(job.command[3:]).expected) == (2, 1, 3)
    alone = stage_job(project(launch=launch), request(), ASKED, scheduler="slurm")
    assert (alone.nodes, alone.spare_nodes) == (1, 0)


def test_an_array_is_a_task_for_every_shard_that_is_missing():
    asked = replace(ASKED, shards=(1, 5, 7))
    job = stage_job(of_nodes(), request("many", 8), asked, scheduler="slurm")
    assert (job.shards, job.nodes, job.processes_per_node, job.accelerators_per_node) == (3, 1, 1, 1)
    assert parse(job.command[3:]).apart
    alone = stage_job(of_nodes(), request("many", 8), ASKED, scheduler="slurm")
    assert (alone.shards, parse(alone.command[3:]).apart) == (1, False)


class Sent:
    name = "slurm"

    def __init__(self):
        self.jobs = []

    def submit(self, job):
        self.jobs.append(job)
        return "7"


POOL = PoolSpec(model="base", served_name="base", path="/m", engine="vllm", replicas=16)


@pytest.mark.parametrize(("pools", "tasks"), [((), 8), ((POOL,), 1)])
def test_servers_of_a_stage_are_started_once(pools, tasks, tmp_path):
    shown = preview_job(of_nodes(), "many", HERE, scheduler="slurm", module="m", pools=pools)
    scheduler = Sent()
    start = replace(request("many", 8), pools=pools, stage_dir=tmp_path)
    JobLauncher(scheduler, of_nodes(), tmp_path).start(start)
    (sent,) = scheduler.jobs
    for job in (shown, sent):
        agent = parse(job.command[3:])
        assert (job.shards, agent.apart, job.nodes) == (tasks, tasks > 1, 2 if pools else 1)


def test_a_stage_that_does_not_train_has_one_process_and_one_accelerator():
    job = stage_job(of_nodes(), request("eval"), ASKED, scheduler="ray")
    assert (job.nodes, job.processes_per_node, job.accelerators_per_node) == (1, 1, 1)


def test_the_time_limit_is_the_engines_and_the_agents():
    job = stage_job(project(launch=Launch(time_limit=3600.0, stop_before=90.0)), request(), ASKED, scheduler="slurm")
    assert (job.time_limit_seconds, job.stop_before_seconds) == (3600.0, 90.0)
    task = parse(job.command[3:])
    assert (task.time_limit_seconds, task.stop_before_seconds) == (3600.0, 90.0)


def test_keys_are_named_and_never_valued(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    serving = {"base": Serving(endpoint="http://judge/v1", api_key="env:JUDGE_KEY")}
    files = {"base": Serving(endpoint="http://judge/v1", api_key="file:/keys/judge")}
    assert dict(secrets_of(project(serving=serving))) == {"JUDGE_KEY": "env:JUDGE_KEY"}
    assert dict(secrets_of(project(serving=files))) == {}
    left_aside = {"base": replace(serving["base"], mode="own")}
    assert dict(secrets_of(project(serving=left_aside))) == {}, "nobody asks it"
    job = stage_job(project(serving=serving), request(), ASKED, scheduler="slurm")
    assert "sk-secret" not in repr(job)


def test_variables_of_the_file_reach_every_process():
    job = stage_job(project(launch=Launch(environment={"NCCL_DEBUG": "WARN"})), request(), ASKED, scheduler="slurm")
    assert job.environment["NCCL_DEBUG"] == "WARN"
    assert job.environment["TQDM_DISABLE"] == "1"


def test_another_setting_is_another_job_and_the_same_is_the_same():
    def settings(of=None, **more):
        return settings_of(stage_job(of or project(), request(), replace(ASKED, **more), scheduler="slurm"))

    assert settings() == settings()
    assert settings() != settings(exclude_nodes=("n1",))
    assert settings() != settings(of=project(launch=Launch(environment={"A": "1"})))


def test_a_submission_is_remembered(tmp_path):
    job = stage_job(of_nodes(), request(processes=16), ASKED, scheduler="slurm")
    submission = submission_of(job, ASKED, request(processes=16), scheduler="slurm", at=12.5)
    assert (submission.count, submission.accelerator, submission.market) == (16, "H100", "owned")
    files = JobFiles(tmp_path, 2)
    assert read_submission(files) is None
    write_submission(files, replace(submission, job_id="77"))
    assert read_submission(files) == replace(submission, job_id="77")
    written = json.loads(files.submission.read_text())
    assert (written["engine"], "scheduler" in written) == ("slurm", False), "fields of files keep their names"
    files.submission.write_text("{}")
    assert read_submission(files) is None


def test_a_stages_own_word_on_spot_is_the_last():
    for everywhere, own, market in ((True, None, "spot"), (True, False, "owned"), (None, True, "spot")):
        stage = SftStage(init="base", data=("chat",), resources=StageResources(use_spot=own))
        asked = project(resources=Resources(use_spot=everywhere), pipeline={"sft": stage})
        job = stage_job(asked, request(), ASKED, scheduler="slurm")
        assert submission_of(job, ASKED, request(), scheduler="slurm", at=0.0).market == market


@given(run=st.text(max_size=80), stage=st.text(max_size=80))
def test_every_name_is_one_that_every_engine_takes(run, stage):
    name = job_name(run, stage, "0a1b2c3d")
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert name.isascii()
    assert name == name.lower()
    assert name.endswith("-0a1b2c3d")


@given(
    st.builds(
        AgentTask,
        stage_dir=st.just(Path("/a b/;c")),
        module=st.just("m"),
        job=st.integers(1, 10**6),
        token=st.text("abcdef0123456789", min_size=8, max_size=8),
        attempt=st.integers(1, 99),
        nodes=st.integers(1, 4096),
        processes=st.integers(1, 16),
        apart=st.booleans(),
        launcher=st.sampled_from(["direct", "torchrun"]),
        time_limit_seconds=st.none() | st.integers(1, 10**11).map(float),
        stop_before_seconds=st.integers(0, 10**5).map(float),
        check_disk_bytes=st.none() | st.integers(0, 2**50),
        expected=st.integers(0, 4096),
        with_parent=st.booleans(),
    )
)
def test_an_agent_is_told_exactly_what_was_meant(task):
    assert parse(command_of(task, python="python3")[3:]) == task


class Holder:
    """A scheduler that has a job, on the nodes that it says."""

    name = "slurm"

    def __init__(self):
        self.state, self.cancelled = JobState(phase="running", nodes=("n1", "n2")), []

    def submit(self, job):
        return "7"

    def poll(self, job_ids):
        return dict.fromkeys(job_ids, self.state)

    def cancel(self, job_id):
        self.cancelled.append(job_id)


@pytest.mark.parametrize(
    ("before", "after", "state", "goes_on"),
    [
        ({"n3"}, {}, JobState(phase="running", nodes=("n1", "n2")), True),
        ({}, {"n3"}, JobState(phase="running", nodes=("n1", "n2")), True),
        ({}, {"n2"}, JobState(phase="running", nodes=("n1", "n2")), False),
        ({}, {"n3"}, JobState(phase="queued"), False),
        ({"n3"}, {}, JobState(phase="queued"), True),
    ],
    ids=["forgotten", "elsewhere", "its own", "in the queue", "in the queue, forgotten"],
)
def test_a_job_outlives_a_change_of_what_is_left_out(tmp_path, monkeypatch, before, after, state, goes_on):
    """A node that was left out comes back after half an hour: a job that was sent without it goes on."""
    nodes = dict.fromkeys(before, "fell silent")
    monkeypatch.setattr("charter.launch.job_launcher.read_bad_nodes", lambda run_dir: nodes)
    start, scheduler = replace(request("sft", processes=16), stage_dir=tmp_path / "sft-12345678"), Holder()
    start.stage_dir.mkdir()
    JobLauncher(scheduler, of_nodes(), tmp_path).start(start)
    nodes = dict.fromkeys(after, "fell silent")
    scheduler.state = state
    again = JobLauncher(scheduler, of_nodes(), tmp_path)
    assert again.recover([start.stage_dir])
    assert again.under_way(start) == goes_on
    assert scheduler.cancelled == ([] if goes_on else ["7"])


def test_a_preview_is_the_job_that_a_run_would_submit():
    job = preview_job(of_nodes(), "sft", HERE, scheduler="slurm", module="charter.train.sft")
    assert (job.nodes, job.processes_per_node) == (2, 8)
    assert preview_job(of_nodes(), "many", HERE, scheduler="slurm", module="m").shards == 8


def test_the_supervisor_is_one_core_without_accelerators():
    job = supervisor_job(
        of_nodes(),
        Path("/everywhere/small.yaml"),
        root=Path("/everywhere"),
        scheduler="slurm",
        only=("sft",),
        words=run_words(("owner=me", "launch.time_limit=1h"), anyway=False),
        token="0a1b2c3d",
    )
    assert job.command[1:] == (
        *("-m", "charter.cli.main", "run", "-C", "/everywhere/small.yaml", "--on", "slurm", "--yes", "--only", "sft"),
        *("--set", "owner=me", "--set", "launch.time_limit=1h"),
    )
    assert (job.cpus_per_node, job.accelerator, job.nodes, job.time_limit_seconds) == (1, "", 1, None)
    assert (job.directory, job.log) == (Path("/everywhere"), Path("/everywhere/run/supervisor/log-0a1b2c3d.txt"))
