"""Runs as MLflow's own file store and database keep them, and files as they may be broken."""

import sqlite3

import pytest

from charter.errors import DataError, UsageError
from charter.run.imports.importing import read_run
from charter.run.imports.logs import (
    MlflowPoint,
    MlflowRun,
    found_run,
    read_run_directory,
    refuse_missing_place,
    run_directory,
)

START = 1_780_000_000_000


def log_run(client, *, status="FINISHED"):
    """Three steps, the last two of them logged again by a resumed process; a system metric; two parameters."""
    run = client.create_run(client.create_experiment("tuning"), start_time=START).info.run_id
    for number, step in enumerate((1, 2, 3, 2, 3), start=1):
        at = START + number * 2000
        for name, value in (("loss", 3.0 / step), ("mean_token_accuracy", 0.5), ("num_tokens", 100.0 * step)):
            client.log_metric(run, name, value, timestamp=at, step=step)
        client.log_metric(run, "system/cpu", 99.0, timestamp=at, step=number)
    client.log_param(run, "max_steps", "3")
    client.log_param(run, "per_device_train_batch_size", "4")
    client.log_param(run, "max_length", "None")
    client.set_terminated(run, status, end_time=START + 12_000)
    return run


def check(found):
    assert (found.format, found.target_step, found.is_done) == ("mlflow", 3, True)
    assert [(item.first_step, item.last_step) for item in found.attempts] == [(0, 3), (1, 3)]
    first, second = found.attempts
    assert (first.started_at, first.seconds) == (START / 1000, 6.0)
    assert second.started_at + second.seconds == START / 1000 + 12
    assert first.steps[0].metrics == {"loss": 3.0, "token_accuracy": 0.5}
    assert [step.tokens for step in first.steps] == [100, 100, 100]
    assert [step.tokens for step in second.steps] == [200, 100], "the counter fell with the second process"
    assert found.facts == {"mbs": "4"}


