"""Tokens per second and seconds per weight update of vLLM beside the native generator, same tiny model and batch.

    CHARTER_VLLM_PYTHON=/path/to/python python benchmarks/vllm_generator.py [--rows 64] [--tokens 64]

One JSON line. Where the machine is shared, both move; the first batch of each is not counted.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from charter.inference.generate import SamplingSettings
from charter.inference.generator import Generator, NativeGenerator, VllmGenerator, VllmOptions
from charter.models.chat import train_tokenizer
from charter.models.language_model import LanguageModel, new_language_model
from charter.spec.architecture import Architecture

ROUNDS = 5
ARCHITECTURE = Architecture(
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    intermediate_size=688,
    vocab_size=512,
    tied_embeddings=True,
    max_position_embeddings=512,
)


def main() -> None:
    """Measure both and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    policy = new_language_model(ARCHITECTURE, train_tokenizer(["tea and bread"] * 4, vocab_size=400), seed=0)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        engine = VllmGenerator(policy, Path(folder), dtype="fp32", options=VllmOptions(max_model_len=512))
        started = time.perf_counter() - start
        engines: dict[str, Generator] = {"native": NativeGenerator(policy), "vllm": engine}
        results = {
            name: measure(generator, policy, arguments.rows, arguments.tokens) for name, generator in engines.items()
        }
        engine.close()
    about = {"rows": arguments.rows, "tokens": arguments.tokens, "threads": torch.get_num_threads()}
    parameters = sum(value.numel() for value in policy.model.parameters())
    print(json.dumps({**about, "parameters": parameters, "vllm_start_seconds": round(started, 1), **results}))


def measure(generator: Generator, policy: LanguageModel, rows: int, tokens: int) -> dict[str, float]:
    """Medians over the rounds after the first."""
    settings = SamplingSettings(max_new_tokens=tokens, min_new_tokens=tokens)
    prompts = [[5 + row % 300, 6, 7, 8 + row % 200] * 4 for row in range(rows)]
    sync: list[float] = []
    speed: list[float] = []
    for version in range(1 + ROUNDS):
        start = time.perf_counter()
        generator.update_weights(policy.model.state_dict().items(), version=version)
        middle = time.perf_counter()
        answers = generator.sample(prompts, seeds=list(range(rows)), settings=settings, version=version)
        sync.append(middle - start)
        speed.append(float(answers.answer_mask_BR.sum()) / (time.perf_counter() - middle))
    return {
        "sync_seconds": round(statistics.median(sync[1:]), 4),
        "tokens_per_second": round(statistics.median(speed[1:]), 1),
    }


if __name__ == "__main__":
    main()
