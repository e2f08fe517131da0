import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("sqlalchemy")


@pytest.fixture(scope="session")
def fixture_run() -> ModuleType:
    """The module that writes run directories."""
    spec = importlib.util.spec_from_file_location("fixture_run", Path(__file__).with_name("fixture_run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fixture_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def finished(fixture_run, tmp_path_factory) -> Path:
    return fixture_run.write_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def running(fixture_run, tmp_path_factory) -> Path:
    return fixture_run.write_run(tmp_path_factory.mktemp("running"), finished=False)


@pytest.fixture(scope="session")
def unpriced(fixture_run, tmp_path_factory) -> Path:
    return fixture_run.write_run(tmp_path_factory.mktemp("unpriced"), priced=False)
