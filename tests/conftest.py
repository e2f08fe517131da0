"""What every suite shares: how many examples properties are tried with, and one command tree for all CLI tests."""

import gc
import os
from functools import cache

import typer.testing
from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before numpy is loaded: two threads of small problems wait for each other where two workers have the cores.
os.environ.pop("COLUMNS", None)
# Workers of pytest-xdist are given 80; a test that wants a width says so.
gc.disable()
# Modules and cases of tests stay to the end: a sixth of collection went into looking for garbage among them.
settings.register_profile("everyday", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None)
settings.load_profile("everyday")
# `make chaos` runs the properties with --hypothesis-profile=thorough. No deadlines: tests assert no wall-clock times.

typer.testing._get_command = cache(typer.testing._get_command)
# Typer builds the whole tree of commands anew at each call of a test; it is the same tree.


def pytest_collection_finish() -> None:
    """Leave what was collected to the end of the process, and look for garbage among what tests make."""
    gc.freeze()
    gc.enable()
