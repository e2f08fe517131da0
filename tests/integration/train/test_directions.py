"""Every loss moves its model the right way: measured on the model itself, not by the code that computes the loss."""

import json
import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny
from engine_bench import run, stage

from charter.artifacts.checkpoints import Position
from charter.feedback.comparing import Comparison, Rules, comparing
from charter.feedback.local_models import LocalModels
from charter.feedback.records import answered
from charter.inference.score import score_answers
from charter.models.language_model import load_language_model
from charter.models.preference import load_preference_model
from charter.spec.stage import JudgeStage
from charter.train import (
    judge,
    ppo_rollout,
    preference_model,
    sft,
)
from charter.train.judge import judge_loss
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.ppo_sequences import answer_values
from charter.train.setup import set_up

pytestmark = pytest.mark.torch


@torch.no_grad()
def probability_of(model, text):
    """Mean log p of the tokens of a text."""
    ids = model.tokenizer(text, return_tensors="pt").input_ids
    log_probability = model.model(input_ids=ids).logits[0].log_softmax(-1)
    return log_probability[:-1].gather(1, ids[0, 1:, None]).mean().item()


def test_fine_tuning_makes_its_answers_likelier(engine_inputs, tmp_path):
    learnt = load_language_model(
        run(stage(engine_inputs, tmp_path / "sft", "sft", steps=6, learning_rate=5e-3), sft).outputs / "model"
    )
    base = load_language_model(engine_inputs / "base" / "model")
    for pair in tiny.pairs():
        assert probability_of(learnt, pair.chosen) > probability_of(base, pair.chosen) + 0.05


@pytest.mark.parametrize("turned", [False, True])
def test_a_preference_model_scores_higher_what_its_labels_prefer(engine_inputs, tmp_path, turned, monkeypatch):
    """Scores have mean 0 and deviation 1 over the training pairs; labels below one half prefer the other answer."""
    if turned:
        real = preference_model.read_pairs
        monkeypatch.setattr(
            preference_model,
            "read_pairs",
            lambda *a, **k: [replace(pair, chosen_probability=0.05) for pair in real(*a, **k)],
        )
        made = run(stage(engine_inputs, tmp_path / "pm", "preference_model", steps=8), preference_model).outputs
    model = load_preference_model((made if turned else engine_inputs / "pm") / "model")
    model.scalar.eval()
    answers = [(pair.prompt, answer) for pair in tiny.pairs() for answer in (pair.chosen, pair.rejected)]
    scores = score_answers(model, answers).view(-1, 2)
    better, worse = scores.unbind(1) if not turned else scores.flip(1).unbind(1)
    assert (better > worse).all()
    assert scores.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert scores.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-3)


def test_the_accuracy_that_is_told_counts_what_the_labels_prefer(engine_inputs):
    told = [json.loads(line) for line in (engine_inputs / "pm-stage" / "metrics.jsonl").read_text().splitlines()]
    assert told[-1]["accuracy"] == 1.0
    assert told[-1]["score_margin"] > told[0]["score_margin"]


def test_shuffled_labels_keep_texts_and_label_values_but_lose_the_link():
    data = [replace(pair, chosen_probability=0.5 + i / 20) for i, pair in enumerate(tiny.pairs())]
    mixed = preference_model.shuffled(data, seed=3)

    def label_of_first(pair):
        return round(pair.chosen_probability if pair.chosen < pair.rejected else 1 - pair.chosen_probability, 6)

    assert [{pair.chosen, pair.rejected} for pair in mixed] == [{pair.chosen, pair.rejected} for pair in data]
    before, after = [label_of_first(pair) for pair in data], [label_of_first(pair) for pair in mixed]
    assert sorted(before) == sorted(after)
    assert sum(a == b for a, b in zip(before, after, strict=True)) < len(data) / 2


@pytest.mark.parametrize("format", ["yes_no", "yes_no_mean"])
def test_a_taught_judge_prefers_what_it_was_taught(engine_inputs, tmp_path, format):
    made = run(stage(engine_inputs, tmp_path / "judge", "judge", format=format, seq_len=160, learning_rate=5e-3), judge)
    principle = judge.load_constitution(engine_inputs / "constitution.yaml").draw(0, "any")
    items = [
        Comparison(id=pair.id, turns=pair.prompt, first=pair.rejected, second=pair.chosen, principles=(principle,))
        for pair in tiny.pairs()
    ]
    found = []
    for path in (engine_inputs / "base", made.outputs):
        model = load_language_model(path / "model")
        rules = Rules(seed=0, stage="label", format=format)
        verdicts = answered(comparing(items, rules), LocalModels({"judge": model}))
        found.append(sum(1 - verdict.probability_first for verdict in verdicts) / len(verdicts))
    assert found[1] > found[0] + 0.005


