"""A tiny judge that prefers to answer A or B, and a real server process over it."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass

import forks
import pytest

torch = pytest.importorskip("torch")

from pooled import save_judge

from charter.models.language_model import load_language_model


@pytest.fixture(scope="session")
def judge_dir(tmp_path_factory):
    """A judge that likes A and B."""
    return save_judge(tmp_path_factory.mktemp("served") / "judge")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def judge(judge_dir):
    return load_language_model(judge_dir)


@dataclass
class Client:
    """Asks a server as any HTTP client does."""

    address: str
    process: "subprocess.Popen[str]"

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    def ask(self, path, body=None, headers=None):
        """Status and parsed body of one request."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def stop(self):
        """SIGTERM; what the process ended with."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err


@contextmanager
def serving(directory, *options, environment=None):
    """A server process, until it is left."""
    process = forks.Process(
        [sys.executable, "-m", "charter.cli.main", "run", "serve", str(directory), *options],
        preload=forks.STAGES,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        line = process.stdout.readline()
        assert " at http://" in line, process.communicate(timeout=60)[1]
        yield Client(line.split(" at ")[1].strip().removesuffix("/v1"), process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def server(judge_dir):
    with serving(judge_dir, "--name", "judge") as client:
        yield client


@pytest.fixture(scope="session")
def started():
    return serving
