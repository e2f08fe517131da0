"""One real Slurm with accounts for the whole directory; a test that needs another one starts its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("scheduler_contract", "engine_workplace", "slurm_cluster")


@pytest.fixture(scope="session")
def cluster() -> Iterator["SlurmCluster"]:  # noqa: F821
    """Four nodes, slurmdbd, MariaDB."""
    from slurm_cluster import missing_programs, slurm_cluster

    missing = missing_programs(accounting=True)
    assert not missing, f"{missing}: tools/system_packages.sh installs what tests of Slurm need; they run as root"
    with slurm_cluster(accounting=True) as started:
        yield started


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """A directory whose name has a space in it."""
    (tmp_path / "work dir").mkdir()
    return tmp_path / "work dir"
