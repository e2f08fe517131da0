"""A taskset of verifiers in an export for prime-rl: verifiers itself loads it, with the tasks of Charter's rows."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from engine_case import ask_engine

from charter.data.dataset import Turn
from charter.engines import render
from charter.engines.common.reward_file import row_text
from charter.engines.prime_rl.adapter import PrimeRlAdapter
from charter.spec.rewards import Environment, Reward
from plain_stages import accepted_stage, handover, layout_of

GAME = Path(__file__).with_name("guess_taskset.py")


def test_verifiers_loads_the_rows_tasks(tmp_path, monkeypatch):
    rewards = (Reward(name="solved", kind="env"),)
    arguments = {"taskset": {"highest": 4}, "player": {}}
    spec = Environment(call="verifiers:games/guess.py", role="user", max_turns=3, arguments=arguments)
    stage = accepted_stage("prime_rl", "ppo", reward=None, rewards=rewards, environment=spec)
    asked = handover(stage, layout_of(stage))
    for name, text in render(replace(asked, sources={"games/guess.py": GAME.read_text()})).files.items():
        (tmp_path / name).write_text(text)
    adapter, turns = PrimeRlAdapter(), [Turn("user", "Guess up to 4.")]
    tasks = [{"prompt": "Guess up to 4.", "number": number} for number in (3, 1, 2)]
    carried = [row_text(turns, {"task": task}, place) for place, task in enumerate(tasks)]
    rows = [adapter.prompt_row(turns, kind="ppo", index=0, carried=text) for text in carried]
    data = tmp_path / asked.paths.data["prompts"]
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    script = shutil.copy(Path(__file__).with_name("read_source.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    assert json.loads(ask_engine("verifiers", Path(script), "player")) == {
        "env": "GuessEnv",
        "numbers": [3, 1, 2],
        "highest": 4,
        "rewards": ["right", "turns_taken"],
        "seat": {"max_turns": 3, "max_output_tokens": 512},
        "harness": "null",
    }
