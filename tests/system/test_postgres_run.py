"""A run whose stages pay for calls, with its ledger on a PostgreSQL server: real processes, real kills."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from call_cost_contract import *  # noqa: F403
from call_cost_contract import run

from charter.engines.project import load_project
from charter.ledger import Ledger


@pytest.fixture(scope="module")
def make_workplace():
    """The workplaces of the integration tests."""
    path = Path(__file__).parents[1] / "integration" / "conftest.py"
    spec = importlib.util.spec_from_file_location("integration_workplace", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["integration_workplace"] = module
    spec.loader.exec_module(module)
    return module.make_workplace


@pytest.fixture
def new_paying(tmp_path, postgres, make_workplace):
    """Projects of one name with one ledger on a server, each in a directory of its own."""
    address, places = postgres.new_database(), []

    def new(directory):
        places.append(make_workplace(tmp_path / directory))
        places[-1].edit("name: count", f"name: count\nstorage: {{ledger: '{address}'}}")
        return places[-1]

    yield new
    for process in [process for place in places for process in place.running]:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def paying(new_paying):
    """The project of the integration tests, with `storage.ledger`."""
    return new_paying("project")


def test_nothing_of_the_ledger_is_in_files(paying):
    assert run(paying).code == 0
    assert not list(paying.root.rglob("*.sqlite"))
    assert paying.status()["a"]["attempts"] == 1


def test_another_project_in_the_same_ledger_is_not_counted(paying, new_paying):
    assert run(paying).code == 0
    apart = new_paying("apart")
    apart.edit("name: count", "name: apart")
    done = apart.charter("cost", "report", "--json")
    assert (done.code, "there is no run" in done.err) == (2, True)


def test_a_renamed_project_is_booked_once(paying):
    paying.edit("name: count", "name: count\nresources: {price: 3600}")
    assert paying.run().code == 0
    address = load_project(paying.root).storage.ledger
    with Ledger.open(address) as ledger:
        before = ledger.total()
    paying.edit("name: count", "name: again")
    done = paying.run()
    assert (done.code, done.names("stage_started")) == (0, [])
    with Ledger.open(address) as ledger:
        assert ledger.total() == before
    assert before.totals.micro_usd > 0


def test_a_password_in_the_address_is_refused_without_being_repeated(paying):
    paying.edit("postgresql://postgres@", "postgresql://postgres:hunter2@")
    done = run(paying)
    assert done.code == 2
    assert "PGPASSFILE" in done.err
    assert "hunter2" not in done.err + done.out


def test_a_namesake_that_runs_is_not_ended_as_abandoned(new_paying):
    first, second = new_paying("first"), new_paying("second")
    running = first.start(COUNTING_HOLD="a:3")
    first.wait_for(lambda: first.status()["a"]["state"] == "running")
    refused = second.run()
    assert refused.code == 2
    assert "another run of 'count' is under way" in refused.err
    first.release("a")
    assert first.wait(running).code == 0
    assert [stage["attempts"] for stage in first.status().values()] == [1, 1, 1]


def test_what_a_killed_supervisor_left_is_no_namesake(new_paying):
    place = new_paying("project")
    running = place.start(COUNTING_HOLD="a:3")
    place.wait_for(lambda: place.status()["a"]["state"] == "running")
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    done = place.run()
    assert done.code == 0, done.err
    assert done.names("attempt_abandoned") == ["a"]
