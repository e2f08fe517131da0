"""Tokens per CPU second of critique and revision in process, beside plain `generate` in padded batches.

    python benchmarks/critique_speed.py [--batches 1] [--batch 64] [--pairs 3] [--models tiny small]

Both answer the questions of the same critique stage: answer, critique, revision, for one batch of 64 prompts at a time.
Ours is what the stage runs (`LocalModels`, one fixed unit). The peer pads the same prompts to the longest of a batch of
16 or of all, whichever is faster, and calls transformers' `generate`, sampling too. Prompts have the length profile of
the harmless half of the HH data (context p50/p95/p99 = 305/1,316/2,090 characters, at 4 to a token); answers end
with probability 1/40 at every token, so that p50/p95/p99 = 28/119/183 tokens: the last replies there have 32/140/234.
Every pair of runs is one of each, in turns, in this process, on one thread; the figure is the median of the pairs'
ratios of tokens per CPU second. The last line is one JSON object.
"""

import argparse
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
BATCH, SMALLER_PEER_BATCH, MOST_NEW_TOKENS, END_PROBABILITY = 64, 16, 256, 1 / 40
PROMPT_TOKENS = (76, 329, 522)
"""p50, p95, p99."""
VOCABULARY = 2048
MODELS = {
    "tiny": {"hidden_size": 192, "intermediate_size": 512, "num_layers": 2, "num_heads": 6},
    "small": {"hidden_size": 320, "intermediate_size": 864, "num_layers": 4, "num_heads": 5},
}


def prompt_lengths(count: int, *, seed: int, quantiles: tuple[int, int, int] = PROMPT_TOKENS) -> list[int]:
    """Lengths in tokens with a median and a 95th percentile: log-normal, cut at the 99th."""
    from charter.artifacts.draws import draw_seed

    median, upper, longest = quantiles
    spread = math.log(upper / median) / statistics.NormalDist().inv_cdf(0.95)
    normal = statistics.NormalDist(math.log(median), spread)
    shares = ((draw_seed(seed, "length", index) + 1) / (2**63 + 1) for index in range(count))
    return [min(longest, max(8, round(math.exp(normal.inv_cdf(share))))) for share in shares]


def make_model(name: str) -> Any:
    """Random weights; the end token has the same probability everywhere."""
    import torch

    from charter.models.chat import train_tokenizer
    from charter.models.language_model import new_language_model
    from charter.spec.architecture import Architecture

    tokenizer = train_tokenizer(texts(), vocab_size=VOCABULARY)
    architecture = Architecture(vocab_size=len(tokenizer), max_position_embeddings=4096, **MODELS[name])
    language_model = new_language_model(architecture, tokenizer, seed=1)
    end = language_model.end_id

    def level(_: Any, __: Any, logits: Any) -> Any:
        logits[..., end] = float("-inf")
        logits[..., end] = torch.logsumexp(logits, -1) - math.log(1 / END_PROBABILITY - 1)
        return logits

    language_model.model.lm_head.register_forward_hook(level)
    return language_model


def texts() -> list[str]:
    """Prose that every Python has with it."""
    import pydoc_data.topics

    return [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]


def prompts_of(lengths: Sequence[int], tokenizer: Any) -> list[str]:
    """Consecutive pieces of that prose, of these lengths in tokens."""
    ids = tokenizer("\n".join(texts()))["input_ids"]
    ends = list(itertools.accumulate(lengths))
    return [str(tokenizer.decode(ids[end - length : end])) for end, length in zip(ends, lengths, strict=True)]


def rounds(prompts: Sequence[str], ask: Callable[[list[tuple[Any, ...]], int], list[str]]) -> None:
    """Answer, critique and revision of every prompt."""
    from charter.data.dataset import Turn

    chats = [(Turn("user", prompt),) for prompt in prompts]
    for number, request in enumerate(("Say what is wrong with it.", "Write it again without that.", "")):
        texts = ask([*chats], number)
        chats = [
            (*chat, Turn("assistant", text), Turn("user", request)) for chat, text in zip(chats, texts, strict=True)
        ]


