"""A stage directory with the job of a small SFT stage, for tests that need one and no fixture of it."""

from pathlib import Path

from charter.artifacts.job import Job, write_job
from charter.spec.stage import SftStage


def write_sft_job(directory: Path) -> Path:
    """Make the directory and write the job; the fingerprint is 64 times `a`, two checkpoints are kept."""
    directory.mkdir(parents=True, exist_ok=True)
    job = Job(
        run="test",
        stage="sft",
        kind="sft",
        fingerprint="a" * 64,
        seed=7,
        spec=SftStage(init="base", data=("chat",), steps=6, checkpoint_every=2),
        inputs={},
        constitution=None,
        frozen={"threads": 1},
        keep_last=2,
    )
    write_job(directory, job)
    return directory
