"""A project whose judge is a pool of `charter run serve` replicas, and what is read of it after its run."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
import torch
from call_checks import checked_totals

from charter.engines.project import load_project
from charter.ledger.calls import CallStore
from charter.models.chat import train_tokenizer
from charter.models.language_model import new_language_model
from charter.run.graph import build_pipeline
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


PAIRS_EACH = 8
QUESTIONS = 2 * PAIRS_EACH * len(TOPICS)
"""Each pair in both orders."""
FILE = """
name: pools
models:
  judge: {{model: {judge}}}
constitution: constitution.yaml
data: {{pairs: pairs.jsonl}}
pipeline:
  label: {{kind: label, judge: judge, candidates: [pairs], rollout_batch: 4, checkpoint_every: 1}}
resources: {{infra: local, cpus: 1}}
{serving}
"""
POOL = "serving: {judge: {pool: {engine: charter, replicas: 2}, api: completions, billed: false, concurrency: 4}}"
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: 'Is it kind?', revision: Make it kinder., compare: 'Which answer is kinder?'}
"""


def project_at(root, judge, serving=""):
    """A project directory whose judge is in the stage's process, or in a pool."""
    root.mkdir()
    (root / "charter.yaml").write_text(FILE.format(judge=judge, serving=serving))
    (root / "constitution.yaml").write_text(CONSTITUTION)
    rows = [
        {
            "id": f"{topic} {number}",
            "prompt": [{"role": "user", "content": f"Tell me about {topic}."}],
            "chosen": [{"role": "assistant", "content": f"I know {topic}."}],
            "rejected": [{"role": "assistant", "content": "No. " * (1 + number)}],
        }
        for number in range(PAIRS_EACH)
        for topic in TOPICS
    ]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def save_judge(path):
    """Save random weights, but for the directions of some last hidden states, by which A and B are liked."""
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


def stage_of(root):
    return build_pipeline(load_project(root / "charter.yaml"), root).stages["label"]


def verdicts(stage_dir):
    """What was found of each pair, but for digits that depend on how many questions were computed together."""
    lines = (stage_dir / "outputs" / "records.jsonl").read_text().splitlines()
    return {
        row["id"]: (row["chosen"], row["both_orders"]["agree"], pytest.approx(row["chosen_probability"], abs=1e-4))
        for row in map(json.loads, lines)
    }


def answers(root):
    """How often a question whose answer is stored was answered; the fixed questions of the watch are not among them."""
    stage = stage_of(root)
    place = stage.directory / "calls.sqlite"
    with CallStore.open(place, run="pools", stage="label", fingerprint=stage.fingerprint) as calls:
        checked_totals(calls)
    with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as database:
        return database.execute(
            "SELECT count(*) FROM call_intents i JOIN call_settlements s USING (scope_id, call_id) "
            "WHERE s.outcome = 'answered' AND i.key IN (SELECT key FROM call_answers)"
        ).fetchone()[0]


def servers_of(root):
    return [json.loads(path.read_text()) for path in sorted(stage_of(root).directory.glob("**/judge-*.json"))]


def labels_with_a_killed_server(directory, environment, *words):
    """Run a pool of two servers on two nodes of a launcher and kill one that is ready; return labels here and there."""
    judge = save_judge(directory / "judge")
    here, there = project_at(directory / "here", judge), project_at(directory / "there", judge, POOL)
    on_two_nodes = (*words, "--set", "pipeline.label.resources.num_nodes=2")

    def command(root, *line):
        started = [sys.executable, "-m", "charter.cli.main", *line, "-C", str(root)]
        output = subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(started, env=environment, stdout=output[0], stderr=output[1], text=True)

    def finish(process):
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        return printed

    finish(command(here, "run", "--yes"))
    jobs = json.loads(finish(command(there, "submit", "--print", "--json", *on_two_nodes)))["jobs"]
    assert [job["nodes"] for job in jobs if job["stage"] == "label"] == [2]
    run = command(there, "run", "--yes", *on_two_nodes)
    while run.poll() is None and [server["state"] for server in servers_of(there)] != ["ready", "ready"]:
        threading.Event().wait(0.05)
    assert run.poll() is None, run.communicate()[0]
    os.killpg(servers_of(there)[0]["pid"], signal.SIGKILL)
    finish(run)
    assert answers(there) == QUESTIONS
    return verdicts(stage_of(here).directory), verdicts(stage_of(there).directory)
