"""When a run's directory and its copies are sampled, and what a sample says."""

from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from dashboard_case import ProjectCase

from charter.errors import DataError, StageError
from charter.ledger import Ledger
from charter.ledger.stored import RUN_DIRECTORY
from charter.run import watches
from charter.run.copies import back_up
from charter.run.watches import SMALL_BYTES, StorageMeter, sample_now

BUCKET = "s3://bucket/path"


@pytest.fixture
def project():
    return SimpleNamespace(
        name="demo",
        owner="ann",
        tags={"team": "a"},
        resources=SimpleNamespace(infra=None),
        storage=SimpleNamespace(artifacts=BUCKET, ledger=None),
    )


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as opened:
        yield opened


@pytest.fixture
def clock(monkeypatch):
    """Milliseconds since 1970; every look is a millisecond later than the one before."""
    now = SimpleNamespace(milliseconds=0, seconds=0.0)

    def time_ns():
        now.milliseconds += 1
        return now.milliseconds * 1_000_000

    monkeypatch.setattr(watches, "time", SimpleNamespace(time_ns=time_ns, monotonic=lambda: now.seconds))
    return now


def samples(ledger):
    return sorted(ledger.stored(run="demo"), key=lambda item: item.at_milliseconds)


def test_both_ends_of_a_run_and_of_every_stage_are_sampled(project, ledger, tmp_path, clock):
    meter = StorageMeter(project, tmp_path)
    meter.listen({"event": "stage_done"})
    with meter.into(ledger):
        (tmp_path / "run" / "weights").write_bytes(b"x" * 100_000)
        meter.listen({"event": "stage_done"})
        meter.listen({"event": "stage_progress"})
    found = samples(ledger)
    assert [item.why for item in found] == ["run_started", "stage_done", "run_ended"]
    assert found[1].bytes - found[0].bytes >= 100_000
    assert {(item.place, item.owner, item.tags) for item in found} == {(RUN_DIRECTORY, "ann", '{"team": "a"}')}
    assert {(item.provider, item.price_micro_usd_per_gb_month) for item in found} == {("own disk", 0)}


def test_the_end_of_a_run_that_fails_is_sampled_and_its_error_stays(project, ledger, tmp_path, clock):
    with pytest.raises(StageError, match="the stage"), StorageMeter(project, tmp_path).into(ledger):
        raise StageError("the stage failed")
    assert [item.why for item in samples(ledger)] == ["run_started", "run_ended"]


def test_in_between_only_large_changes_are_sampled_and_not_often(project, ledger, tmp_path, clock):
    meter = StorageMeter(project, tmp_path)
    checkpoint = tmp_path / "run" / "weights"
    with meter.into(ledger):
        checkpoint.write_bytes(b"x" * 2 * SMALL_BYTES)
        meter.look()
        assert [item.why for item in samples(ledger)] == ["run_started"]
        clock.seconds += watches.SECONDS_BETWEEN_SAMPLES
        meter.look()
        checkpoint.write_bytes(b"x" * (2 * SMALL_BYTES + 10_000))
        clock.seconds += watches.SECONDS_BETWEEN_SAMPLES
        meter.look()
        checkpoint.unlink()
        clock.seconds += watches.SECONDS_BETWEEN_SAMPLES
        meter.look()
    assert [item.why for item in samples(ledger)] == ["run_started", "running", "running", "run_ended"]


def test_a_place_is_sampled_with_its_price_and_what_was_sent_since(project, ledger, tmp_path, clock, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    meter = StorageMeter(project, tmp_path, ledger)
    meter.copies(1000, 1500)
    meter.copies(900, 1500)
    meter.copies(2000, 4000, where=f"{BUCKET}/")
    found = samples(ledger)
    assert [(item.place, item.bytes, item.sent_bytes) for item in found] == [
        (BUCKET, 1000, 1500), (BUCKET, 900, 0), (BUCKET, 2000, 2500),
    ]  # fmt: skip
    assert {(item.provider, item.price_micro_usd_per_gb_month) for item in found} == {("aws", 23_000)}


def test_what_could_not_be_recorded_as_sent_is_in_the_next_sample(project, ledger, tmp_path, clock, monkeypatch):
    def down(samples):
        raise DataError("the ledger is away")

    meter = StorageMeter(project, tmp_path, ledger)
    with monkeypatch.context() as away:
        away.setattr(ledger, "record_stored", down)
        with pytest.raises(DataError):
            meter.copies(1000, 1500)
    meter.copies(1000, 1600)
    assert [item.sent_bytes for item in samples(ledger)] == [1600]


def test_where_no_price_is_known_none_is_made_up(project, ledger, tmp_path, clock, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    project.resources.infra = "lambda"
    meter = StorageMeter(project, tmp_path, ledger)
    meter.copies(1000, 0)
    meter.directory("stage_done")
    assert [item.price_micro_usd_per_gb_month for item in samples(ledger)] == [None, None]


def test_copies_below_the_runs_directory_count_as_copies_alone(project, ledger, tmp_path, clock):
    project.storage.artifacts = "run/second"
    meter = StorageMeter(project, tmp_path, ledger)
    meter.directory("before")
    (tmp_path / "run" / "second").mkdir()
    (tmp_path / "run" / "second" / "object").write_bytes(b"x" * 10**6)
    meter.directory("after")
    before, after = samples(ledger)
    assert after.bytes - before.bytes < 10**6


def test_a_command_samples_where_there_is_a_ledger_and_tells_why_not(project, tmp_path, clock):
    told = []
    sample_now(project, tmp_path, "cleaned", told.append)
    assert not (tmp_path / "run").exists()
    Ledger.open(tmp_path / "run" / "ledger.sqlite").close()
    sample_now(project, tmp_path, "cleaned", told.append, "elsewhere", 5)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert [(item.why, item.bytes) for item in samples(ledger)][1:] == [("cleaned", 5)]
    assert told == []
    (tmp_path / "run" / "ledger.sqlite").write_bytes(b"not a ledger" * 100)
    sample_now(project, tmp_path, "cleaned", told.append)
    assert "could not be written into the ledger" in told[0]


def test_a_backup_by_hand_says_what_it_sent(tmp_path):
    case = ProjectCase(tmp_path / "demo")
    case.attempt("sft", seconds=60, steps=40)
    case.done("sft", 40)
    told = []
    assert list(back_up(case.project, case.root, str(tmp_path / "copies"), told.append))
    with Ledger.open(case.run / "ledger.sqlite") as ledger:
        of_copies = [item for item in ledger.stored() if item.place != RUN_DIRECTORY]
    assert [item.why for item in of_copies] == ["copied"]
    assert of_copies[0].sent_bytes > 1000
    assert told == []
