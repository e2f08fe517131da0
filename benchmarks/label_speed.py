"""Pairs judged per CPU second by reading log-probabilities, beside having the judge generate the letter.

    python benchmarks/label_speed.py [--pairs 3]

Both ask the same questions, each pair in both orders. Ours is what a label stage runs: the probabilities of both
letters from one pass (`LocalModels`, one fixed unit of 64 pairs). The peer calls transformers' `generate` with
`max_new_tokens=1`, greedily, over batches padded to their longest question, 16 or 64 in the order given, whichever is
faster; it knows the letter then, but not how sure the judge is. Conversations and answers have the length profile of
the harmless half of the HH data (p50/p95/p99 = 305/1,316/2,090 and 126/561/937 characters, at 4 to a token). Every
repetition is one run of each, in turns, in this process, on one thread; the figure is the median of the ratios of CPU
seconds. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

from critique_speed import MODELS, PYTHON, ROOT, make_model, prompt_lengths, prompts_of

PAIRS, PEER_BATCHES = 64, (16, 64)
ANSWER_TOKENS = (32, 140, 234)
"""p50, p95, p99."""
COMPARE = (
    "Which of these answers is less harmful and more honest? Choose the one that a wise and kind person would give."
)


def questions(tokenizer: Any) -> list[Any]:
    """Both orders of every pair."""
    from charter.data.dataset import Turn
    from charter.feedback.wording import multiple_choice_text

    contexts = prompts_of(prompt_lengths(PAIRS, seed=1), tokenizer)
    answers = prompts_of(prompt_lengths(2 * PAIRS, seed=2, quantiles=ANSWER_TOKENS), tokenizer)
    result = []
    for context, first, second in zip(contexts, answers[::2], answers[1::2], strict=True):
        for shown in ((first, second), (second, first)):
            result.append(multiple_choice_text((Turn("user", context),), *shown, COMPARE))
    return result


def ours(language_model: Any, asked: list[Any]) -> float:
    """CPU seconds."""
    from charter.feedback.asking import Choose
    from charter.feedback.local_models import LocalModels

    models = LocalModels({"judge": language_model})
    start = time.process_time()
    models.submit([Choose(role="judge", question=question, choices=("A", "B")) for question in asked]).result()
    return time.process_time() - start


def theirs(language_model: Any, asked: list[Any], size: int) -> float:
    """CPU seconds of generating the letter."""
    from charter.inference.generate import pad_left

    start = time.process_time()
    for begin in range(0, len(asked), size):
        rows = [language_model.tokenizer(str(text))["input_ids"] for text in asked[begin : begin + size]]
        ids, mask = pad_left(rows, padding=language_model.padding_id)
        generated = language_model.model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=1,
            eos_token_id=language_model.end_id, pad_token_id=language_model.padding_id,
        )  # fmt: skip
        language_model.tokenizer.batch_decode(generated[:, ids.shape[1] :])
    return time.process_time() - start


def measured(name: str, repetitions: int) -> dict[str, Any]:
    """The median ratios for one model."""
    language_model = make_model(name)
    pending = questions(language_model.tokenizer)
    peers = {size: theirs(language_model, pending, size) for size in PEER_BATCHES}
    best = min(peers, key=lambda size: peers[size])
    pairs = [(ours(language_model, pending), theirs(language_model, pending, best)) for _ in range(repetitions)]
    return {
        "ratio": round(statistics.median(letter / own for own, letter in pairs), 2),
        "pairs_per_cpu_second": round(PAIRS / statistics.median(own for own, _ in pairs), 1),
        "peer_pairs_per_cpu_second": round(PAIRS / statistics.median(letter for _, letter in pairs), 1),
        "peer_batch": best,
    }


def main() -> None:
    """Measure and print."""
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    figures = {name: measured(name, arguments.pairs) for name in arguments.models}
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps({"label_scoring": figures, "command": " ".join(sys.argv), "machine": machine}))


if __name__ == "__main__":
    main()
