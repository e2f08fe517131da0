"""Tags on objects, against a server that keeps them (moto), and one in front of it that refuses them."""

import hashlib
import http.client
import http.server
import json
import threading

import pytest

from charter.artifacts.fingerprint import FileFact
from charter.artifacts.store.copy import object_key
from charter.artifacts.store.place import PlaceError
from charter.artifacts.store.s3 import S3Place

TAGS = {"charter:run": "demo", "goal": "a b/\u03b1=1"}
PART = 5 << 20
"""The smallest part of a file that goes in several, in bytes."""


def tags_of(s3, key):
    found = s3.get_object_tagging(Bucket="results", Key=f"charter/{key}")["TagSet"]
    return {item["Key"]: item["Value"] for item in found}


@pytest.fixture
def told():
    return []


@pytest.fixture
def tagged(s3, told):
    return S3Place("s3://results/charter", tell=told.append)


def test_everything_that_is_written_with_tags_has_them(tagged, s3, told, tmp_path):
    tagged.put("put", b"one", tags=TAGS)
    assert tagged.put_new("new", b"one", tags=TAGS)
    (tmp_path / "file").write_bytes(b"file")
    fact = FileFact(bytes=4, sha256=hashlib.sha256(b"file").hexdigest())
    tagged.upload("file", tmp_path / "file", fact, tags=TAGS)
    tagged.put("plain", b"one")
    assert [tags_of(s3, key) for key in ("put", "new", "file", "plain")] == [TAGS, TAGS, TAGS, {}]
    assert told == []


