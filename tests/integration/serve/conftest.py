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

from charter.models.language_model import (
    load_language_model,
    new_language_model,
)
from charter.models.tokenizer import train_tokenizer
from charter.spec.architecture import Architecture

TOPICS = ("bread", "a garden", "the moon", "old maps", "rain", "chess")
TEXTS = [f"Conversation: Tell me about {topic}. The better answer is (A). I know {topic}, (B)." for topic in TOPICS]
ARCHITECTURE = Architecture(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=64,
    vocab_size=320,
    max_position_embeddings=256,
)
LIKING = 4.0
"""How much the logits of both letters are raised, so that they are among the 20 likeliest tokens."""


@pytest.fixture(scope="session")
def judge_dir(tmp_path_factory):
    """Random weights, but for the directions of some last hidden states, by which A and B are liked."""
    path = tmp_path_factory.mktemp("served") / "judge"
    language_model = new_language_model(ARCHITECTURE, train_tokenizer(TEXTS, vocab_size=320), seed=3)
    letters = [language_model.tokenizer(letter)["input_ids"][0] for letter in ("A", "B")]
    ends = [language_model.tokenizer(f"{text} The better answer is (")["input_ids"] for text in TEXTS]
    with torch.no_grad():
        for parameter in language_model.model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
        for ids in ends:
            state = language_model.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            language_model.model.lm_head.weight[letters] += LIKING * state / state.square().sum()
    language_model.save(path)
    return path


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
        [sys.executable, "-m", "charter.cli.main", "serve", str(directory), *options],
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
