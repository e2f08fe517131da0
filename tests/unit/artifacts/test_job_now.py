"""Where a stage's job is, as the files of its directory say."""

from dataclasses import replace

import pytest

from charter.artifacts.checkpoints import STATE, Position
from charter.artifacts.job import JOB_FILE
from charter.artifacts.job_files import JobFiles, Submission, write_submission
from charter.artifacts.stage_state import JobNow, job_now

SENT = Submission(
    scheduler="slurm", name="demo", token="t", number=1, settings="s", attempt=1, nodes=1, spares=0, processes=1,
    accelerator="cpu", count=1, market="owned", job_id="17",
)  # fmt: skip


def test_a_stage_that_was_never_submitted_has_no_job(tmp_path):
    assert job_now(tmp_path) is None


@pytest.mark.parametrize(
    ("newest", "now"),
    [
        (SENT, JobNow(stands="queued", why="waits in the queue as slurm job 17")),
        (replace(SENT, ended=True), None),
        (replace(SENT, job_id=None), None),
    ],
)
def test_the_newest_submission_is_its_job(tmp_path, newest, now):
    write_submission(JobFiles(tmp_path, 1), replace(SENT, job_id="3"))
    write_submission(JobFiles(tmp_path, 2), replace(newest, number=2))
    assert job_now(tmp_path) == now


@pytest.mark.parametrize(
    ("nodes", "waited", "step", "offered"),
    [(2, 700, 30, True), (2, 500, 30, False), (1, 700, 30, False), (2, 700, 0, False)],
)
def test_fewer_nodes_are_offered_to_a_begun_stage(tmp_path, nodes, waited, step, offered):
    write_submission(JobFiles(tmp_path, 1), replace(SENT, nodes=nodes, submitted_at=1000.0))
    (tmp_path / JOB_FILE).write_text('{"stage": "ppo"}')
    (tmp_path / STATE / Position(step).directory).mkdir(parents=True)
    why = job_now(tmp_path, now=1000.0 + waited).why
    assert ("--set pipeline.ppo.resources.num_nodes=1" in why) == offered
