"""`charter artifacts import` from a real MLflow server: a run of MLflow's own client into the ledger."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import DataError

START = 1_780_000_000_000


@pytest.fixture
def logged(sqlite_server, request):
    """A run of three steps, two seconds apart, and the server that has it."""
    client = sqlite_server.client()
    run = client.create_run(client.create_experiment(request.node.name), start_time=START).info.run_id
    for step in (1, 2, 3):
        client.log_metric(run, "loss", 3.0 / step, timestamp=START + 2000 * step, step=step)
    client.log_param(run, "max_steps", "3")
    client.set_terminated(run, "FINISHED", end_time=START + 10_000)
    return SimpleNamespace(server=sqlite_server, run=run)


def test_a_run_on_a_server_is_counted_once(logged, workplaces, tmp_path):
    place = workplaces.make_workplace(tmp_path / "project")
    command = [
        "artifacts",
        "import",
        logged.run,
        "--tracking-uri",
        logged.server.uri,
        "--as",
        "b",
        "-C",
        str(place.root),
    ]
    command += ["--accelerators", "A100-80GB:4", "--usd-per-hour", "1.8", "--json"]
    told = [json.loads(CliRunner().invoke(app, command).stdout) for _ in range(2)]
    assert [item["changes"] for item in told] == [["added"], ["known"]]
    (attempt,) = told[0]["attempts"]
    assert (attempt["started_at"], attempt["duration_milliseconds"]) == (START / 1000, 10_000)
    assert told[0]["usd"] == pytest.approx(4 * 1.8 * 10 / 3600, abs=1e-6)


def test_a_run_that_is_not_there_is_said(logged):
    done = CliRunner().invoke(app, ["artifacts", "import", "0" * 32, "--tracking-uri", logged.server.uri])
    assert isinstance(done.exception, DataError)
    assert "0" * 32 in str(done.exception)
