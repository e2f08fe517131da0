"""PPO with a list of rewards, with options of the loss, and without a reference, on a very small real model."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import forks
import pytest

torch = pytest.importorskip("torch")

from contextlib import ExitStack

from engine_bench import farthest, metrics, run, run_in_two, stage, weights
from pooled import save_judge

from charter.artifacts.checkpoints import Position
from charter.artifacts.job import JobInput, read_job, write_job
from charter.errors import StageError
from charter.feedback.answering import CALLS_FILE
from charter.ledger.calls import CallStore
from charter.spec.project import Serving
from charter.spec.rewards import REWARD_SOURCES, RUBRICS, Reward, Rubric
from charter.tracking import overoptimisation
from charter.tracking.overoptimisation import OVEROPTIMISATION, Overoptimised
from charter.train import ppo
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
LENGTH = Reward(name="length", kind="function", call="own.py:length")
SHORT = Reward(name="short", kind="function", call="charter:overlong", arguments={"longest": 6, "cache": 6}, weight=0.5)
LISTED = {
    "reward": None,
    "rewards": (LENGTH, SHORT),
    "estimator": "grpo",
    "samples_per_prompt": 4,
    "kl_coefficient": 0.0,
    "dtype": "fp32",
}
PRICED = {"usd_per_million_input_tokens": 1.0, "usd_per_million_output_tokens": 2.0}
CODE = """
def length(answer): return float(len(answer))
def same(answer): return 1.0
def less(answer): return -float(len(answer)) if len(answer) < 400 else None
def rarely(seed):
    if seed % 4 == 0: raise ValueError("seed")
    return 1.0
def some(answer, seed):
    if seed % 4 == 0: raise ValueError("seed")
    return float(len(answer))