def ours(language_model: Any, prompts: Sequence[str]) -> tuple[int, float]:
    """Tokens generated, and CPU seconds."""
    from charter.feedback.asking import Sample, Text
    from charter.feedback.local_models import LocalModels

    models, tokens = LocalModels({"critic": language_model}), 0

    def ask(chats: list[tuple[Any, ...]], number: int) -> list[str]:
        nonlocal tokens
        asks = [
            Sample(role="critic", turns=chat, seed=1000 * number + index, temperature=1.0,
                   max_new_tokens=MOST_NEW_TOKENS, max_prompt_tokens=2048)
            for index, chat in enumerate(chats)
        ]  # fmt: skip
        replies = [reply for reply in models.submit(asks).result() if isinstance(reply, Text)]
        tokens += sum(reply.tokens for reply in replies)
        return [reply.text for reply in replies]

    start = time.process_time()
    rounds(prompts, ask)
    return tokens, time.process_time() - start


def theirs(language_model: Any, prompts: Sequence[str], size: int) -> tuple[int, float]:
    """The same by transformers' `generate`, in batches of `size` in the order given."""
    import torch

    from charter.inference.generate import pad_left
    from charter.models.chat import encode_prompt

    tokens, tokenizer = 0, language_model.tokenizer

    def ask(chats: list[tuple[Any, ...]], number: int) -> list[str]:
        nonlocal tokens
        texts = []
        for start in range(0, len(chats), size):
            rows = [encode_prompt(tokenizer, chat) for chat in chats[start : start + size]]
            ids, mask = pad_left(rows, padding=language_model.padding_id)
            torch.manual_seed(1000 * number + start)
            generated = language_model.model.generate(
                ids, attention_mask=mask, do_sample=True, top_k=0, temperature=1.0, max_new_tokens=MOST_NEW_TOKENS,
                eos_token_id=language_model.end_id, pad_token_id=language_model.padding_id,
            )[:, ids.shape[1] :]  # fmt: skip
            tokens += int((generated != language_model.padding_id).sum())
            texts += tokenizer.batch_decode(generated, skip_special_tokens=True)
        return texts

    start = time.process_time()
    rounds(prompts, ask)
    return tokens, time.process_time() - start


def measured(name: str, batches: int, pairs: int, batch: int) -> dict[str, Any]:
    """The median ratio for one model, and both rates."""
    language_model = make_model(name)
    lengths = prompt_lengths(batch * batches, seed=1)
    prompts = prompts_of(lengths, language_model.tokenizer)
    parts = [prompts[start : start + batch] for start in range(0, len(prompts), batch)]

    def rate(run: Callable[[Sequence[str]], tuple[int, float]]) -> float:
        speeds = [run(part) for part in parts]
        return sum(tokens for tokens, _ in speeds) / sum(seconds for _, seconds in speeds)

    peers = {
        size: rate(lambda part, size=size: theirs(language_model, part, size)) for size in (SMALLER_PEER_BATCH, batch)
    }
    best = max(peers, key=lambda size: peers[size])
    speeds = [
        (rate(lambda part: ours(language_model, part)), rate(lambda part: theirs(language_model, part, best)))
        for _ in range(pairs)
    ]
    return {
        "ratio": round(statistics.median(own / other for own, other in speeds), 2),
        "tokens_per_cpu_second": round(statistics.median(own for own, _ in speeds)),
        "peer_tokens_per_cpu_second": round(statistics.median(other for _, other in speeds)),
        "peer_batch": best,
    }


def main() -> None:
    """Measure and print."""
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    figures = {name: measured(name, arguments.batches, arguments.pairs, arguments.batch) for name in arguments.models}
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps({"critique_generation": figures, "command": " ".join(sys.argv), "machine": machine}))


if __name__ == "__main__":
    main()
