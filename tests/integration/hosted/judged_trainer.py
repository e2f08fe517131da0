"""Behaves as TRL's GRPOTrainer does for a list of rewards, and then as `fake_trainer.py`, with the same arguments.

Every prompt of the rollouts gets an answer of its own, and the rewards of all of them are appended to the file that
RATINGS names, as JSON.
"""

import json
import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, os.getcwd())
import rewards

rows = [json.loads(line) for line in Path("data/prompts.jsonl").read_text().splitlines()]
answers = [f"Read a book about number {number % 9}." for number in range(len(rows))]
columns = [
    getattr(rewards, f"reward_{number}")(
        prompts=[row["prompt"] for row in rows],
        completions=[[{"role": "assistant", "content": answer}] for answer in answers],
        completion_ids=[[1]] * len(rows),
        charter=[row["charter"] for row in rows],
    )
    for number in range(len(rewards.REWARDS))
]
with open(os.environ["RATINGS"], "a") as file:
    file.write(json.dumps(columns) + "\n")
runpy.run_path(str(Path(__file__).with_name("fake_trainer.py")), run_name="__main__")
