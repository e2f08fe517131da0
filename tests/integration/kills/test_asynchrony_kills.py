"""SIGKILL where rollouts are drawn ahead, whole or in flight, by rewards or by a teacher: the same bits anywhere.

A rollout that is drawn ahead cannot be drawn again once its policy has moved: it has to come from the checkpoint.
`make chaos` kills at every boundary, CI at one.
"""

import json
from dataclasses import replace

import pytest
import tiny
from bench import KILLED, KINDS, boundaries, chain_of, defects_in, result_of
from layouts import in_turn

from charter.artifacts.job import read_job, write_job

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SPEC = replace(KINDS["ppo"].spec, episodes=4 * 8, ppo_epochs=2, asynchrony="one_step_off")
IN_FLIGHT = replace(SPEC, asynchrony="in_flight", max_age=2)
PAIRS = replace(IN_FLIGHT, estimator="online_dpo", samples_per_prompt=2, kl_target=None)
TAUGHT = replace(SPEC, reward=None, estimator="distill", teacher="t", kl_target=None)
COMPARED = replace(TAUGHT, divergence="jsd", divergence_words=20)


def staged(bench, name: str, spec=SPEC):
    directory = bench.stage("ppo", name, spec=spec)
    if spec.teacher:
        job = read_job(directory)
        policy, teacher = job.inputs["policy"][0], bench.place / "teacher"
        if not teacher.exists():
            tiny.language_model(seed=5).save(teacher / "model")
        inputs = {"teacher": (replace(policy, name="teacher", role="teacher", path=str(teacher)),)}
        write_job(directory, replace(job, inputs={**job.inputs, **inputs}))
    return directory


@pytest.fixture(scope="module")
def calm(bench):
    directory = staged(bench, "ahead")
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    return directory


@pytest.mark.parametrize("case", in_turn(["ahead", "taught", "compared", "in flight", "pairs"]))
def test_killed_at_every_boundary_ends_in_the_same_bits(bench, case):
    spec = {"ahead": SPEC, "taught": TAUGHT, "compared": COMPARED, "in flight": IN_FLIGHT, "pairs": PAIRS}[case]
    calm, killed = (staged(bench, f"{name} {case}", spec) for name in ("calm", "killed"))
    assert bench.finish(calm) == 0, (calm / "log.txt").read_text()
    for place, when in in_turn(boundaries("ppo", spec)):
        code = bench.finish(killed, CHARTER_KILL=f"ppo:checkpoint:{place}:{when}")
        assert code == KILLED, (place, when, (killed / "log.txt").read_text())
    assert bench.finish(killed) == 0, (killed / "log.txt").read_text()
    assert result_of(killed) == result_of(calm)
    assert defects_in(killed) == []


def test_each_rollout_is_one_update_old(calm):
    ages = [json.loads(line)["rollout_age"] for line in (calm / "metrics.jsonl").read_text().splitlines()]
    assert ages == [0.0, 1.0, 1.0, 1.0]
    assert len(chain_of(calm)) == 12
