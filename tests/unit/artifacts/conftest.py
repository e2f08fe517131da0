from collections.abc import Callable
from pathlib import Path

import pytest

from charter.artifacts.job import Job, JobInput, write_job
from charter.spec.project import DataSpec
from charter.spec.stage import SftStage


@pytest.fixture
def make_stage(tmp_path: Path) -> Callable[..., Path]:
    """A stage directory with a job in it."""

    def make(name: str = "sft", *, fingerprint: str = "a" * 64, keep_last: int = 2) -> Path:
        directory = tmp_path / f"{name}-{fingerprint[:8]}"
        directory.mkdir(exist_ok=True)
        data = JobInput(
            name="chat", role="data", source="data", path="/c.jsonl", fingerprint="d", data=DataSpec(path="c.jsonl")
        )
        job = Job(
            run="test",
            stage=name,
            kind="sft",
            fingerprint=fingerprint,
            seed=7,
            spec=SftStage(init="base", data=("chat",), steps=6, checkpoint_every=2),
            inputs={"data": (data,)},
            constitution=None,
            frozen={"threads": 1},
            keep_last=keep_last,
        )
        write_job(directory, job)
        return directory

    return make