def test_a_file_that_goes_in_parts_has_them(tagged, s3, tmp_path, monkeypatch):
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize: PART)
    content = bytes(2 * PART + 1)
    (tmp_path / "large").write_bytes(content)
    fact = FileFact(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    tagged.upload("large", tmp_path / "large", fact, tags=TAGS)
    assert "-" in s3.head_object(Bucket="results", Key="charter/large")["ETag"]
    assert tags_of(s3, "large") == TAGS


class Refusing(http.server.BaseHTTPRequestHandler):
    """Passes requests on; one with tags gets an error, or its tags are dropped."""

    protocol_version = "HTTP/1.1"

    def handle_any(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        tags = self.headers.get("x-amz-tagging")
        server.tags.append(tags if self.command == "PUT" else None)
        if tags and server.status:
            text = f"<Error><Code>{server.code}</Code><Message>not for you</Message></Error>".encode()
            self.answer(server.status, {"Content-Type": "application/xml"}, text)
            return
        dropped = {"host", "x-amz-tagging", "expect", "connection"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        behind = http.client.HTTPConnection(server.behind.removeprefix("http://"))
        behind.request(self.command, self.path, body, headers)
        found = behind.getresponse()
        self.answer(found.status, dict(found.headers), found.read())
        behind.close()

    def answer(self, status, headers, text):
        self.send_response(status)
        kept = {"content-type", "etag", "last-modified", "content-range", "x-amz-tagging-count"}
        for name, value in headers.items():
            if name.lower() in kept:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def log_message(self, *_):
        pass


@pytest.fixture
def front(s3, moto_address, monkeypatch):
    """A server in front of the bucket: `status` and `code` of what it answers to tags; 0 takes and drops them."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.behind, server.status, server.code, server.tags = moto_address, 501, "NotImplemented", []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code"),
    [(501, "NotImplemented"), (403, "AccessDenied"), (400, "InvalidTag"), (405, "MethodNotAllowed")],
)
def test_a_store_that_refuses_tags_is_told_of_once_and_keeps_copies(front, told, status, code, tmp_path):
    front.status, front.code = status, code
    place = S3Place("s3://results/charter", tell=told.append)
    assert place.put_new("new", b"one", tags=TAGS)
    assert not place.put_new("new", b"two", tags=TAGS)
    place.put("put", b"one", tags=TAGS)
    (tmp_path / "file").write_bytes(b"file")
    fact = FileFact(bytes=4, sha256=hashlib.sha256(b"file").hexdigest())
    place.upload("file", tmp_path / "file", fact, tags=TAGS)
    assert [place.get(key) for key in ("new", "put", "file")] == [b"one", b"one", b"file"]
    assert len(told) == 1
    assert f"refuses tags on what is written (HTTP {status}" in told[0]
    assert "s3:PutObjectTagging" in told[0]
    assert [tags for tags in front.tags if tags] == ["charter%3Arun=demo&goal=a%20b%2F%CE%B1%3D1"]


def test_a_store_that_drops_tags_is_told_of_once(front, told):
    front.status = 0
    place = S3Place("s3://results/charter", tell=told.append)
    place.put("plain", b"one")
    assert told == []
    for key in ("a", "b"):
        place.put(key, b"one", tags=TAGS)
    assert len(told) == 1
    assert "shows 0 of 2 tags" in told[0]


def test_a_store_that_fails_is_not_one_that_refuses_tags(front, told, monkeypatch):
    front.status, front.code = 503, "SlowDown"
    monkeypatch.setattr("charter.artifacts.store.s3.ATTEMPTS", 1)
    place = S3Place("s3://results/charter", tell=told.append)
    place._files.retries = 1
    with pytest.raises(PlaceError, match="cannot be used now"):
        place.put("a", b"one", tags=TAGS)
    front.status = 0
    place.put("a", b"one", tags=TAGS)
    assert [line for line in told if "refuses" in line] == []
    assert front.tags[-2:-1] == ["charter%3Arun=demo&goal=a%20b%2F%CE%B1%3D1"]


def test_who_may_write_nothing_is_not_told_of_tags(front, told, s3):
    place = S3Place("s3://missing/charter", tell=told.append)
    with pytest.raises(PlaceError, match="cannot be used now"):
        place.put("a", b"one", tags=TAGS)
    assert told == []


@pytest.mark.thorough
def test_a_run_tags_its_copies_and_says_what_it_had_to_change(work, s3):
    tags = "goal: 'a#b', " + ", ".join(f"t{number}: x" for number in range(6))
    where = "storage: {artifacts: 's3://results/charter'}"
    work.edit("name: count", f"name: count\nowner: ann\ntags: {{{tags}}}\n{where}")
    done = work.run()
    assert done.code == 0, done.err
    own = {"charter:project": "count", "charter:owner": "ann", "charter:run": "count"}
    given = {"goal": "a-b", **{f"t{number}": "x" for number in range(5)}}
    (stage,) = [item for item in objects(s3, "copies/count/a-") if item.endswith("/outputs.json")]
    assert tags_of(s3, stage) == {**own, "charter:stage": "a", **given}
    assert tags_of(s3, "copies/count/run/summary.json") == {**own, **given, "t5": "x"}
    assert all(tags_of(s3, key)["charter:project"] == "count" for key in objects(s3, "objects/"))
    (note,) = [event["message"] for event in done.events if event["event"] == "replica_note"]
    assert "tag goal: its value 'a#b' becomes 'a-b'" in note
    assert "tag t5 is left out: an object has 10 tags at most" in note
    again = work.charter("artifacts", "checkpoints", "backup")
    assert again.code == 0, again.err
    assert "tag t5 is left out" in again.err
    (outputs,) = [item for item in objects(s3, "copies/count/b-") if item.endswith("/outputs.json")]
    listed = json.loads(s3.get_object(Bucket="results", Key=f"charter/{outputs}")["Body"].read())["files"]
    keys = [object_key(fact["sha256"]) for name, fact in listed.items() if name.startswith("outputs/")]
    broken = next(key for key in keys if tags_of(s3, key)["charter:stage"] == "b")
    s3.put_object(Bucket="results", Key=f"charter/{broken}", Body=b"something else")
    assert "repaired there" in work.charter("artifacts", "checkpoints", "scrub").out
    assert tags_of(s3, broken)["charter:stage"] == "b"


def objects(s3, prefix):
    found = s3.list_objects_v2(Bucket="results", Prefix=f"charter/{prefix}")["Contents"]
    return [item["Key"].removeprefix("charter/") for item in found]