def raises(answer): raise ValueError("always")
"""


@pytest.fixture
def listed(engine_inputs, tmp_path):
    """(changes of the spec) -> a stage directory whose rewards are a list."""
    count = iter(range(100))
    (tmp_path / "own.py").write_text(CODE)

    def make(**changes):
        found = stage(engine_inputs, tmp_path / f"ppo-{next(count)}", "ppo", **{**LISTED, **changes})
        job = read_job(found.path)
        source = JobInput(
            name=f"{REWARD_SOURCES} own.py",
            role=REWARD_SOURCES,
            source="data",
            path=str(tmp_path / "own.py"),
            fingerprint="0" * 64,
        )
        inputs = {role: items for role, items in job.inputs.items() if role != "reward"}
        write_job(found.path, replace(job, inputs={**inputs, REWARD_SOURCES: (source,)}))
        return type(found)(found.path)

    return make


@pytest.fixture
def task(listed):
    with ExitStack() as stack:

        def make(**changes):
            made, _ = ppo_task(set_up(listed(**changes)), stack)
            Loop(made.setup, made)
            return made

        yield make


def own(name, **more):
    return Reward(name=name, kind="function", call=f"own.py:{name}", **more)


def test_stage_whose_rewards_are_functions_reports_each(listed):
    found = run(listed(), ppo)
    rows = metrics(found)
    assert len(rows) == 2
    for row in rows:
        assert row["reward_mean"] == pytest.approx(row["reward_length_mean"] + 0.5 * row["reward_short_mean"], rel=1e-6)
        assert row["reward_length_failed"] == row["reward_length_not_applicable"] == 0.0
        assert row["reward_short_deviation"] >= 0.0
        assert row["reward_short_seconds"] > 0.0
        assert "kl" not in row, "nothing measures a distance without a reference"
    assert sorted(item.name for item in (found.path / "rewards").iterdir()) == ["000000-0.json", "000001-0.json"]


def test_replay_reads_the_stored_rewards(task, monkeypatch):
    found = task()
    first = found.sampler.sample(0, 0, kl_coefficient=0.0)

    def asked(*_):
        raise AssertionError("asked again")

    sampler = replace(found.sampler, rewards=replace(found.sampler.rewards, scores=(asked, asked)))
    again = sampler.sample(0, 0, kl_coefficient=0.0)
    for name, value in first._tensors().items():
        assert torch.equal(value, again._tensors()[name]), name


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_stage_that_is_stopped_goes_on_to_the_same_bits(listed, parts):
    settings = {"checkpoint_epochs": True, "equal_groups": "drop", "max_failed_share": 1.0, "rewards": (own("some"),)}
    undisturbed, stopped = run(listed(**settings), ppo), run_in_two(listed(**settings), ppo, parts=parts)
    assert farthest(weights(undisturbed), weights(stopped)) == 0.0
    timed = ("time", "seconds", "per_second", "bytes", "checkpoint_async")  # the last follows from the pace of saves
    first, second = (
        [{name: value for name, value in row.items() if not any(word in name for word in timed)} for row in metrics(it)]
        for it in (undisturbed, stopped)
    )
    assert first == second


def test_no_reference_is_loaded_where_no_penalty_reads_it(task):
    found = task()
    assert found.models.reference is None
    assert len(found.frozen) == 0
    assert found.sampler.sample(0, 0, kl_coefficient=0.0).reference_BR is None
    assert task(kl_coefficient=0.1).models.reference is not None


def test_group_with_a_failure_is_left_out_and_counted(task):
    found = task(rewards=(own("some"),), max_failed_share=1.0)
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.0)
    failed = rollout.failed_BK.any(1).view(-1, 4).any(1)
    assert failed.any(), "some seed is a multiple of four"
    assert rollout.counted_B.view(-1, 4).all(1).tolist() == (~failed).tolist()
    assert not rollout.advantage_BR[~rollout.counted_B].any()
    found.run_part(Position(0, 0))
    found.run_part(Position(0, 1))
    report = found.run_part(Position(0, 2))
    assert report.metrics["reward_some_failed"] == rollout.failed_BK.float().mean().item()


def test_mean_reward_is_of_answers_whose_score_is_known(task):
    """What is learnt from is missing of a group; what is only measured takes nothing from a score."""
    for rewards, is_left_out in (((LENGTH, own("some")), True), ((LENGTH, own("some", weight=0.0)), False)):
        found = task(rewards=rewards, max_failed_share=1.0)
        rollout = found.sampler.sample(0, 0, kl_coefficient=0.0)
        failed = rollout.failed_BK.any(1).view(-1, 4).any(1).repeat_interleave(4)
        assert failed.any()
        assert not failed.all()
        counted = ~failed if is_left_out else torch.ones_like(failed)
        for part in range(found.parts):
            report = found.run_part(Position(0, part))
        assert report.metrics["reward_mean"] == pytest.approx(rollout.score_B[counted].double().mean().item())


def test_mean_reward_of_failures_alone_is_none(task):
    found = task(rewards=(own("raises"),), max_failed_share=1.0)
    for part in range(found.parts):
        report = found.run_part(Position(0, part))
    assert math.isnan(report.metrics["reward_mean"])


def test_too_many_failures_stop_the_stage(task):
    with pytest.raises(StageError, match="max_failed_share"):
        task(rewards=(own("raises"),)).sampler.sample(0, 0, kl_coefficient=0.0)


def test_equal_groups_are_left_out_of_the_loss(task):
    kept, dropped = (task(rewards=(own("same"),), equal_groups=name) for name in ("keep", "drop"))
    assert kept.sampler.sample(0, 0, kl_coefficient=0.0).counted_B.all()
    assert not dropped.sampler.sample(0, 0, kl_coefficient=0.0).counted_B.any()


def test_equal_groups_are_sampled_again_for_other_prompts(task):
    """The first sampling is stored as one of equal scores, and so are left places of its groups."""
    found = task(equal_groups="refill", most_batches=2)
    plain = found.sampler.sample(0, 0, kl_coefficient=0.0)
    path = found.setup.stage.path / "rewards" / "000000-0.json"
    stored = json.loads(path.read_text())
    stored["rewards"] = [[1.0, 0.0]] * 4 + stored["rewards"][4:]
    path.write_text(json.dumps(stored))
    filled = found.sampler.sample(0, 0, kl_coefficient=0.0)
    assert (path.parent / "000000.1-0.json").exists()
    assert filled.counted_B.all()
    assert plain.counted_B.all()
    assert torch.equal(filled.score_B[4:], plain.score_B[4:])
    assert filled.score_B[:4].tolist() != [1.0] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_ratio_high": 0.28, "ratio": "sequence", "loss_aggregation": "sequence"},
        {"surrogate": "cispo", "clip_ratio": 1.0, "loss_aggregation": "constant"},
        {"scale_advantages": "none", "loss_aggregation": "constant", "loss_horizon": 12},
        {"scale_advantages": "batch", "loss_aggregation": "prompt", "dual_clip": 3.0},
        {"estimator": "reinforce_pp", "samples_per_prompt": 1, "kl_coefficient": 0.1},
        {"estimator": "reinforce_pp_baseline", "kl_coefficient": 0.1},
        {"kl_coefficient": 0.1, "kl_in": "reward"},
        {"estimator": "rloo", "kl_coefficient": 0.1, "kl_in": "loss", "kl_estimator": "k2"},
        {"mixture": "normalise_then_sum"},
        {"off_policy_mask": 1e-9},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_option_of_the_loss_moves_the_policy_otherwise(task, changes):
    def moved(made):
        module = made.models.trained.module
        for step in range(2):
            for part in range(made.parts):
                report = made.run_part(Position(step, part))
        assert all(torch.isfinite(torch.tensor(value)) for value in report.metrics.values())
        return torch.cat([value.flatten() for value in module.state_dict().values()])

    tight = {"clip_ratio": 0.01}
    assert not torch.equal(moved(task(**tight)), moved(task(**{**tight, **changes})))


@pytest.fixture
def judged(engine_inputs, tmp_path):
    """(rewards, changes) -> a stage directory with a small real model as the judge of a list."""
    count = iter(range(100))
    (tmp_path / "rubric.yaml").write_text("schema: charter.rubric/v1\ncriteria: ['Is it brief?', 'Is it kind?']\n")

    def make(*rewards, **changes):
        settings = {**LISTED, "rewards": rewards, **changes}
        found = stage(engine_inputs, tmp_path / f"judged-{next(count)}", "ppo", **settings)
        job = read_job(found.path)
        judge = replace(job.only("policy"), role="judge", name="base")
        rubric = JobInput(
            name=f"{RUBRICS} rubric.yaml",
            role=RUBRICS,
            source="data",
            path=str(tmp_path / "rubric.yaml"),
            fingerprint="1" * 64,
        )
        inputs = {role: items for role, items in job.inputs.items() if role != "reward"}
        inputs |= {"judge": (judge,), RUBRICS: (rubric,)}
        write_job(found.path, replace(job, inputs=inputs, constitution=str(engine_inputs / "constitution.yaml")))
        return type(found)(found.path)

    return make


def by_rubric(name, **rubric):
    return Reward(name=name, kind="judge", model="base", rubric=Rubric(**rubric))


def test_judge_marks_by_constitution_file_and_comparison_at_once(judged):
    rewards = (
        by_rubric("principles"),
        by_rubric("file", criteria="rubric.yaml", ask="checklist"),
        by_rubric("better", criteria="rubric.yaml", ask="pairwise", only=("1",)),
        by_rubric("own", criteria="row"),
    )
    rows = metrics(run(judged(*rewards), ppo))
    for row in rows:
        assert -1 < row["reward_principles_mean"] < 1
        assert 0 < row["reward_file_mean"] < 1
        assert row["reward_better_mean"] == pytest.approx(0.5), "what one wins, another loses"
        assert row["reward_own_not_applicable"] == 1.0, "rows without criteria of their own"
        assert row["reward_principles_usd"] == row["reward_principles_failed"] == 0.0


@pytest.mark.thorough
def test_stopped_stage_with_a_rubric_ends_with_the_same_bits(judged):
    rewards = (by_rubric("kind", per_prompt=1), by_rubric("better", ask="pairwise"))
    settings = {"checkpoint_epochs": True}
    undisturbed = run(judged(*rewards, **settings), ppo)
    stopped = run_in_two(judged(*rewards, **settings), ppo, parts=2)
    assert farthest(weights(undisturbed), weights(stopped)) == 0.0


def test_money_of_a_reward_is_what_its_calls_have_cost(task):
    found = task(rewards=(own("length"), own("same")))
    paid = iter((0, 0, 0, 250_000))
    listed = replace(found.sampler.rewards, spent=lambda: next(paid))
    rollout = replace(found.sampler, rewards=listed).sample(0, 0, kl_coefficient=0.0)
    sums = rollout.reward_sums(["length", "same"])
    assert (sums["length/usd"], sums["same/usd"]) == (0.0, pytest.approx(0.25))


def test_what_is_drawn_again_is_paid_and_timed_too(task):
    paid = iter(range(0, 10**9, 125_000))
    found = task(rewards=(own("same"),), equal_groups="refill", most_batches=3)
    listed = replace(found.sampler.rewards, spent=lambda: next(paid))
    rollout = replace(found.sampler, rewards=listed).sample(0, 0, kl_coefficient=0.0)
    stored = [json.loads(path.read_text()) for path in (found.setup.stage.path / "rewards").iterdir()]
    assert len(stored) == 3
    sums = rollout.reward_sums(["same"])
    assert sums["same/usd"] == pytest.approx(3 * 0.125)
    assert sums["same/seconds"] == pytest.approx(sum(item["seconds"][0] for item in stored))


def test_watch_leaves_out_groups_whose_scores_are_missing(task):
    rewards = (LENGTH, own("some"), own("less", weight=0.0))
    found = task(rewards=rewards, gold="less", max_failed_share=1.0, rollout_batch=32, episodes=32)
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.0)
    for part in range(found.parts):
        found.run_part(Position(0, part))
    sound = ~rollout.failed_BK.any(1).view(-1, 4).any(1)
    assert 2 <= sound.sum() < len(sound)
    (means,) = found.watch.points
    assert means.reward == pytest.approx(rollout.score_B.double().view(-1, 4).mean(1)[sound].mean().item())


def watched(name, *, on="warn"):
    return {"rewards": (LENGTH, own(name, weight=0.0)), "gold": name, "on_overoptimisation": on, "episodes": 32}


def parting(monkeypatch, *, at):
    """Every look from this rollout on sees reward and gold part."""
    alarm = Overoptimised(
        since=1, at=at, width=1, gold_fall=2.0, gold_deviations=0.4, gold_errors=6.0, reward_rise=3.0
    )  # fmt: skip
    monkeypatch.setattr(overoptimisation, "overoptimised", lambda points: alarm if len(points) >= at else None)


def test_gold_is_measured_and_changes_nothing(listed):
    alone = run(listed(rewards=(LENGTH,)), ppo)
    with_gold = run(listed(rewards=(LENGTH, own("rarely", weight=0.0)), gold="rarely", max_failed_share=1.0), ppo)
    assert farthest(weights(alone), weights(with_gold)) == 0.0
    rows = metrics(with_gold)
    assert all(row["overoptimised"] == 0.0 for row in rows)
    assert any(row["reward_rarely_failed"] > 0 for row in rows)
    assert not (with_gold.path / OVEROPTIMISATION).exists()


def test_watch_hears_the_means_of_groups(task):
    found = task(**watched("less"))
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.0)
    for part in range(found.parts):
        found.run_part(Position(0, part))
    (means,) = found.watch.points
    groups = rollout.score_B.double().view(-1, 4).mean(1)
    assert means.reward == pytest.approx(groups.mean().item())
    assert means.reward_variance == pytest.approx(groups.var().item() / len(groups))
    assert means.gold == pytest.approx(-means.reward)
    assert means.gold_deviation == pytest.approx(rollout.score_B.double().std(correction=0).item())


def test_alarm_warns_and_the_stage_goes_on(listed, monkeypatch):
    parting(monkeypatch, at=2)
    found = run(listed(**watched("less")), ppo)
    assert [row["overoptimised"] for row in metrics(found)] == [0.0, 1.0, 1.0, 1.0]
    note = json.loads((found.path / OVEROPTIMISATION).read_text())
    assert (note["gold"], note["at"]) == ("less", 2)
    assert "the gold fell by 2" in note["message"]


def test_alarm_stops_the_stage_and_stops_it_again(listed, monkeypatch):
    parting(monkeypatch, at=3)
    found = listed(**watched("less", on="stop"), checkpoint_every=1)
    for _ in range(2):
        with pytest.raises(StageError, match="the reward rises and the gold falls"):
            ppo.run(type(found)(found.path))
    assert [row["step"] for row in metrics(found)] == [1, 2]


def test_alarm_of_rollouts_drawn_again_is_forgotten(listed, monkeypatch):
    """The weights, or what is drawn, may be others after the checkpoint."""
    parting(monkeypatch, at=3)
    found = listed(**watched("less", on="stop"), checkpoint_every=1)
    with pytest.raises(StageError, match="the reward rises and the gold falls"):
        ppo.run(type(found)(found.path))
    assert (found.path / OVEROPTIMISATION).exists()
    parting(monkeypatch, at=99)
    ppo.run(type(found)(found.path))
    assert [row["overoptimised"] for row in metrics(found)] == [0.0] * 4
    assert not (found.path / OVEROPTIMISATION).exists()


def test_stopped_stage_with_a_gold_ends_with_the_same_bits(listed, monkeypatch):
    parting(monkeypatch, at=2)
    settings = {**watched("less"), "checkpoint_epochs": True}
    undisturbed, stopped = run(listed(**settings), ppo), run_in_two(listed(**settings), ppo, parts=5)
    assert farthest(weights(undisturbed), weights(stopped)) == 0.0
    flags = [[row["overoptimised"] for row in metrics(item)] for item in (undisturbed, stopped)]
    assert flags[0] == flags[1] == [0.0, 1.0, 1.0, 1.0]


@pytest.fixture
def address(tmp_path):
    """A server of a judge that likes A and B."""
    model = str(save_judge(tmp_path / "judge"))
    command = [sys.executable, "-m", "charter.cli.main", "run", "serve", model, "--name", "base"]
    process = forks.Process(
        command, preload=forks.STAGES, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=None
    )
    try:
        line = process.stdout.readline()
        assert " at http://" in line, process.communicate(timeout=60)[1]
        yield line.split(" at ")[1].strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.thorough
def test_served_judge_is_asked_by_every_process_of_a_stage(judged, address):
    found = judged(by_rubric("kind", ask="pairwise", only=("kind",)), frozen={"world_size": 2})
    job = read_job(found.path)
    serving = Serving(endpoint=address, api="completions", model="base", canary_every=0, **PRICED)
    write_job(found.path, replace(job, serving={"base": serving}))
    rows = metrics(run(type(found)(found.path), ppo))
    assert len(rows) == 2
    for row in rows:
        assert row["reward_kind_mean"] == pytest.approx(0.5), "what one wins, another loses"
        assert row["reward_kind_failed"] == 0.0
    with CallStore.open(found.path / CALLS_FILE, run=job.run, stage=job.stage, fingerprint=job.fingerprint) as calls:
        billed = calls.totals().settled_micro_usd
    assert sum(row["reward_kind_usd"] for row in rows) == pytest.approx(billed / 1e6)
    assert billed > 0
