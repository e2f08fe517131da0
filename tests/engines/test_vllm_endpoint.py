"""The real vLLM as a server of a feedback stage: its answers are those of the same weights in this process."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from waiting import eventually

torch = pytest.importorskip("torch")

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Turn
from charter.feedback import (
    critique,
    label,
)
from charter.feedback.answering import CALLS_FILE, open_answerer
from charter.feedback.asking import Choose
from charter.feedback.wording import (
    Part,
    Question,
)
from charter.ledger.calls import CallStore
from charter.models.chat import train_tokenizer
from charter.models.language_model import new_language_model
from charter.spec.architecture import Architecture
from charter.spec.project import DataSpec, Serving
from charter.spec.stage import CritiqueStage, LabelStage
from vllm_environment import vllm_python

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TOPICS = ("bread", "a garden", "the moon", "old maps", "rain", "chess")
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: 'Is it kind?', revision: Make it kinder., compare: 'Which answer is kinder?'}
"""
MAX_TOKENS = 2048
"""Room for a byte-level question with one demonstration, so that nothing is shortened on either side."""
ARCHITECTURE = Architecture(
    hidden_size=128,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=256,
    vocab_size=320,
    max_position_embeddings=MAX_TOKENS,
)
"""Heads of 64, which vLLM's attention on CPUs needs."""
STARTED_SECONDS = 240
"""vLLM imports for half a minute; more on a busy machine."""
TOLERANCE_LOG_ODDS = 1e-3
NAME = "judge"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """Random weights. One direction is in every token, and the letters like it, so that both are among the top 20."""
    path = tmp_path_factory.mktemp("model") / NAME
    texts = [f"Human: Tell me about {topic}. The better answer is (A) or (B)." for topic in TOPICS]
    made = new_language_model(ARCHITECTURE, train_tokenizer(texts, vocab_size=ARCHITECTURE.vocab_size), seed=3)
    letters = [made.tokenizer(letter)["input_ids"][0] for letter in ("A", "B")]
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
        made.model.model.embed_tokens.weight[:, 0] = 1.0
        made.model.lm_head.weight[:, 0] = 0.0
        made.model.lm_head.weight[letters, 0] = 3.0
    made.save(path)
    return path


