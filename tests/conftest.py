"""What every suite shares: how many examples properties are tried with, and one command tree for all CLI tests."""

import os
from functools import cache

import typer.testing
from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before numpy is loaded: two threads of small problems wait for each other where two workers have the cores.
os.environ.pop("COLUMNS", None)
# Workers of pytest-xdist are given 80; a test that wants a width says so.
settings.register_profile("everyday", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=300, deadline=None)
settings.load_profile("everyday")
# `make chaos` runs the properties with --hypothesis-profile=thorough. No deadlines: tests assert no wall-clock times.

typer.testing._get_command = cache(typer.testing._get_command)
# Typer builds the whole tree of commands anew at each call of a test; it is the same tree.
