"""The preset `sft-dpo` runs as it stands: a small model learns demonstrations, then preferences."""

import json
import sys

import forks
import pytest

from charter.dashboard.app import export_pages
from charter.dashboard.site import Settings

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SHARDED = (
    "resources.accelerators=[cpu:2]",
    "pipeline.sft.resources.zero=3",
    "samples.prompts=demonstrations",
    "samples.share=1.0",
)
CHARTER_YAML = """\
name: small-sft-dpo
preset: sft-dpo
models:
  base:
    architecture: {hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 64, vocab_size: 512}
    tokenizer: {train_on: demonstrations, vocab_size: 300}
data: {demonstrations: demonstrations.jsonl, preferences: preferences.jsonl}
resources: {accelerators: cpu}
pipeline:
  sft: {epochs: 2, global_batch: 8, seq_len: 64, learning_rate: 1e-3, dtype: fp32}
  dpo: {epochs: 8, global_batch: 8, seq_len: 64, learning_rate: 1e-3, dtype: fp32}
"""
TOPICS = ("tea", "bread", "rain", "chess", "maps", "birds", "soap", "trains")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "charter.yaml").write_text(CHARTER_YAML)
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"How do I learn about {topic}?"},
                {"role": "assistant", "content": f"Read a book about {topic}."},
            ]
        }
        for topic in TOPICS
    ]
    pairs = [
        {"prompt": f"How do I learn about {topic}?", "chosen": f"Read a book about {topic}.", "rejected": "No."}
        for topic in TOPICS
    ]
    for name, rows in (("demonstrations", chats), ("preferences", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.thorough
def test_the_preset_runs_and_prefers_what_was_chosen(project):
    command = [sys.executable, "-m", "charter.cli.main", "run", "-C", str(project), "--yes"]
    done = forks.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = (project / "run" / "stages").glob("dpo-*")
    seen = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
    assert seen[0]["reward_margin"] == pytest.approx(0.0, abs=1e-4)
    assert seen[-1]["reward_margin"] > 0.05
    assert seen[-1]["accuracy"] == 1.0
    assert (stage / "outputs" / "model" / "model.safetensors").is_file()


@pytest.mark.thorough
def test_pages_show_what_a_sharded_model_answers(project, tmp_path_factory):
    words = [word for setting in SHARDED for word in ("--set", setting)]
    command = [sys.executable, "-m", "charter.cli.main", "run", "-C", str(project), "--yes", "--only", "sft", *words]
    done = forks.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = (project / "run" / "stages").glob("sft-*")
    frozen = json.loads((stage / "job.json").read_text())["frozen"]
    assert (frozen["world_size"], frozen["zero"]) == (2, 3)
    answered = [json.loads(line) for line in (stage / "samples.jsonl").read_text().splitlines()]
    assert sorted(row["prompt"][0]["content"] for row in answered) == sorted(
        f"How do I learn about {t}?" for t in TOPICS
    )
    out = tmp_path_factory.mktemp("pages") / "out"
    export_pages(Settings(roots=(project,), token="correct-horse-battery-staple-0123456789"), out)
    (page,) = [path.read_text() for path in out.glob("*samples*.html")]
    assert all(f"learn about {topic}?" in page for topic in TOPICS)
    assert f"step {answered[-1]['step']}" in page
