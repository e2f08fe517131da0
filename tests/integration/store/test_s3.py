"""The bucket as a place, against a server that speaks S3 (moto)."""

import hashlib
import shutil

import pytest
from place_contract import check_place

from charter.artifacts.fingerprint import FileFact
from charter.artifacts.store import maintenance
from charter.artifacts.store import s3 as s3_client
from charter.artifacts.store.copy import open_place
from charter.artifacts.store.maintenance import abandoned_uploads
from charter.artifacts.store.place import PlaceError
from charter.artifacts.store.s3 import S3Place
from charter.errors import MissingExtraError, UsageError


def test_a_bucket_keeps_what_a_place_promises(place, tmp_path):
    check_place(place, tmp_path / "files")


def test_a_file_that_arrives_changed_is_noticed(place, s3, tmp_path, monkeypatch):
    content = b"weights" * 1000
    (tmp_path / "f").write_bytes(content)
    fact = FileFact(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    put = place._files.put_file

    def flipping(source, target):
        (tmp_path / "flipped").write_bytes(b"W" + content[1:])
        return put(str(tmp_path / "flipped"), target)

    monkeypatch.setattr(place._files, "put_file", flipping)
    with pytest.raises(Exception, match="are recorded"):
        place.upload("objects/f", tmp_path / "f", fact)
    monkeypatch.setattr(place._files, "pipe_file", lambda name, data: None)
    s3.put_object(Bucket="results", Key="charter/list.json", Body=b"something else")
    with pytest.raises(PlaceError, match="is not what was sent"):
        place.put("list.json", b"a list")


def test_a_store_without_conditional_writes_is_asked_first(place, monkeypatch):
    pipe = place._files.pipe_file

    def no_condition(name, data, mode="overwrite"):
        if mode == "create":
            raise OSError(22, "NotImplemented: A header you provided implies functionality that is not implemented")
        return pipe(name, data)

    monkeypatch.setattr(place._files, "pipe_file", no_condition)
    assert place.put_new("a", b"one")
    assert not place.put_new("a", b"two")
    assert place.get("a") == b"one"


def test_parts_of_crashed_uploads_are_found_and_removed(place, s3, monkeypatch):
    upload = s3.create_multipart_upload(Bucket="results", Key="charter/objects/ab/x")["UploadId"]
    s3.upload_part(Bucket="results", Key="charter/objects/ab/x", UploadId=upload, PartNumber=1, Body=b"half")
    s3.create_multipart_upload(Bucket="results", Key="of-others/x")
    assert [item.key for item in place.unfinished()] == [f"charter/objects/ab/x#{upload}"]
    assert place.listed("") == []
    assert [item.key for item in abandoned_uploads(place)] == [f"charter/objects/ab/x#{upload}"]
    # The server dates every upload 2010.
    monkeypatch.setattr(maintenance, "GRACE_SECONDS", 1e9)
    assert abandoned_uploads(place) == []
    for left in place.unfinished():
        place.abandon(left)
    assert place.unfinished() == []


def test_a_bucket_that_is_not_there_or_does_not_answer_is_said(place, s3, monkeypatch, tmp_path):
    with pytest.raises(PlaceError, match="s3://missing cannot be used now"):
        S3Place("s3://missing").put("a", b"x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(s3_client, "ATTEMPTS", 1)
    with pytest.raises(PlaceError, match="cannot be used now"):
        S3Place("s3://results").size("a")
    with pytest.raises(UsageError, match="does not name a bucket"):
        open_place("s3:///path", root=tmp_path)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"\.\[store\]"):
        S3Place("s3://results")


def test_a_run_is_backed_up_to_a_bucket_and_restored(work, undisturbed, s3):
    work.edit("name: count", "name: count\nstorage: {artifacts: 's3://results/runs'}")
    done = work.run()
    assert done.code == 0, done.err
    assert "replica_failed" not in {event["event"] for event in done.events}
    shutil.rmtree(work.root / "run")
    back = work.charter("artifacts", "checkpoints", "restore")
    assert back.code == 0, back.err
    assert work.charter("artifacts", "checkpoints", "scrub").code == 0
    again = work.run()
    assert (again.code, again.names("stage_started")) == (0, [])
    assert work.outputs() == undisturbed
