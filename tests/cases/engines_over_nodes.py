"""A stage of an engine that is a program of Ray, on two nodes of a cluster with four accelerators each.

The engines are `ray_trainer.py`, which reads the configuration that Charter wrote and makes no weights of its own.
"""

import contextlib
import json
import sys
from pathlib import Path

import hosted_case as case
import pytest
import ray_trainer
from ray_cluster import CPUS_PER_NODE, GPUS_PER_NODE

WORKERS, EVERY, STEPS, HELD_AT, SAVED = 2, 2, 6, 5, 4
LEAST_TOKENS = {"openrlhf": 1, "skyrl": 1}
"""What an engine has for the least length of an answer, where it is not none."""
CASES = Path(ray_trainer.__file__).parent
PROJECT = """\
name: over-nodes
models:
  base:
    architecture: {{hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 176, vocab_size: 512,
                   max_position_embeddings: 512, tied_embeddings: true}}
    tokenizer: {{train_on: [chats], vocab_size: 512}}
data:
  chats: {{path: chats.jsonl}}
  prompts: {{path: prompts.jsonl}}
pipeline:
  rl: {{kind: ppo, engine: {engine}, policy: base, prompts: prompts, estimator: grpo, samples_per_prompt: 4,
       rewards: [{{name: right, kind: function, call: "charter:number"}}],
       episodes: {episodes}, rollout_batch: 32, minibatch: 32, kl_coefficient: 0, max_prompt_tokens: 64,
       max_new_tokens: 32, checkpoint_every: {every}, learning_rate: 1e-5, dtype: bf16, min_new_tokens: {least},
       resources: {{accelerators: "H100:4", num_nodes: 2, zero: 3, micro_batch: 4}}}}
seed: 7
resources: {{infra: {infra}, cpus: {cpus}, memory: 1GiB, max_parallel_stages: 1, price: 3.6}}
launch:
  {settings}
  environment: {{PYTHONPATH: "{path}"}}
engines:
  {engine}:
    python: {python}
    directory: {root}
    environment: {{HOLD: {root}/hold, STEPS: "{steps}", RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES: "83886080"}}
"""
INTERPRETER = """\
#!/bin/sh
export ENGINE_OF_TEST=1
case " $* " in
  *" -c "*|*" verl."*|*" openrlhf."*|*"/run_grpo.py "*) exec {python} {trainer} "$@";;
esac
exec {python} "$@"
"""


def project(root, engine, *, infra, settings):
    """A project of one stage that trains on two nodes; `settings` are those of the launcher."""
    root.mkdir()
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {number}?"}], "answer": str(number)} for number in range(64)
    ]
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chats = [{"messages": [*row["prompt"], {"role": "assistant", "content": row["answer"]}]} for row in rows]
    (root / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    python = root / "python"
    python.write_text(INTERPRETER.format(python=sys.executable, trainer=ray_trainer.__file__))
    python.chmod(0o755)
    text = PROJECT.format(
        engine=engine,
        episodes=STEPS * 32,
        every=EVERY,
        least=LEAST_TOKENS.get(engine, 0),
        steps=STEPS,
        cpus=CPUS_PER_NODE,
        infra=infra,
        settings=settings,
        path=f"{CASES / 'made_up_gpus'}:{case.ROOT / 'src'}",
        python=python,
        root=root,
    )
    (root / "charter.yaml").write_text(text)
    return root


def undisturbed_hashes(root):
    """Hashes of a run to which nothing happens; the weights say nothing of the engine."""
    ended = case.charter(root, "run", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_bill(root, [("done", 0)])
    return case.outputs_of(root)["rl"]


def check_bill(root, wanted):
    """Every start costs the accelerators of both nodes for as long as it had them, whoever reserved them."""
    attempts = case.answered(root, "cost", "report")["attempts"]
    assert [(item["outcome"], item["first_step"]) for item in attempts] == wanted
    for item in attempts:
        assert item["count"] == WORKERS * GPUS_PER_NODE
        assert item["micro_usd"] == pytest.approx(item["count"] * 3.6e6 * item["seconds"] / 3600, abs=1)


def goes_on(root, undisturbed, harm):
    """Harm a run between two checkpoints; it goes on from the first to the hashes of an undisturbed one.

    `harm` gets the nodes on which the engine's workers stand.
    """
    (root / "hold").write_text(str(HELD_AT))
    stands = [root / f"hold.stands-{number}" for number in range(WORKERS)]
    with contextlib.closing(case.Run(root)) as run:
        run.wait_for(lambda: all(path.exists() for path in stands) and case.has_checkpoint(root, "rl", SAVED)())
        harm([path.read_text() for path in stands])
        (root / "hold").unlink()
        assert run.process.wait(timeout=case.HANG_SECONDS) == 0, (root / "run.log").read_text()
    check_bill(root, [("killed", 0), ("done", SAVED)])
    assert case.outputs_of(root)["rl"] == undisturbed
