"""A run whose stages pay for calls, with its ledger on a PostgreSQL server: real processes, real kills."""

import importlib.util
import sys
from pathlib import Path

import pytest
from call_cost_contract import *  # noqa: F403
from call_cost_contract import run


@pytest.fixture
def paying(tmp_path, postgres):
    """The project of the integration tests, with `storage.ledger`."""
    path = Path(__file__).parents[1] / "integration" / "conftest.py"
    spec = importlib.util.spec_from_file_location("integration_workplace", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["integration_workplace"] = module
    spec.loader.exec_module(module)
    work = module.make_workplace(tmp_path / "project")
    work.edit("name: count", f"name: count\nstorage: {{ledger: '{postgres.new_database()}'}}")
    yield work
    for process in work.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_nothing_of_the_ledger_is_in_files(paying):
    assert run(paying).code == 0
    assert not list(paying.root.rglob("*.sqlite"))
    assert paying.status()["a"]["attempts"] == 1


def test_another_project_in_the_same_ledger_is_not_counted(paying):
    assert run(paying).code == 0
    paying.edit("name: count", "name: apart")
    done = paying.charter("cost", "report", "--json")
    assert (done.code, "there is no run" in done.err) == (2, True)


def test_a_password_in_the_address_is_refused_without_being_repeated(paying):
    paying.edit("postgresql://postgres@", "postgresql://postgres:hunter2@")
    done = run(paying)
    assert done.code == 2
    assert "PGPASSFILE" in done.err
    assert "hunter2" not in done.err + done.out
