"""A model or data set of a Hub at one commit: checked, without code, and the token stays with the Hub."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from charter.artifacts.hub import PIN_FILE, Hub
from charter.cli.main import app
from charter.errors import DataError, UsageError

COMMIT = "1f" * 20
FILES = {
    "config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "modeling_x.py": b"import os",
    "pytorch_model.bin": b"pickled", "model.safetensors": b"w" * 3000, "onnx/model.safetensors": b"o",
}  # fmt: skip


class FakeHub:
    """Two servers: the Hub, and the store that it sends large files on to."""

    def __init__(self, files):
        self.files, self.asked, self.spoilt = dict(files), [], set()
        hub = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                hub.answer(self)

            def log_message(self, *_):
                pass

        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), Answer) for _ in range(2)]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.url, self.store = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def siblings(self):
        for name, content in self.files.items():
            row = {"rfilename": name, "size": len(content)}
            head = f"blob {len(content)}\0".encode()
            row["blobId"] = hashlib.sha1(head + content).hexdigest()
            if name.endswith((".safetensors", ".parquet")):
                row["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            yield row

    def answer(self, request):
        at_store = request.server is self.servers[1]
        self.asked.append((request.path, at_store, request.headers.get("Authorization")))
        if "/revision/" in request.path:
            is_there = "/org/" in request.path
            return self.send(request, 200 if is_there else 404, json.dumps(
                {"sha": COMMIT, "siblings": list(self.siblings())}
            ).encode())  # fmt: skip
        name = request.path.partition(f"/resolve/{COMMIT}/")[2]
        if name.endswith(".safetensors") and not at_store:
            request.send_response(302)
            request.send_header("location", self.store + request.path)
            request.send_header("content-length", "0")
            request.end_headers()
            return None
        content = self.files[name]
        return self.send(request, 200, content[::-1] + b"x" if name in self.spoilt else content)

    def send(self, request, status, content):
        request.send_response(status)
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)


@pytest.fixture
def hub():
    fake = FakeHub(FILES)
    yield fake
    for server in fake.servers:
        server.shutdown()
        server.server_close()


def client(hub, token="hf_secret"):
    return Hub({"HF_ENDPOINT": hub.url, "HF_TOKEN": token})


def test_a_model_is_fetched_at_one_commit_without_code(hub, tmp_path):
    pinned = client(hub).pin("models", "org/tiny", "main")
    target = tmp_path / "models" / "tiny"
    assert client(hub).fetch(pinned, target) is True
    assert sorted(path.name for path in target.iterdir()) == [
        PIN_FILE, "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    pin = json.loads((target / PIN_FILE).read_text())
    assert (pin["revision"], pin["repository"]) == (COMMIT, "org/tiny")
    assert pin["files"]["model.safetensors"] == hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    assert {token for _, at_store, token in hub.asked if not at_store} == {"Bearer hf_secret"}
    assert {token for _, at_store, token in hub.asked if at_store} == {None}, "the store never sees the token"
    assert client(hub).fetch(pinned, target) is False
    assert not list(target.parent.glob(".fetch-*"))


def test_what_is_not_what_the_hub_says_is_refused(hub, tmp_path):
    for name in ("model.safetensors", "tokenizer.json"):
        hub.spoilt = {name}
        with pytest.raises(DataError, match=name):
            client(hub).fetch(client(hub).pin("models", "org/tiny", "main"), tmp_path / "tiny")
        assert not (tmp_path / "tiny").exists()
    hub.spoilt, hub.asked = set(), []
    assert client(hub).fetch(client(hub).pin("models", "org/tiny", "main"), tmp_path / "tiny")
    assert not [path for path, _, _ in hub.asked if path.endswith("config.json")], "what was right is not fetched again"


def test_code_of_a_model_is_refused_before_its_weights(hub, tmp_path):
    hub.files["config.json"] = b'{"auto_map": {"AutoModel": "modeling_x.X"}}'
    with pytest.raises(DataError, match="runs no such code"):
        client(hub).fetch(client(hub).pin("models", "org/tiny", "main"), tmp_path / "tiny")
    assert not [path for path, _, _ in hub.asked if path.endswith("safetensors")]


@pytest.mark.parametrize("name", ["../../x.jsonl", "/etc/x.jsonl", "a/..%2f/x.jsonl"])
def test_no_name_leads_out_of_the_directory(hub, name):
    hub.files = {name: b"{}"}
    with pytest.raises(DataError, match="is refused"):
        client(hub).pin("datasets", "org/rows", "main")


def test_only_safetensors_are_read(hub):
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"pickled"}
    with pytest.raises(DataError, match="never pickled"):
        client(hub).pin("models", "org/tiny", "main")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"HF_ENDPOINT": "ftp://hub"}, "no https address"),
        ({"HF_ENDPOINT": "http://hub.example.org", "HF_TOKEN": "x"}, "not encrypted"),
    ],
)
def test_an_address_that_would_give_the_token_away_is_refused(env, words):
    with pytest.raises(UsageError, match=words):
        Hub(env)


def test_the_command_fetches_and_says_what_to_write(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    call = ["artifacts", "fetch", "-C", str(tmp_path)]
    done = CliRunner().invoke(app, [*call, "org/tiny@main"])
    assert done.exit_code == 0, done.output
    assert COMMIT in done.output
    assert "models: {base: models/tiny}" in done.output
    assert "Already there" in CliRunner().invoke(app, [*call, "org/tiny"]).output
    hub.files = {"train/a.jsonl": b'{"text": "a"}', "test/a.jsonl": b"{}", "load.py": b"import os"}
    done = CliRunner().invoke(app, [*call, "org/rows", "--data", "--only", "train/*"])
    assert "data: {rows: data/rows/train/a.jsonl}" in done.output
    assert [path.name for path in (tmp_path / "data" / "rows").iterdir()].count("train") == 1
    missing = CliRunner().invoke(app, [*call, "nobody/nothing"])
    assert "there is none" in str(missing.exception or missing.output)
    other = CliRunner().invoke(app, [*call, "org/other", "--dry-run", "--data"])
    assert other.exit_code == 0
    assert not (tmp_path / "data" / "other").exists()
