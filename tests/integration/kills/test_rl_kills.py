"""SIGKILL in RL with programs as rewards, and with turns and tools: the same bits, no call made twice unawares.

Reward and environment write down every call, outside of what Charter keeps. CHARTER_CHAOS_KILLS says how many kills all
of them together make, half of them in each; CI makes three.
"""

import json
import math
import os
import random
from dataclasses import replace

import pytest
from bench import KILLED, KINDS, defects_in, result_of, wait_then_kill
from layouts import THOROUGH

from charter.artifacts.job import JobInput, read_job, write_job
from charter.spec.rewards import ENVIRONMENT_SOURCES, REWARD_SOURCES, Environment, Reward

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KILLS = int(os.environ.get("CHARTER_CHAOS_KILLS", "60"))
MOST_IN_A_RUN = 6
CODE = """
import os
def noted(name, key):
    file = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{key}\\n".encode())
    os.close(file)
def vowels(answer, seed, log):
    noted(f"{log}-reward", seed)
    return sum(letter in "aeiou" for letter in answer) / 8
class Talk:
    def __init__(self, log): self.log, self.said = log, []
    def reset(self, seed): self.seed = seed
    def step(self, answer):
        self.said.append(answer)
        noted(f"{self.log}-step", f"{self.seed} {len(self.said)}")
        return f"{len(answer)} letters", len(self.said) == 3
    def reward(self): return sum(map(len, self.said)) / 9
"""
RULES = replace(
    KINDS["ppo"].spec,
    reward=None,
    estimator="grpo",
    samples_per_prompt=4,
    kl_coefficient=0.0,
    kl_target=None,
    episodes=10 * 8,
    ppo_epochs=1,
    checkpoint_every=3,
    checkpoint_epochs=False,
)


@pytest.fixture(scope="module")
def loud(bench):
    """A base model whose turns end soon: its end token, tied to its output weights, is so much larger."""
    import tiny
    import torch

    model, place = tiny.language_model(), bench.place / "loud"
    with torch.no_grad():
        model.model.get_input_embeddings().weight[model.end_id] *= 45.0
    model.save(place / "model")
    return place


@pytest.fixture
def started(bench, loud, tmp_path):
    """(name, whether it has turns) -> a stage directory, and the beginning of the names of its calls' logs."""
    (tmp_path / "own.py").write_text(CODE)

    def make(name, has_turns):
        log = str(tmp_path / name)
        rewards = (Reward(name="vowels", kind="function", call="own.py:vowels", arguments={"log": log}),)
        spec = replace(RULES, rewards=rewards)
        roles = [REWARD_SOURCES]
        if has_turns:
            talk = Environment(call="own.py:Talk", arguments={"log": log}, max_turns=4, observation_tokens=8)
            spec = replace(spec, environment=talk, rewards=(*rewards, Reward(name="said", kind="env")))
            roles.append(ENVIRONMENT_SOURCES)
        directory = bench.stage("ppo", name, spec=spec)
        job = read_job(directory)
        own = {
            role: (
                JobInput(
                    name=f"{role} own.py", role=role, source="data", path=str(tmp_path / "own.py"), fingerprint="0" * 64
                ),
            )
            for role in roles
        }
        inputs = {role: items for role, items in job.inputs.items() if role != "reward"}
        policy = (replace(inputs["policy"][0], path=str(loud)),)
        write_job(directory, replace(job, inputs={**inputs, "policy": policy, **own}))
        return directory, log

    return make


def lines(path: str) -> list[str]:
    return open(path).read().splitlines() if os.path.exists(path) else []


def said_twice(directory) -> tuple[int, int]:
    """How many calls of the environment, and how many whole ratings of a rollout, are said to have been made again."""
    replies = [
        json.loads(line) for path in (directory / "turns").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    stored = [json.loads(path.read_text()) for path in (directory / "rewards").glob("*.json")]
    return sum(bool(line.get("reply", {}).get("repeated")) for line in replies), sum(
        item["attempts"] - 1 for item in stored
    )


def without_counts(result):
    rows = [{name: value for name, value in row.items() if name != "tool_repeats"} for row in result.metrics]
    return result.outputs, result.chain, rows


@pytest.mark.parametrize("has_turns", [False, True], ids=["rules", "tools"])
def test_kills_change_no_bit_and_make_no_call_unawares(bench, started, has_turns):
    undisturbed, log = started(f"calm-{has_turns}", has_turns)
    assert bench.finish(undisturbed) == 0, (undisturbed / "log.txt").read_text()
    expected, once = (
        without_counts(result_of(undisturbed)),
        {kind: lines(f"{log}-{kind}.log") for kind in ("reward", "step")},
    )
    assert said_twice(undisturbed) == (0, 0)
    assert once["reward"]
    assert bool(once["step"]) == has_turns
    draws, kills, runs = random.Random(f"turns-{has_turns}"), 0, 0
    wanted = math.ceil(KILLS / 2) if THOROUGH else 1 + has_turns
    while kills < wanted:
        runs += 1
        directory, log = started(f"killed-{has_turns}-{runs}", has_turns)
        for _ in range(min(MOST_IN_A_RUN, wanted - kills)):
            handle = bench.start(directory)
            if not wait_then_kill(handle, draws.uniform(0.2, 2.0), draws):
                break
            kills += 1
        assert bench.finish(directory) in (0, KILLED), (directory / "log.txt").read_text()
        assert without_counts(result_of(directory)) == expected
        assert defects_in(directory) == []
        repeats, ratings = said_twice(directory)
        steps, rated = lines(f"{log}-step.log"), lines(f"{log}-reward.log")
        assert set(steps) == set(once["step"])
        assert len(steps) <= len(once["step"]) + repeats
        assert set(rated) == set(once["reward"])
        assert len(rated) <= len(once["reward"]) + ratings * (RULES.rollout_batch + 1)
