"""The store of calls in a SQLite file, under SIGKILL."""

import pytest

pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.thorough

from call_kills import *  # noqa: F403


@pytest.fixture
def where(tmp_path):
    return tmp_path / "calls.sqlite"
