"""Training killed with SIGKILL on this machine's accelerator, PPO above all: the same bits as without a kill?

    python benchmarks/accelerator_killed.py [--seed 7] [--kill pretrain,sft,pm,dpo,ppo,ppo,ppo] [--precision bf16]

A language model of 26 M parameters with heads of 64 is trained from scratch and fine-tuned on packed rows, then a
preference model, DPO and PPO, with the engine and the command that every project uses, `charter run`. In a second
directory the same run loses all of its processes at once, the supervisor too, in the stages that are named, at moments
drawn after a line of their metrics; each time the same command goes on. Then the hashes of all published files are
compared. Where the machine
has no GPU the same is done on processors. Needs what the extra `run` brings, and no network. The last line is one JSON
object.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "cases")]

from hosted_case import CHARTER, descendants  # noqa: E402

STAGES = ("pretrain", "sft", "pm", "dpo", "ppo")
LONGEST_SECONDS = 240.0
"""Of one command: a run that hangs ends the benchmark."""
PROJECT = """name: killed
models:
  base:
    precision: fp32
    architecture: {{hidden_size: {width}, num_layers: {layers}, num_heads: {heads}, num_kv_heads: {kv_heads},
                   intermediate_size: {inner}, vocab_size: 2048, max_position_embeddings: 1024, tied_embeddings: true}}
    tokenizer: {{train_on: [texts], vocab_size: 2048}}
data:
  demos:   {{path: preference_train.jsonl, column: chosen, limit: 200}}
  texts:   {{path: preference_train.jsonl, column: both, limit: 400}}
  pairs:   {{path: preference_train.jsonl, limit: 200}}
  prompts: {{path: prompts.jsonl, limit: 64}}
pipeline:
  pretrain: {{kind: pretrain, init: base, data: [texts], steps: 24, global_batch: 16, seq_len: 256, learning_rate: 1e-3,
             dtype: {precision}, checkpoint_every: 4}}
  sft: {{kind: sft, init: pretrain, data: [demos], packing: true, steps: 12, global_batch: 4, seq_len: 1024,
        learning_rate: 5e-4, dtype: {precision}, checkpoint_every: 3}}
  pm:  {{kind: preference_model, init: sft, data: [pairs], steps: 16, global_batch: 8, seq_len: 256,
        learning_rate: 3e-4, dtype: {precision}, checkpoint_every: 4}}
  dpo: {{kind: dpo, init: sft, data: [pairs], steps: 16, global_batch: 8, seq_len: 256, learning_rate: 3e-4,
        dtype: {precision}, checkpoint_every: 4}}
  ppo: {{kind: ppo, policy: sft, reward: pm, prompts: [prompts], episodes: 384, rollout_batch: 32, minibatch: 8,
        ppo_epochs: 2, learning_rate: 1e-4, value_learning_rate: 1e-4, kl_coefficient: 0.1, max_new_tokens: 32,
        max_prompt_tokens: 64, dtype: {precision}, checkpoint_every: 2, checkpoint_epochs: true}}
seed: 7
resources: {{infra: local, cpus: 2, max_parallel_stages: 2}}
storage: {{keep_last: 2}}
samples: {{count: 0}}
"""
SHAPES = {
    True: {"width": 512, "layers": 8, "heads": 8, "kv_heads": 4, "inner": 1408},
    False: {"width": 128, "layers": 2, "heads": 4, "kv_heads": 2, "inner": 352},
}
"""Of the model, with a GPU and without."""
LINES_OF_METRICS = {"pretrain": 24, "sft": 12, "pm": 16, "dpo": 16, "ppo": 12}


def environment() -> dict[str, str]:
    """This process's, with the Charter of this checkout before what else it names."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}


