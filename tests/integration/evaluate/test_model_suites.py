"""Suites that read probabilities and checkpoints, through a real stage directory with tiny random models."""

import json
import math
import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from charter.artifacts.job import JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.rows import ChoiceQuestion
from charter.errors import DataError
from charter.evaluate import run
from charter.evaluate.bench import Bench, _answers_in
from charter.evaluate.goodhart import goodhart, policy_of_checkpoint
from charter.evaluate.questions import (
    answer_all,
    question_text,
)
from charter.models.language_model import load_language_model
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import EvalStage
from charter.train import ppo

from .conftest import SAMPLING, in_their_intervals, pair_rows, prompt_rows

pytestmark = pytest.mark.torch


def question_rows(count=12):
    return [
        {
            "id": f"q{index}",
            "question": f"What is {index} and one?",
            "choices": [f"It is {index + 1}.", f"It is {index + 2}, I think.", "No."][: 2 + index % 2],
            "answer_matching_behavior": index % 2,
            "behavior": "even" if index % 2 else "odd",
        }
        for index in range(count)
    ]


def test_questions_are_answered_by_letter_and_by_answer(measured):
    models = {"policy": "policy", "against": "control"}
    _, figures = measured("mcq", ("multiple_choice",), data={"questions": question_rows()}, models=models)
    assert in_their_intervals(figures)
    for key in ("letter", "answer", "answer_per_byte", "first_option", "ece", "letter.even", "letter.odd"):
        assert f"multiple_choice.policy.{key}" in figures
        assert f"multiple_choice.against.{key}" in figures
    assert figures["multiple_choice.longest"]["value"] == 0.5, "the second choice, which is right every other time"
    assert figures["multiple_choice.chance"]["value"] == pytest.approx((6 / 2 + 6 / 3) / 12, abs=1e-6)


def test_the_letter_and_the_answer_are_those_of_the_model_by_hand(policy):
    item = ChoiceQuestion("q", "Tell me about rain.", ("It is good.", "Here is what I know."), 0)
    (found,) = answer_all(policy, [item], batch=4)
    tokenizer = policy.tokenizer

    def log_probabilities(ids):
        with torch.no_grad():
            return torch.log_softmax(policy.model(input_ids=torch.tensor([ids])).logits[0].double(), -1)

    def asked(turns):
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    shown = asked([{"role": "user", "content": question_text(item)}])
    opened = shown + tokenizer("(", add_special_tokens=False)["input_ids"]
    letters = [tokenizer(letter, add_special_tokens=False)["input_ids"][0] for letter in "AB"]
    of_letters = torch.softmax(log_probabilities(opened)[-1][letters], -1)
    assert found.letter == int(of_letters.argmax())
    assert found.letter_confidence == pytest.approx(float(of_letters.max()), abs=1e-5)
    sums = []
    for choice in item.choices:
        given = asked([{"role": "user", "content": item.question}])
        ids = tokenizer(choice, add_special_tokens=False)["input_ids"]
        rows = log_probabilities(given + ids)
        sums.append(sum(rows[len(given) - 1 + place, token].item() for place, token in enumerate(ids)))
    assert found.answer == sums.index(max(sums))


def test_the_calibration_of_a_preference_model_is_that_of_its_raw_scores(measured, workshop):
    models = {"policy": "policy", "reward": "reward", "also_rewards": ("also",)}
    _, figures = measured("calibrated", ("pm_calibration",), data={"pairs": pair_rows(30)}, models=models)
    assert in_their_intervals(figures)
    points = [figure for key, figure in figures.items() if key.startswith("pm_calibration.reward.bin.")]
    assert sum(point["n"] for point in points) == 30
    gaps = sum(point["n"] * abs(point["at"] - point["value"]) for point in points) / 30
    assert figures["pm_calibration.reward.ece"]["value"] == pytest.approx(gaps, abs=1e-5)
    assert "pm_calibration.also.also.log_loss" in figures

    bench = Bench(StageDir(workshop.root / "calibrated"))
    (scorer, _) = bench.scorers.values()
    margins = bench.margins(scorer, [(pair.prompt, pair.chosen, pair.rejected) for pair in bench.pairs])
    by_hand = sum(math.log1p(math.exp(-margin)) for margin in margins) / 30
    assert figures["pm_calibration.reward.log_loss"]["value"] == pytest.approx(by_hand, abs=1e-5)


