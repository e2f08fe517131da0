"""A real Ray cluster, started once for all tests here and given back at the end."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("scheduler_contract", "engine_workplace")
pytest.importorskip("ray", reason='pip install ".[dev-system]"')

from ray_cluster import RayCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """A head and three nodes."""
    found = RayCluster()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(autouse=True)
def ray_as_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a token of this machine's user nor an address in the environment has a say."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
