"""A stage of GRPO with a list of rewards for each engine; run as a script, it writes the golden files anew.

.venv/bin/python tests/golden/rewards_export.py

`rewards.py` is the same for all engines but for its head and what the engine calls: it lies whole in the folder of one,
and as a difference from that in the others.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from charter.engines import render
from charter.spec.rewards import Reward
from plain_stages import accepted_stage, handover, layout_of

FILES = Path(__file__).parent / "handover_rewards"
ENGINES = ("trl", "verl", "openrlhf", "nemo_rl", "prime_rl", "skyrl")
WHOLE, SHARED = "verl", "rewards.py"
"""The engine whose file of rewards lies there whole, and its name."""
OWN = '"""A function of a user."""\n\n\ndef polite(answer, word="please"):\n    return float(word in answer)\n'
REWARDS = (
    Reward(name="right", kind="function", call="charter:number"),
    Reward(name="polite", kind="function", call="rewards/own.py:polite", arguments={"word": "thanks"}, weight=0.1),
    Reward(name="short", kind="function", call="charter:overlong", arguments={"longest": 512, "cache": 128}),
)
STAGE = {"estimator": "grpo", "samples_per_prompt": 8, "reward": None, "kl_coefficient": 0.0, "clip_ratio_high": 0.28}


def export(engine: str) -> Mapping[str, str]:
    """Name -> text of every file and of the command; of the shared file what is not as in `WHOLE`."""
    files = dict(_export(engine))
    if engine != WHOLE:
        whole, own = (text.splitlines(keepends=True) for text in (_export(WHOLE)[SHARED], files.pop(SHARED)))
        files[f"{SHARED}.diff"] = "".join(unified_diff(whole, own, WHOLE, engine))
    return files


def _export(engine: str) -> Mapping[str, str]:
    stage = accepted_stage(engine, "ppo", **STAGE, rewards=REWARDS)
    run = render(replace(handover(stage, layout_of(stage)), sources={"rewards/own.py": OWN}))
    return {**run.files, "command.txt": "\n".join(run.command) + "\n"}


def main() -> int:
    """Write every golden file."""
    for engine in ENGINES:
        for name, text in export(engine).items():
            path = FILES / engine / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