@pytest.fixture
def trained(workshop):
    """A PPO stage of four rollouts, of which the two last checkpoints are kept."""
    spec = PpoStage(
        policy="p", reward="r", prompts=("q",), episodes=20, rollout_batch=5, minibatch=5, learning_rate=3e-3,
        value_learning_rate=1e-3, dtype="fp32", checkpoint_every=1, max_new_tokens=8, max_prompt_tokens=60,
    )  # fmt: skip
    data = {"prompts": workshop.data("ppo-prompts", prompt_rows())}
    stage = workshop.stage("ppo", spec, data=data, policy="policy", reward="reward")
    ppo.run(stage)
    return stage


def eval_of(workshop, trained, name, *, judge=True):
    spec = EvalStage(policy="p", suites=("goodhart",), **SAMPLING)
    data = {"prompts": workshop.data("prompts", prompt_rows())}
    named = {"policy": "policy", "against": "policy", "reward": "reward"} | ({"judge": "judge"} if judge else {})
    if not judge:
        data["independent_pairs"] = workshop.data("independent", pair_rows(20))
    stage = workshop.stage(name, spec, data=data, **named)
    kept = JobInput(
        name="ppo", role="checkpoints_of", source="stage", path=str(trained.outputs), fingerprint="p", stage_kind="ppo"
    )
    job = replace(stage.job, inputs={**stage.job.inputs, "checkpoints_of": (kept,)})
    write_job(stage.path, job)
    return StageDir(stage.path)


def test_the_last_checkpoint_holds_the_policy_that_was_published(trained):
    paths = sorted((trained.path / "state").iterdir())
    last = policy_of_checkpoint(trained.outputs / "model", paths[-1])
    before = policy_of_checkpoint(trained.outputs / "model", paths[-2])
    published = load_language_model(trained.outputs / "model").model.state_dict()
    assert all(torch.equal(value, published[name]) for name, value in last.model.state_dict().items())
    assert any(not torch.equal(value, published[name]) for name, value in before.model.state_dict().items())


def test_a_damaged_checkpoint_is_not_read(trained):
    path = sorted((trained.path / "state").iterdir())[-1]
    shard = next(item for item in sorted(path.iterdir()) if item.suffix == ".distcp")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        policy_of_checkpoint(trained.outputs / "model", path)


def test_reward_and_judge_are_followed_over_the_checkpoints(workshop, trained):
    stage = eval_of(workshop, trained, "followed")
    run.run(stage)
    figures = {item["key"]: item for item in json.loads((stage.outputs / "results.json").read_text())["figures"]}
    assert in_their_intervals(figures)
    assert {"goodhart.start.reward", "goodhart.step_3.quality", "goodhart.step_4.kl"} <= set(figures)
    assert "3 points from the start to step 4" in figures["goodhart.reward_slope"]["note"]
    assert "part" in figures["goodhart.quality_slope"]["note"]
    assert figures["goodhart.step_4.kl"]["value"] > 0
    at = [figures[f"goodhart.{name}.reward"]["at"] for name in ("start", "step_3", "step_4")]
    assert at[0] == 0
    assert at[2] == figures["goodhart.step_4.kl"]["value"]


def test_without_a_judge_the_independent_check_says_how_good_answers_are(workshop, trained):
    bench = Bench(eval_of(workshop, trained, "unjudged", judge=False))
    found = {figure.key: figure for figure in goodhart(bench)}
    assert "by the independent check" in found["goodhart.quality_slope"].note


def test_too_few_checkpoints_are_refused_with_what_would_help(workshop, trained):
    shutil.rmtree(sorted((trained.path / "state").iterdir())[0])
    with pytest.raises(DataError, match=r"with 1 checkpoints.*\n?.*storage\.keep_every"):
        run.run(eval_of(workshop, trained, "few"))


def test_answers_with_any_separator_of_lines_are_read(tmp_path):
    rows = [{"id": str(number), "answers": {"sft": f"one\u2028two\x85{number}"}} for number in range(2)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert _answers_in(tmp_path / "answers.jsonl") == {row["id"]: row["answers"] for row in rows}