@pytest.fixture
def client_of(monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return lambda uri: mlflow.MlflowClient(tracking_uri=uri)


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_the_same_in_files_and_by_the_client(tmp_path, client_of):
    store = tmp_path / "mlruns"
    run = log_run(client_of(store.as_uri()))
    by_files = read_run(str(store))
    check(by_files)
    by_client = read_run(run, tracking_uri=store.as_uri())
    check(by_client)
    assert by_files.identity == by_client.identity
    with pytest.raises(DataError, match="nothing"):
        read_run("nothing", tracking_uri=store.as_uri())


@pytest.mark.filterwarnings("ignore")
def test_a_failed_run_is_not_done(tmp_path, client_of):
    log_run(client_of((tmp_path / "mlruns").as_uri()), status="FAILED")
    assert not read_run(str(tmp_path / "mlruns")).is_done


def written(folder, *, run="abc", loss="1000 3.0 1\n2000 2.0 2\n", meta="status: 3\nrun_id: abc\n"):
    directory = folder / run
    (directory / "metrics" / "eval").mkdir(parents=True)
    (directory / "params").mkdir()
    (directory / "meta.yaml").write_text(meta)
    (directory / "metrics" / "loss").write_text(loss)
    return directory


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    found = read_run_directory(written(tmp_path, loss="1000 3.0 1\n2000 2.0 2\n3000 1."))
    assert found.last_step == 2
    assert found.notes == ("metrics/loss: its last line has no end and was left out",)


def test_all_bad_lines_are_said_at_once(tmp_path):
    directory = written(tmp_path, loss="1000 3.0 1\nx\n2000 2.0 2\n5 y 1\n")
    with pytest.raises(DataError) as caught:
        read_run_directory(directory)
    assert "loss:2: expected time" in str(caught.value)
    assert "loss:4: expected time" in str(caught.value)


def test_bytes_that_are_no_text_are_said_or_shown(tmp_path):
    directory = written(tmp_path)
    (directory / "params" / "note").write_bytes(b"caf\xe9")
    assert read_run_directory(directory).last_step == 2
    (directory / "meta.yaml").write_bytes(b"run_id: \xe9\n")
    with pytest.raises(DataError, match=r"meta\.yaml cannot be read"):
        read_run_directory(directory)


@pytest.mark.parametrize("meta", ["status: " + "9" * 5000, "status: " + "[" * 3000])
def test_absurd_facts_of_a_run_are_refused(tmp_path, meta):
    with pytest.raises(DataError, match=r"meta\.yaml cannot be read"):
        read_run_directory(written(tmp_path, meta=meta))


def test_times_beyond_every_float_are_said_or_not_there(tmp_path):
    late = read_run_directory(written(tmp_path, meta=f"status: 3\nstart_time: {'9' * 400}\n"))
    assert late.last_step == 2
    with pytest.raises(DataError, match="loss:1: expected time"):
        read_run_directory(written(tmp_path, run="other", loss=f"{'9' * 400} 3.0 1\n"))


def test_of_several_runs_one_has_to_be_named(tmp_path):
    written(tmp_path / "0")
    written(tmp_path / "0", run="def")
    with pytest.raises(UsageError, match="holds 2 MLflow runs"):
        run_directory(tmp_path)
    assert run_directory(tmp_path / "0" / "def") == tmp_path / "0" / "def"
    assert run_directory(tmp_path / "nothing") is None


def test_a_run_without_steps_is_refused(tmp_path):
    directory = written(tmp_path, loss="1000 0.5 0\n")
    with pytest.raises(DataError, match="no metric with steps"):
        read_run_directory(directory)


def test_figures_of_one_step_that_come_later_belong_to_it():
    points = {
        "loss": [MlflowPoint(step=5, value=1.0, time=10.0), MlflowPoint(step=10, value=float("nan"), time=20.0)],
        "eval_loss": [MlflowPoint(step=5, value=2.0, time=11.0), MlflowPoint(step=10, value=1.5, time=21.0)],
    }
    run = MlflowRun(
        run_id="a", source="a", content="", started_at=None, ended_at=None, points=points, parameters={}, finished=False
    )
    found = found_run(run)
    (attempt,) = found.attempts
    assert attempt.steps[0].metrics == {"loss": 1.0, "eval_loss": 2.0}
    assert attempt.steps[1].metrics == {"eval_loss": 1.5}
    assert not found.is_done
    assert attempt.first_step == 0


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("nowhere", {}, "give --tracking-uri"),
        ("nowhere", {"format": "verl"}, "correct the path"),
        ("x", {"format": "verl", "tracking_uri": "http://localhost:1"}, "leave one of them out"),
    ],
)
def test_what_cannot_be_read_says_what_would_work(run, options, message):
    with pytest.raises(UsageError, match=message):
        read_run(run, **options)


def test_a_directory_without_any_run_names_its_logs(tmp_path):
    (tmp_path / "train.log").write_text("")
    with pytest.raises(UsageError, match=r"name one of train\.log"):
        read_run(str(tmp_path))
    with pytest.raises(UsageError, match="holds no MLflow run"):
        read_run(str(tmp_path), format="mlflow")
    with pytest.raises(DataError, match="holds no trainer_state"):
        read_run(str(tmp_path), format="trl")


@pytest.mark.parametrize(
    "uri", ["sqlite:///{}/no.db", "sqlite+pysqlite:///{}/no.db?timeout=1", "{}/no", "file://{}/no"]
)
def test_a_place_that_is_not_there_is_not_made(tmp_path, uri):
    with pytest.raises(UsageError, match="MLflow would make it"):
        read_run("0" * 32, tracking_uri=uri.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_of_mlflow_stays_as_it_is(tmp_path):
    path = tmp_path / "ledger.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE attempts (number)")
    connection.close()
    for content in (path.read_bytes(), b"", b"text " * 1000):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is no database of MLflow"):
            read_run("0" * 32, tracking_uri=f"sqlite:///{path}?timeout=1")
        assert path.read_bytes() == content
    assert [item.name for item in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize("uri", ["http://localhost:1", "databricks", "databricks://lab", "postgresql://localhost/x"])
def test_places_elsewhere_are_mlflows_to_find(uri):
    refuse_missing_place(uri)
