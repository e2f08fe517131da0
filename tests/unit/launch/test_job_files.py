import json
from dataclasses import asdict, replace

import pytest

from charter.artifacts.job_files import Control, Failure, JobFiles, NodeRecord, numbers
from charter.launch.job_launcher import done_shards, missing_shards

RECORD = NodeRecord(place=0, restart=0, host="n1", host_id="n1/boot", pid=10, started_at=100.0)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "jobs" / "0001").mkdir(parents=True)
    return JobFiles(tmp_path, 1)


def test_every_start_has_a_record_of_its_own_whatever_its_engine_counts(files):
    assert [files.claim(RECORD).restart for _ in range(3)] == [0, 1, 2]
    assert files.claim(replace(RECORD, restart=7)).restart == 7
    assert files.claim(replace(RECORD, place=1)).restart == 0
    assert [(record.restart, record.place) for record in files.nodes()] == [(0, 0), (0, 1), (1, 0), (2, 0), (7, 0)]


def test_a_record_says_how_a_start_went_on(files):
    mine = files.claim(RECORD)
    files.tell(replace(mine, ended_at=103.5, exit_code=-9, stopped_by="killed"))
    found = files.read_node(0, 0)
    assert (found.seconds, found.exit_code) == (3.5, -9)
    assert files.read_node(1, 0) is None


def test_the_first_failure_counts(files):
    assert files.failure(0) is None
    files.fail(0, Failure(exit_code=-11, rank=5, host="n2"))
    files.fail(0, Failure(exit_code=9, rank=0, host="n1"))
    assert files.failure(0) == Failure(exit_code=-11, rank=5, host="n2")


def test_requests_replace_one_another(files):
    assert files.asked() == Control()
    files.ask(Control(stop=True))
    files.ask(Control(stop=True, dumps=2))
    assert files.asked() == Control(stop=True, dumps=2)


def test_torn_or_foreign_records_are_not_there(files):
    files.node(0, 0).write_text("{")
    files.node(0, 1).write_text(json.dumps({"another": "program"}))
    files.node(0, 2).write_text(json.dumps(asdict(replace(RECORD, place=2))))
    assert [record.place for record in files.nodes()] == [2]


def test_what_has_ended_is_not_read_again(files, monkeypatch):
    for place in range(3):
        files.tell(replace(RECORD, place=place, ended_at=110.0 if place else None, exit_code=0 if place else None))
    known = {record.place: record for record in files.nodes_again({})}
    assert set(known) == {0, 1, 2}
    assert [record.place for record in files.nodes_again(known)] == [0]
    files.tell(replace(RECORD, place=1, restart=1))
    assert sorted(record.place for record in files.nodes_again(known)) == [0, 1], "started again"


def test_submissions_are_numbered(tmp_path):
    assert numbers(tmp_path) == []
    for name in ("0002", "0010", "0001", "other"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    assert numbers(tmp_path) == [1, 2, 10]


def array(stage_dir, number, shards, codes, of=5):
    (stage_dir / "jobs" / f"{number:04d}").mkdir(parents=True)
    made = JobFiles(stage_dir, number)
    made.write_shards(shards, of=of)
    for place, code in enumerate(codes):
        made.tell(replace(RECORD, place=place, ended_at=1.0, exit_code=code))


def test_only_lost_shards_are_asked_for_again(tmp_path):
    assert missing_shards(tmp_path, of=5) == (0, 1, 2, 3, 4)
    array(tmp_path, 1, (0, 1, 2, 3, 4), (0, None, -9, 0, 5))
    assert missing_shards(tmp_path, of=5) == (1, 2, 4)
    array(tmp_path, 2, (1, 2, 4), (0, 0, -9))
    assert done_shards(tmp_path, of=5) == {0, 1, 2, 3}
    assert missing_shards(tmp_path, of=5) == (), "one process makes what is left, and publishes"


def test_another_number_of_shards_is_another_share(tmp_path):
    array(tmp_path, 1, (0, 1, 2, 3, 4), (0, 0, 0, 0, 0))
    assert missing_shards(tmp_path, of=3) == (0, 1, 2)
