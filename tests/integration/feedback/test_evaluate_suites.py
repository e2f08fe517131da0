"""The eval stage through a real stage directory, with tiny random models."""

import json
import math

import pytest

torch = pytest.importorskip("torch")

from charter.data.dataset import (
    Pair,
    Turn,
    read_pairs,
)
from charter.errors import DataError
from charter.evaluate import run
from charter.evaluate.bench import Bench
from charter.evaluate.preferences import cross_validated, equal_length_rows, hhh_rows
from charter.evaluate.questions import answer_losses
from charter.models.chat import encode_answer, encode_prompt
from charter.spec.stage import EvalStage

from .conftest import pair_rows, prompt_rows, published

pytestmark = pytest.mark.torch
ALL_SUITES = ("perplexity", "judge_agreement", "pm_accuracy", "win_rate", "independent_check", "hhh")
MODELS = {"policy": "policy", "against": "control", "control": "judge", "judge": "judge", "reward": "reward"}


class Killed(BaseException):
    """Stands for a SIGKILL between two instructions."""


def eval_stage(workshop, name, *, suites=ALL_SUITES, models=None, independent=None, **changes):
    fields = {"max_new_tokens": 8, "min_new_tokens": 8, "max_prompt_tokens": 60, "rollout_batch": 4, **changes}
    spec = EvalStage(policy="p", suites=suites, **fields)
    data = {
        "pairs": workshop.data("pairs", pair_rows()),
        "prompts": workshop.data("prompts", prompt_rows()),
        "independent_pairs": workshop.data("independent", independent or pair_rows(30, opening="What about")),
    }
    models = {**MODELS, "also_rewards": ("also",)} if models is None else models
    return workshop.stage(name, spec, data=data, **models)


def results_of(stage):
    content = json.loads((stage.outputs / "results.json").read_text())
    return content, {figure["key"]: figure for figure in content["figures"]}


@pytest.fixture
def whole(workshop):
    stage = eval_stage(workshop, "whole")
    run.run(stage)
    return stage


def test_every_figure_lies_in_its_interval_and_says_how_it_was_made(whole):
    content, figures = results_of(whole)
    assert content["schema"] == "charter.results/1"
    assert {key.split(".")[0] for key in figures} == set(ALL_SUITES)
    for figure in figures.values():
        assert set(figure) == {
            "key",
            "label",
            "value",
            "low",
            "high",
            "n",
            "unit",
            "method",
            "note",
            "headline",
        }
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert figure["n"] >= 10 or ".principle." in figure["key"]
        assert figure["method"]
    assert len(figures) == len(content["figures"])


def test_the_figures_that_the_issue_asks_for_are_there(whole):
    _, figures = results_of(whole)
    wanted = {
        "judge_agreement.judge",
        "judge_agreement.shorter_answer",
        "pm_accuracy.reward",
        "pm_accuracy.also.also",
        "pm_accuracy.shorter_answer",
        "pm_accuracy.bag_of_words",
        "win_rate.policy",
        "win_rate.control",
        "win_rate.reward_against",
        "win_rate.reward_policy",
        "win_rate.kl_policy",
        "independent_check.proxy",
        "independent_check.policy",
        "independent_check.control",
        "independent_check.difference",
        "perplexity.policy.nats_per_token",
        "perplexity.policy.bits_per_byte",
        "hhh.reward",
        "hhh.judge",
    }
    assert wanted <= set(figures)
    gain = figures["win_rate.reward_policy"]["value"] - figures["win_rate.reward_against"]["value"]
    assert figures["win_rate.gain_policy"]["value"] == pytest.approx(gain, abs=2e-6)
    difference = figures["independent_check.policy"]["value"] - figures["independent_check.control"]["value"]
    assert figures["independent_check.difference"]["value"] == pytest.approx(difference, abs=2e-6)


