import pytest
from held_run import HeldRun


@pytest.fixture
def held(work, tmp_path):
    """A run whose stages wait until they are let go."""
    return HeldRun(work, tmp_path / "gates")
