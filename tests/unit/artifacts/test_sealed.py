import pytest

from charter.artifacts.job import read_job
from charter.artifacts.record import read_record
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import read_sealed, write_sealed
from charter.errors import DataError


def every_flip(content: bytes, step: int = 1):
    for bit in range(0, len(content) * 8, step):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def test_every_single_flipped_bit_and_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "sealed.json"
    write_sealed(path, {"b": [1, 2.5, None], "a": {"text": "ein Wört", "yes": True}})
    whole = path.read_bytes()
    assert read_sealed(path) == {"b": [1, 2.5, None], "a": {"text": "ein Wört", "yes": True}}
    for damaged in (*every_flip(whole), *(whole[:size] for size in range(0, len(whole), 3))):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"sealed\.json"):
            read_sealed(path)


def test_the_same_content_written_in_another_way_is_refused(tmp_path):
    path = tmp_path / "manifest.json"
    write_sealed(path, {"step": 1})
    path.write_text(path.read_text().replace("\n", " \n"))
    with pytest.raises(DataError, match="not written as Charter writes it"):
        read_sealed(path)


def test_a_file_without_a_seal_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="no sha256 of its own"):
        read_sealed(tmp_path / "x.json")


def test_every_flip_in_a_record_and_in_a_job_is_noticed(make_stage):
    stage = StageDir(make_stage())
    stage.publish_outputs(lambda out: (out / "x").write_text("{}") and None, step=6, target_step=6)
    for name, read in (("record.json", read_record), ("job.json", read_job)):
        path = stage.path / name
        whole = path.read_bytes()
        read(stage.path)
        for damaged in (*every_flip(whole, 61), *(whole[:size] for size in range(0, len(whole), 97))):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=name):
                read(stage.path)
        path.write_bytes(whole)
        read(stage.path)


def test_a_record_of_before_seals_is_still_read(make_stage):
    import json

    stage = StageDir(make_stage())
    stage.publish_outputs(lambda out: (out / "x").write_text("{}") and None, step=6, target_step=6)
    path = stage.path / "record.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps({**content, "schema": "charter.record/1"}))
    assert read_record(stage.path).step == 6
    path.write_text(json.dumps({**content, "schema": "charter.record/2"}))
    with pytest.raises(DataError, match="no sha256 of its own content"):
        read_record(stage.path)
