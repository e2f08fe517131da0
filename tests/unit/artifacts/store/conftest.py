import os

import pytest

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.copy import Copies, Objects
from charter.artifacts.store.maintenance import Replicator
from charter.artifacts.store.place import LocalPlace


@pytest.fixture(autouse=True)
def unflushed(monkeypatch):
    """Flushing takes most of the time; what it is for is tested in test_store_crashes.py."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def place(tmp_path):
    return LocalPlace(tmp_path / "second")


@pytest.fixture
def copies(place):
    return Copies(Objects(place), "test")


@pytest.fixture
def save():
    """Publish a checkpoint of one file."""

    def checkpoint(stage_dir, step, content=None):
        write = lambda out: (out / "w.bin").write_bytes(content or bytes([step]) * 40) and None  # noqa: E731
        StageDir(stage_dir).save_checkpoint(step, write)

    return checkpoint


@pytest.fixture
def finish():
    """Publish outputs of one file."""

    def outputs(stage_dir, step=6):
        def write(out):
            (out / "model").mkdir()
            (out / "model" / "w.bin").write_bytes(b"done" * 10)

        StageDir(stage_dir).publish_outputs(write, step=step, target_step=step)

    return outputs


@pytest.fixture
def replicator(copies, tmp_path):
    """Copies stage directories as a run does."""

    def make(*stage_dirs, every=1):
        stages = dict.fromkeys(stage_dirs, "a" * 64)
        (tmp_path / "run").mkdir(exist_ok=True)
        return Replicator(copies, run_dir=tmp_path / "run", stages=stages, every=every)

    return make