@pytest.mark.parametrize("format", ["multiple_choice", "yes_no", "yes_no_mean"])
def test_the_loss_of_a_judge_by_hand(monkeypatch, format):
    """Log-odds of 2 and -1: a margin of 3; the right choices have probabilities 1/2 and 1/4."""
    asked = []

    def log_odds(model, texts, choices, **_):
        asked.extend(str(text) for text in texts)
        return torch.tensor([2.0, -1.0]), torch.log(torch.tensor([[0.5, 0.1], [0.2, 0.25]]))

    monkeypatch.setattr(judge, "log_odds", log_odds)
    spec, pair = JudgeStage(init="b", pairs=("p",), format=format, cross_entropy_weight=0.5), tiny.pairs()[0]
    found = judge_loss(tiny.language_model(), [(pair, _Principle())], spec)
    wanted = math.log(1 + math.exp(-3)) + 0.5 * (math.log(2) + math.log(4)) / 2
    assert found.loss_sum.item() == pytest.approx(wanted, rel=1e-5)
    assert found.sums["accuracy"] == 1.0
    if format == "multiple_choice":
        assert [f"(A) {pair.chosen}" in asked[0], f"(B) {pair.chosen}" in asked[1]] == [True, True]
    else:
        assert [pair.chosen in asked[0], pair.rejected in asked[1]] == [True, True]


class _Principle:
    """The wording of a question needs one."""

    id, critique, revision, compare = "kind", "Is it kind?", "Make it kind.", "Which is kinder?"


LEARNING = {
    "rollout_batch": 32, "episodes": 64, "samples_per_prompt": 4, "minibatch": 16, "min_new_tokens": 6,
    "learning_rate": 4e-3, "value_learning_rate": 4e-3, "kl_coefficient": 0.0,
}  # fmt: skip


@pytest.fixture
def task(engine_inputs, tmp_path):
    """(changes of the spec) -> a PPO task, ready to be run part by part."""
    count = iter(range(100))

    def make(**changes):
        found = stage(engine_inputs, tmp_path / f"ppo-{next(count)}", "ppo", **(LEARNING | changes))
        made, _ = ppo_task(set_up(found))
        Loop(made.setup, made)
        return made

    return make


def whole_step(task, step=0):
    for part in range(task.parts):
        task.run_part(Position(step, part))


@torch.no_grad()
def next_tokens(module, sequences):
    """The distributions that the first rollout's answers were drawn from, one row per answer token."""
    logits = module(input_ids=sequences.ids_BT).logits.log_softmax(-1)
    rows, tokens = sequences.answer_mask_BR.nonzero().unbind(1)
    return logits[rows, sequences.prompt_tokens_B[rows] + tokens - 1]


def steps_of(estimator):
    """REINFORCE makes one step of a whole rollout; anything else is refused by the spec."""
    return {"minibatch": 32, "ppo_epochs": 1} if estimator == "reinforce" else {}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("estimator", ["gae", "rloo", "grpo", "reinforce"])
def test_a_policy_writes_more_of_what_is_rewarded(task, monkeypatch, estimator, sign):
    """The reward is how often an answer has the letter e, or that with a minus."""
    monkeypatch.setattr(
        ppo_rollout,
        "score_answers",
        lambda model, conversations, **_: torch.tensor([sign * text.count("e") for _, text in conversations]),
    )
    found = task(estimator=estimator, **steps_of(estimator))
    module, tokenizer = found.models.trained.module, found.models.policy.tokenizer
    sequences = found.sampler.sample(0, 0, kl_coefficient=0.0).sequences
    vocabulary = range(module.config.vocab_size)
    letters_V = torch.tensor([float(str(tokenizer.decode([token])).count("e")) for token in vocabulary])
    before = (next_tokens(module, sequences).exp() @ letters_V).mean().item()
    whole_step(found)
    after = (next_tokens(module, sequences).exp() @ letters_V).mean().item()
    assert sign * (after - before) > 0.01


def moved_away(task):
    """The task with a policy that is no longer the reference."""
    with torch.no_grad():
        for index, value in enumerate(task.models.trained.module.parameters()):
            value.add_(0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(index)))
    return task