@pytest.fixture(scope="module")
def address(model_dir, tmp_path_factory):
    """A vLLM server process over those weights."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    options = ["--model", str(model_dir), "--served-model-name", NAME, "--dtype", "float32", "--enforce-eager"]
    options += ["--max-model-len", str(MAX_TOKENS), "--host", "127.0.0.1", "--port", str(port)]
    command = [str(vllm_python(os.environ)), "-m", "vllm.entrypoints.openai.api_server", *options]
    told = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=log.parent, stdout=out, stderr=out, env={**os.environ, **told}, start_new_session=True
        )
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/v1", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_it_answers(url, process, log):
    def answers():
        assert process.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/models", timeout=10):
            return True
        return False

    eventually(answers, lambda: log.read_text()[-3000:], seconds=STARTED_SECONDS, every=1.0)


@pytest.fixture
def stage(tmp_path, model_dir):
    """(name, spec, Serving or None) -> a stage directory all of whose models are served, or here."""
    (tmp_path / "constitution.yaml").write_text(CONSTITUTION)
    before = torch.get_num_threads()

    def make(name, spec, serving):
        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in (pairs() if spec.kind == "label" else prompts())))
        model = {"source": "model", "path": str(model_dir), "fingerprint": "m"}
        inputs = {
            role: (JobInput(name=NAME, role=role, **model),)
            for role in ("policy", "critic", "judge")
            if getattr(spec, role, None)
        }
        for role in ("prompts", "candidates", "demonstrations"):
            if getattr(spec, role, None):
                data = {"source": "data", "path": str(rows), "fingerprint": "d", "data": DataSpec(path=str(rows))}
                inputs[role] = (JobInput(name=role, role=role, **data),)
        job = Job(
            run="run",
            stage=spec.kind,
            kind=spec.kind,
            fingerprint="f" * 64,
            seed=11,
            spec=spec,
            inputs=inputs,
            constitution=str(tmp_path / "constitution.yaml"),
            frozen={"threads": 1, "device": "cpu"},
            keep_last=2,
        )
        path = tmp_path / name
        path.mkdir()
        write_job(path, replace(job, serving={NAME: serving}) if serving else job)
        return StageDir(path)

    yield make
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


def pairs(copies=4):
    return [
        {
            "id": f"{topic} {copy}",
            "prompt": [{"role": "user", "content": f"Tell me about {topic}."}],
            "chosen": [{"role": "assistant", "content": f"I know {topic} {copy}."}],
            "rejected": [{"role": "assistant", "content": "No. " * (1 + number)}],
        }
        for copy in range(copies)
        for number, topic in enumerate(TOPICS)
    ]


def prompts():
    return [{"id": row["id"], "prompt": row["prompt"]} for row in pairs(copies=1)]


def label_spec(**changes):
    return LabelStage(judge=NAME, candidates=("d",), rollout_batch=4, both_orders=True, **changes)


def records(found):
    return [json.loads(line) for line in (found.outputs / "records.jsonl").read_text().splitlines()]


def log_odds(rows):
    return [[item["log_odds_chosen"] for item in row["judgements"]] for row in rows]


def assert_same_labels(served, local):
    assert [row["id"] for row in served] == [row["id"] for row in local]
    for there, here in zip(log_odds(served), log_odds(local), strict=True):
        assert len(here) == 2
        assert there == pytest.approx(here, abs=TOLERANCE_LOG_ODDS)
    found = [value for row in log_odds(local) for value in row]
    assert max(found) - min(found) > 100 * TOLERANCE_LOG_ODDS, "labels so alike that any would pass"


@pytest.mark.parametrize("few_shot", [{}, {"few_shot": 1, "demonstrations": "d"}], ids=["plain", "few-shot"])
def test_labels_are_those_of_the_judge_in_this_process(address, stage, few_shot):
    """A judge in process reads plain text, so that its equal behind a server is `api: completions`."""
    serving = Serving(endpoint=address, api="completions", concurrency=8)
    local, served = stage("local", label_spec(**few_shot), None), stage("served", label_spec(**few_shot), serving)
    label.run(local)
    label.run(served)
    rows = records(served)
    assert len(rows) == len(pairs())
    assert {item["how"] for row in rows for item in row["judgements"]} == {"log_probabilities"}
    assert_same_labels(rows, records(local))


def test_a_prefilled_choice_is_read_where_this_process_reads_it(address, stage):
    """After a chain of thought a judge is asked as an assistant: vLLM goes on behind the bracket of its turn."""
    asks = [
        Choose(
            role="judge",
            question=Question(Part(f"Which is about {topic}?\n(A) {topic}\n(B) rain"), Part("\nIt is (")),
            choices=("A", "B"),
            turns=(Turn("user", "Think."), Turn("assistant", f"I know {topic}.")),
        )
        for topic in TOPICS
    ]
    found = []
    for name, serving in (("local", None), ("served", Serving(endpoint=address, prefill=True))):
        with open_answerer(stage(name, label_spec(), serving), ["judge"]) as answerer:
            replies = answerer.submit(asks).result()
        assert {reply.missing for reply in replies} == {(False, False)}
        found.append([reply.log_probabilities for reply in replies])
    local, served = ([first - second for first, second in rows] for rows in found)
    assert served == pytest.approx(local, abs=TOLERANCE_LOG_ODDS)
    assert len({round(value, 3) for value in local}) > 1


def test_a_greedy_critique_is_the_one_of_this_process(address, stage):
    """The texts that the server is asked about are its own of the round before."""
    told = {"prompts": ("d",), "revisions": 2, "temperature": 0.0, "max_new_tokens": 12, "rollout_batch": 3}
    spec = CritiqueStage(policy=NAME, critic=NAME, **told)
    local = stage("local", spec, None)
    served = stage("served", spec, Serving(endpoint=address, concurrency=4))
    critique.run(local)
    critique.run(served)
    texts = [
        [[row[name] for name in ("init_response", "critic_response", "revision_response")] for row in records(found)]
        for found in (local, served)
    ]
    assert len(texts[0]) == 2 * len(TOPICS)
    assert texts[1] == texts[0]


def test_a_sigkill_loses_no_answer_of_the_server(address, stage):
    """Ten requests a second, so that there is time to kill between two of them."""
    serving = Serving(endpoint=address, api="completions", concurrency=2, requests_per_minute=600)
    local, killed = stage("local", label_spec(), None), stage("killed", label_spec(), serving)
    label.run(local)
    command = [sys.executable, "-m", "charter.feedback.label", "--stage-dir", str(killed.path)]
    kills, before = 0, 0
    for share in (0.2, 0.6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        enough = share * 2 * len(pairs())
        eventually(lambda process=process, enough=enough: process.poll() is not None or answered(killed) >= enough)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        assert before < answered(killed) < 2 * len(pairs())
        before = answered(killed)
    assert kills == 2
    again = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert answered(killed) == 2 * len(pairs()), "an answer that was on disk was asked for again"
    assert_same_labels(records(killed), records(local))


def answered(found):
    """Calls of a stage with an answer on disk."""
    path = found.path / CALLS_FILE
    if not path.exists():
        return 0
    job = found.job
    with CallStore.open(path, run=job.run, stage=job.stage, fingerprint=job.fingerprint) as calls:
        return calls.totals().sums.answered
