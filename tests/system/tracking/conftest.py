"""A small project whose stages count, and real MLflow servers, one per kind of database for all tests."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

pytest.register_assert_rewrite("tracked_runs", "mlflow_server")
TREE = Path(__file__).parents[2]
LONG_SECONDS = 600.0
"""Ends a test that hangs; nothing is measured by it."""


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A server that lives is waited for, however busy the machine is; and what a test sets is gone after it."""
    with mock.patch.dict(os.environ, {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120"}):
        yield


def load_workplace_module():
    path = TREE / "integration" / "conftest.py"
    spec = importlib.util.spec_from_file_location("integration_workplace", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["integration_workplace"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def workplaces():
    return load_workplace_module()


@pytest.fixture(scope="session")
def undisturbed(workplaces, tmp_path_factory):
    """The outputs of a run that nobody follows."""
    place = workplaces.make_workplace(tmp_path_factory.mktemp("undisturbed") / "project")
    done = place.run("--set", "metering.every=0", timeout=LONG_SECONDS)
    assert done.code == 0, done.err
    return place.outputs()


@dataclass
class Held:
    """A run whose stage waits before its fourth step until it is let go."""

    place: object
    stage: str
    file: Path
    process: object = None

    def start(self):
        self.file.write_text("")
        cases = str(TREE / "cases")
        held = f"{self.stage}:4:{self.file}"
        path = os.pathsep.join([cases, str(TREE / "integration")])
        self.process = self.place.start(COUNTING_MODULE="held_stage", HELD=held, PYTHONPATH=path)
        return self.process

    def go_on(self):
        self.file.unlink()
        return self.place.wait(self.process, timeout=LONG_SECONDS)


@pytest.fixture
def held(work, tmp_path):
    """Makes a held run of the test's project."""
    return lambda stage: Held(work, stage, tmp_path / "hold")


@pytest.fixture
def work(workplaces, tmp_path):
    place = workplaces.make_workplace(tmp_path / "project")
    yield place
    for process in place.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory):
    from mlflow_server import MlflowServer

    directory = tmp_path_factory.mktemp("mlflow-sqlite")
    server = MlflowServer(directory=directory, backend=f"sqlite:///{directory / 'mlflow.db'}")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory, postgres):
    from mlflow_server import MlflowServer

    address = postgres.new_database().replace("postgresql://", "postgresql+psycopg://")
    server = MlflowServer(directory=tmp_path_factory.mktemp("mlflow-postgres"), backend=address)
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", "postgres"])
def server(request):
    """A server that lives; a test that kills or freezes it brings it back."""
    found = request.getfixturevalue(f"{request.param}_server")
    if not found.works():
        found.kill()
        found.start()
    return found
