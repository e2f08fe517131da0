"""The gain of a second thread in a training step of the demo's size: `FURTHER_THREAD_GAIN` of the planner.

Tokens per second of forward, backward and AdamW on 8 x 128 tokens, one thread against two, best of several runs. The
last line is one JSON object.
"""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
STEPS, RUNS = 15, 5


def tokens_per_second(threads: int, dtype: str) -> float:
    """The best rate of several runs."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from charter.models.runtime import precision

    torch.set_num_threads(threads)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=192, intermediate_size=512, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=6, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 2048, (8, 128))
    best = 0.0
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(STEPS):
            with precision(dtype, torch.device("cpu")):
                logits = model(input_ids=ids, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        best = max(best, STEPS * ids.numel() / (time.perf_counter() - start))
    return best


def main() -> None:
    """Measure and print."""
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    rates = {dtype: [tokens_per_second(threads, dtype) for threads in (1, 2)] for dtype in ("fp32", "bf16")}
    figures = {
        dtype: {"one": round(one), "two": round(two), "gain": round(two / one - 1, 3)}
        for dtype, (one, two) in rates.items()
    }
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine()}
    print(json.dumps({"tokens_per_second": figures, "command": " ".join(sys.argv), "machine": machine}))


if __name__ == "__main__":
    main()