def write_project(root: Path, *, on_gpu: bool, precision: str) -> None:
    """The data of cai-smoke, with a pipeline of its own."""
    subprocess.run(
        [*CHARTER, "init", "--template", "cai-smoke", str(root)], check=True, env=environment(), stdout=sys.stderr
    )
    (root / "charter.yaml").write_text(PROJECT.format(precision=precision, **SHAPES[on_gpu]))


def start(root: Path) -> subprocess.Popen[bytes]:
    """`charter run` in the background."""
    with (root / "run.log").open("ab") as log:
        return subprocess.Popen(
            [*CHARTER, "run", "--yes"], cwd=root, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def finish(run: subprocess.Popen[bytes], root: Path) -> None:
    """Wait for the end of a run; what it said where it did not end well."""
    if run.wait(timeout=LONGEST_SECONDS) != 0:
        logs = [root / "run.log", *sorted(root.glob("run/stages/*/log*.txt"))]
        sys.exit("\n".join(f"== {path}\n{path.read_text(errors='replace')[-3000:]}" for path in logs))


def metric_lines(root: Path, stage: str) -> int:
    """Lines that a stage has written about its steps."""
    paths = list(root.glob(f"run/stages/{stage}-*/metrics.jsonl"))
    return len(paths[0].read_text().splitlines()) if paths else 0


def kill_everything(run: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the supervisor and to all that it has started."""
    for pid in [run.pid, *sorted(descendants(run.pid), reverse=True)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()


def run_killed(root: Path, *, stages: Sequence[str], draws: random.Random) -> list[dict[str, Any]]:
    """Run to the end through a kill in each of the stages named; where each of them hit."""
    kills: list[dict[str, Any]] = []
    for place, stage in enumerate(stages):
        number, of = stages[: place + 1].count(stage), stages.count(stage) + 1
        run, after = start(root), LINES_OF_METRICS[stage] * number // of
        while run.poll() is None and metric_lines(root, stage) < after:
            time.sleep(0.005)
        time.sleep(draws.uniform(0.0, 0.6))
        was_running = run.poll() is None
        kill_everything(run)
        kills.append({"stage": stage, "lines": metric_lines(root, stage), "was_running": was_running})
        print(json.dumps(kills[-1]), file=sys.stderr, flush=True)
    finish(start(root), root)
    return kills


def outputs_of(root: Path) -> dict[str, dict[str, str]]:
    """Hashes of what every stage has published, the records' own."""
    status = subprocess.run(
        [*CHARTER, "status", "--json"], cwd=root, env=environment(), capture_output=True, text=True, check=True
    )
    return {stage["name"]: stage["outputs"] for stage in json.loads(status.stdout)["stages"]}


def main() -> int:
    """Run twice, once killed, and compare; 1 where a hash differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7, help="of the moments of the kills")
    parser.add_argument("--kill", default="pretrain,sft,pm,dpo,ppo,ppo,ppo", help="stages, in order, each time once")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    options = parser.parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="accelerator-killed-") as folder:
        calm, killed = Path(folder) / "calm", Path(folder) / "killed"
        for root in (calm, killed):
            write_project(root, on_gpu=on_gpu, precision=options.precision)
        began = time.monotonic()
        finish(start(calm), calm)
        calm_seconds = time.monotonic() - began
        kills = run_killed(killed, stages=options.kill.split(","), draws=random.Random(options.seed))
        wanted, got = outputs_of(calm), outputs_of(killed)
        frozen = json.loads(next(calm.glob("run/stages/ppo-*/job.json")).read_text())
    identical = {stage: bool(wanted[stage]) and got[stage] == wanted[stage] for stage in STAGES}
    result = {
        "identical": identical,
        "kills": kills,
        "calm_seconds": round(calm_seconds, 1),
        "seconds": round(time.monotonic() - began, 1),
        "policy": next((value for name, value in sorted(wanted["ppo"].items()) if "safetensors" in name), ""),
        "frozen": frozen.get("content", frozen)["frozen"],
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    print(json.dumps(result))
    return 0 if all(identical.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