@pytest.mark.parametrize("estimator", ["gae", "rloo", "grpo", "reinforce"])
def test_the_penalty_pulls_a_policy_back_to_its_reference(task, monkeypatch, estimator):
    """No reward at all, and a policy that was moved away: KL(policy | reference) over the same answers falls."""
    monkeypatch.setattr(ppo_rollout, "score_answers", lambda model, texts, **_: torch.zeros(len(texts)))
    found = moved_away(
        task(estimator=estimator, kl_coefficient=0.5, whiten_advantages=estimator != "grpo", **steps_of(estimator))
    )
    sequences = found.sampler.sample(0, 0, kl_coefficient=0.5).sequences

    def kl():
        ours = next_tokens(found.models.trained.module, sequences)
        theirs = next_tokens(found.models.reference.module, sequences)
        return (ours.exp() * (ours - theirs)).sum(1).mean().item()

    before = kl()
    for step in range(2):
        whole_step(found, step)
    assert kl() < 0.97 * before


def of_answers(module, sequences):
    """log p of every answer token, one row per token, with the graph to differentiate it."""
    rows, tokens = sequences.answer_mask_BR.nonzero().unbind(1)
    place = sequences.prompt_tokens_B[rows] + tokens
    logits = module(input_ids=sequences.ids_BT).logits.log_softmax(-1)
    return logits[rows, place - 1, sequences.ids_BT[rows, place]]


def test_the_gradient_of_grpos_penalty_by_hand(task, monkeypatch):
    """No reward: what is left is 0.5 times the mean of k3 = exp(-d) - 1 + d with d = log p - log p_ref."""
    monkeypatch.setattr(ppo_rollout, "score_answers", lambda model, texts, **_: torch.zeros(len(texts)))
    found = moved_away(task(estimator="grpo", kl_coefficient=0.5, minibatch=32, ppo_epochs=1))
    module, sequences = found.models.trained.module, found.sampler.sample(0, 0, kl_coefficient=0.5).sequences
    ours, theirs = (of_answers(model, sequences) for model in (module, found.models.reference.module))
    (0.5 * (torch.expm1(theirs - ours) + ours - theirs)).mean().backward()
    wanted = torch.cat([p.grad.flatten() for p in module.parameters()]).norm().item()
    found.run_part(Position(0, 0))
    assert found.run_part(Position(0, 1)).metrics["gradient_norm"] == pytest.approx(wanted, rel=1e-3)


def test_the_kl_that_steers_and_the_kl_that_stops_are_of_the_policy_over_the_other(task):
    """To the reference: log-ratios of what was sampled. From the policy that sampled: r - 1 - log r, r = p / p_old."""
    found = moved_away(task(kl_coefficient=1e-6, minibatch=32, ppo_epochs=2))
    module, sequences = found.models.trained.module, found.sampler.sample(0, 0, kl_coefficient=0.0).sequences
    with torch.no_grad():
        before, reference = (of_answers(model, sequences) for model in (module, found.models.reference.module))
    found.run_part(Position(0, 0))
    found.run_part(Position(0, 1))
    with torch.no_grad():
        ratio = of_answers(module, sequences) - before
    report = found.run_part(Position(0, 2)).metrics
    assert report["kl"] == pytest.approx((before - reference).sum().item() / 32, rel=1e-3)
    assert report["kl"] > 0.1
    assert report["update_kl"] == pytest.approx((torch.expm1(ratio) - ratio).mean().item() / 2, rel=1e-2)


def test_the_value_model_moves_towards_the_returns(task, monkeypatch):
    monkeypatch.setattr(ppo_rollout, "score_answers", lambda model, texts, **_: torch.full((len(texts),), 2.0))
    found = task(value_clip=10.0, ppo_epochs=4)
    rollout = found.sampler.sample(0, 0, kl_coefficient=0.0)

    @torch.no_grad()
    def error():
        values = answer_values(found.models.value.module, rollout.sequences, dtype="fp32")[:, :-1]
        return ((values - rollout.return_BR)[rollout.mask_BR] ** 2).mean().item()

    before = error()
    whole_step(found)
    assert error() < 0.9 * before


def test_an_answer_that_was_cut_earns_the_value_of_the_state_behind_it(task, monkeypatch):
    monkeypatch.setattr(ppo_rollout, "score_answers", lambda model, texts, **_: torch.zeros(len(texts)))
    plain, going_on = (
        task(bootstrap_truncated=asked).sampler.sample(0, 0, kl_coefficient=0.0) for asked in (False, True)
    )
    with torch.no_grad():
        value_BS = answer_values(task().models.value.module, plain.sequences, dtype="fp32")
    last_B = plain.mask_BR.long().sum(1, keepdim=True) - 1
    earned_B = (going_on.return_BR - plain.return_BR).gather(1, last_B).squeeze(1)
    behind_B = value_BS.gather(1, last_B + 1).squeeze(1) * ~plain.ended_B
    assert behind_B.abs().max() > 1e-3
    assert torch.allclose(earned_B, behind_B, atol=1e-4)