def test_pairs_that_are_held_out_and_independent_at_once_are_refused(workshop):
    stage = eval_stage(workshop, "leak", suites=("independent_check",), independent=pair_rows(30))
    with pytest.raises(DataError, match="30 of 30 independent_pairs share their conversation"):
        run.run(stage)


def test_a_second_run_gives_the_same_bytes_without_texts_or_paths(workshop, whole):
    again = eval_stage(workshop, "again")
    run.run(again)
    assert published(again) == published(whole)
    text = (whole.outputs / "results.json").read_text()
    assert str(workshop.root) not in text
    answers = [text for role in ("policy", "against") for text in Bench(whole).answers(role).texts if len(text) > 3]
    assert answers
    assert not any(answer in text for answer in answers)


def test_few_rows_allow_no_claim(whole):
    content, _ = results_of(whole)
    assert content["claims"]["may"] == []
    assert any("too few rows" in claim for claim in content["claims"]["may_not"])


@pytest.mark.parametrize("suite", ["judge_agreement", "independent_check"])
def test_a_kill_inside_a_suite_costs_that_suite_only_and_changes_no_byte(workshop, whole, suite, monkeypatch):
    stage = eval_stage(workshop, "killed")
    done = []

    def watched(name, function):
        def measure(bench):
            if name == suite and "killed" not in done:
                done.append("killed")
                raise Killed
            done.append(name)
            return function(bench)

        return measure

    watched_suites = {name: watched(name, function) for name, function in run.SUITES.items()}
    monkeypatch.setattr(run, "SUITES", watched_suites)
    with pytest.raises(Killed):
        run.run(stage)
    run.run(workshop.stage("killed", stage.job.spec))
    assert [name for name in done if name != "killed"] == list(ALL_SUITES)
    assert published(stage) == published(whole)


def test_a_suite_whose_inputs_are_missing_is_refused_before_anything_is_measured(workshop):
    stage = eval_stage(workshop, "lacking", suites=("hhh", "win_rate"), models={"policy": "policy", "judge": "judge"})
    with pytest.raises(DataError, match="suite win_rate needs against, reward"):
        run.run(stage)
    assert not (stage.path / "state").exists()
    with pytest.raises(DataError, match="suite hhh needs reward or also_rewards or judge"):
        run.run(eval_stage(workshop, "bare", suites=("hhh",), models={"policy": "policy"}))


def test_a_model_against_itself_neither_wins_nor_moves(workshop):
    models = {"policy": "policy", "against": "policy", "reward": "reward"}
    stage = eval_stage(workshop, "same", suites=("win_rate", "independent_check"), models=models)
    run.run(stage)
    _, figures = results_of(stage)
    assert figures["win_rate.policy"]["value"] == 0.5
    assert figures["win_rate.kl_policy"]["value"] == pytest.approx(0, abs=1e-6)
    assert figures["independent_check.policy"]["value"] == 0.5


def likes_to_end(model, amount):
    """Raise the end token's logit, as in a model that has learnt to stop."""
    bias = torch.zeros(model.model.config.vocab_size)
    bias[model.end_id] = amount
    model.model.lm_head.register_forward_hook(lambda module, inputs, output: output + bias)


def test_the_divergence_is_that_of_the_distributions_sampled_from(workshop):
    """The end token is banned while sampling, so how much either model wants to end does not count."""
    bench = Bench(eval_stage(workshop, "kl", suites=("win_rate",), temperature=0.7))
    likes_to_end(bench.model("against"), 8.0)
    prompt = encode_prompt(bench.model("policy").tokenizer, bench.prompts[0].turns)
    answer = list(bench.answers("policy").tokens[0])
    assert len(answer) == 8
    logs = []
    for role in ("policy", "against"):
        with torch.no_grad():
            logits = bench.model(role).model(input_ids=torch.tensor([prompt + answer])).logits[0].double() / 0.7
        logits[:, bench.model(role).end_id] = -1e9
        logs.append(torch.log_softmax(logits, -1)[len(prompt) - 1 : -1])
    by_hand = (logs[0].exp() * (logs[0] - logs[1])).sum().item()
    assert bench.divergences("policy", "against")[0] == pytest.approx(by_hand, rel=1e-3)
    assert by_hand > 0.01


