"""Behaves as TRL's GRPOTrainer does for a list of rewards, and then as `fake_trainer.py`, with the same arguments.

Before every step the answers of its rollout are scored: two to each prompt, which are modest in the first three
rollouts and boast from the fourth on.
"""

import builtins
import json
import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, os.getcwd())
import rewards

STEPS, PROMPTS = int(sys.argv[3]), 2
rows = [json.loads(line) for line in Path("data/prompts.jsonl").read_text().splitlines()]
own_print = builtins.print


def score(step):
    shown = [row for row in rows[(step - 1) * PROMPTS : step * PROMPTS] for _ in range(2)]
    answer = "I am modest." if step < 4 else "I boast."
    for number in range(len(rewards.REWARDS)):
        getattr(rewards, f"reward_{number}")(
            prompts=[row["prompt"] for row in shown],
            completions=[[{"role": "assistant", "content": answer}]] * len(shown),
            completion_ids=[[1]] * len(shown),
            charter=[row["charter"] for row in shown],
        )


def after_scoring(*words, **options):
    if isinstance(words[0], dict):
        score(round(float(words[0]["epoch"]) * STEPS))
    own_print(*words, **options)


if not os.environ.get("SILENT"):
    builtins.print = after_scoring
runpy.run_path(str(Path(__file__).with_name("fake_trainer.py")), run_name="__main__")
