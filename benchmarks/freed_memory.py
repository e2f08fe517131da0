"""The gain from an allocator that keeps freed memory (`models/runtime.keep_freed_memory`), on the demo's model.

Two programs that differ in that call alone take the same optimizer steps, in turn, some pairs of them; the ratio is of
their CPU seconds (usual over kept), a median over the pairs with its quartiles. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
STEPS, ROWS, TOKENS = 25, 16, 256


def steps(*, kept: bool) -> float:
    """CPU seconds of the steps after the first, in this process."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from charter.models.runtime import keep_freed_memory

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kept:
        keep_freed_memory()
    shape = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 512}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2048, tie_word_embeddings=True, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 2048, (ROWS, TOKENS))
    began = 0.0
    for number in range(STEPS + 1):
        if number == 1:
            began = time.process_time()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - began


def measured(name: str) -> float:
    """CPU seconds of one program."""
    done = subprocess.run([sys.executable, __file__, "--child", name], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure pairs, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--child", choices=("kept", "usual"))
    arguments = parser.parse_args()
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if Path(sys.executable).resolve() != PYTHON.resolve() or sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    if arguments.child:
        print(steps(kept=arguments.child == "kept"))
        return
    ratios = []
    for number in range(arguments.pairs):
        order = ("kept", "usual") if number % 2 else ("usual", "kept")
        seconds = {name: measured(name) for name in order}
        ratios.append(seconds["usual"] / seconds["kept"])
        print(f"pair {number + 1}: usual over kept {ratios[-1]:.3f}", file=sys.stderr, flush=True)
    quartiles = [round(value, 3) for value in statistics.quantiles(ratios, n=4)]
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine()}
    provenance = {"command": " ".join(sys.argv), "machine": machine}
    print(json.dumps({"usual_over_kept": round(statistics.median(ratios), 3), "quartiles": quartiles, **provenance}))


if __name__ == "__main__":
    main()