def test_the_divergence_counts_no_token_after_the_end(workshop):
    bench = Bench(eval_stage(workshop, "kl", suites=("win_rate",), min_new_tokens=0, max_new_tokens=60))
    lengths = [len(row) for row in bench.answers("policy").tokens]
    whole = bench.divergences("policy", "against")
    for batch in bench.answers("policy").batches:
        batch.answers.answer_BR[~batch.answers.answer_mask_BR] = 7
    assert min(lengths) < 60, "no answer ended early, so this test shows nothing"
    assert bench.divergences("policy", "against") == pytest.approx(whole, rel=1e-5)


def nats_of(model, pairs):
    return [loss.nats for loss in answer_losses(model, pairs, batch=4)]


def test_taking_fewer_rows_at_once_changes_no_figure(workshop, policy, monkeypatch):
    bench = Bench(eval_stage(workshop, "kl", suites=("win_rate",)))
    together = bench.divergences("policy", "against"), nats_of(policy, bench.pairs)
    monkeypatch.setattr("charter.evaluate.likelihood.MAX_LOGITS", 1)
    alone = bench.divergences("policy", "against"), nats_of(policy, bench.pairs)
    assert alone[0] == pytest.approx(together[0], rel=1e-4)
    assert alone[1] == pytest.approx(together[1], rel=1e-4)


def test_the_loss_of_answers_by_hand(policy, workshop):
    pairs = read_pairs(workshop.data("pairs", pair_rows(3)))
    losses = answer_losses(policy, pairs, batch=3)
    for index, pair in enumerate(pairs):
        prompt = encode_prompt(policy.tokenizer, pair.prompt)
        answer = encode_answer(policy.tokenizer, pair.prompt, pair.chosen)
        ids = torch.tensor([prompt + answer])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        with torch.no_grad():
            mean = policy.model(input_ids=ids, labels=labels).loss.item()
        assert losses[index].nats == pytest.approx(mean * len(answer), rel=1e-4)
        assert losses[index].tokens == len(answer)
        assert losses[index].text_bytes == len(pair.chosen.encode())
    assert not any(loss.cut for loss in losses)


def test_bits_per_byte_and_nats_per_token_are_one_loss(whole, policy):
    _, figures = results_of(whole)
    pairs = read_pairs(whole.job.only("pairs").location())
    losses = answer_losses(policy, pairs, batch=4)
    tokens, size = sum(loss.tokens for loss in losses), sum(loss.text_bytes for loss in losses)
    expected = figures["perplexity.policy.nats_per_token"]["value"] * tokens / size / math.log(2)
    assert figures["perplexity.policy.bits_per_byte"]["value"] == pytest.approx(expected, rel=1e-5)


def test_length_cannot_win_the_independent_check():
    long, short = [[1, 2, 3, 4], [5, 6]], [[7, 8], [9]]
    cut, skipped, mean_length = equal_length_rows([long, short])
    assert [[len(row) for row in rows] for rows in cut] == [[2, 1], [2, 1]]
    assert (skipped, mean_length) == (0, 1.5)


def test_cross_validation_never_scores_a_pair_that_it_was_trained_on():
    """Every pair has words of its own: a model that saw the pair would be right, another one cannot know."""
    turns = (Turn("user", "hi"),)
    pairs = [Pair(f"pair{i}", turns, f"good{i} good{i} common", f"bad{i} bad{i} common") for i in range(40)]
    assert cross_validated(pairs, seed=1) == [0.5] * 40
    planted = [Pair(f"pair{i}", turns, "please common", "never common") for i in range(40)]
    assert cross_validated(planted, seed=1) == [1.0] * 40


def test_the_hhh_pairs_ship_with_the_package():
    rows = hhh_rows()
    assert len(rows) == 24
    assert all(row["better"] and row["worse"] and row["prompt"] for row in rows)
