"""`lab`: the small projects of `planner_case`."""

from types import ModuleType

import planner_case
import pytest


@pytest.fixture
def lab() -> ModuleType:
    """The module, so that a test says `lab.planned(...)`."""
    return planner_case
