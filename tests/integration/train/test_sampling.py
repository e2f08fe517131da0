"""Drawing tokens, generating answers, and what PPO computes of them."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny

from charter.errors import DataError
from charter.inference import generate as generation
from charter.inference.generate import (
    SamplingSettings,
    choose,
    generate,
    prefix_sums,
    uniform_draws,
)
from charter.inference.score import score_rows
from charter.models.length_groups import equal_groups, length_groups
from charter.models.preference import PreferenceModel, ScalarModel
from charter.train.ppo_sequences import answer_log_probabilities, answer_values, as_sequences

pytestmark = pytest.mark.torch
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]
SETTINGS = SamplingSettings(10)


def logits_of(*probabilities):
    return torch.tensor([probabilities]).log()


@pytest.mark.parametrize(("draw", "token"), [(0.0, 1), (0.19, 1), (0.21, 2), (0.49, 2), (0.51, 4), (0.999999, 4)])
def test_a_token_is_where_the_cumulative_probability_passes_the_draw(draw, token):
    logits = logits_of(0.0, 0.2, 0.3, 0.0, 0.5, 0.0)
    assert choose(logits, torch.tensor([draw], dtype=torch.float64), SETTINGS).tolist() == [token]


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    logits, settings = logits_of(0.1, 0.5, 0.3, 0.1), SamplingSettings(1, top_p=0.75)
    draws = torch.linspace(0, 1, 201, dtype=torch.float64)[:-1]
    found = choose(logits.expand(200, -1), draws, settings)
    assert found.bincount(minlength=4).tolist() == [0, 125, 75, 0]


def test_temperature_zero_takes_the_likeliest():
    assert choose(logits_of(0.1, 0.6, 0.3), torch.tensor([0.99]), SamplingSettings(1, temperature=0)).tolist() == [1]


def test_many_draws_follow_the_distribution():
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 150, generator=draw)
    draws = (torch.arange(30_000, dtype=torch.float64) + 0.5) / 30_000
    share = choose(logits.expand(30_000, -1), draws, SETTINGS).bincount(minlength=150) / 30_000
    torch.testing.assert_close(share, torch.softmax(logits[0], -1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_rows_may_be_drawn_some_at_a_time(top_p, monkeypatch):
    """Of many rows the probabilities in fp64 would need more memory than all that decoding takes beside."""
    random = torch.Generator().manual_seed(1)
    logits, draws = torch.randn(7, 50, generator=random), torch.rand(7, generator=random, dtype=torch.float64)
    settings = SamplingSettings(1, top_p=top_p)
    together, widths = choose(logits, draws, settings), []
    monkeypatch.setattr("charter.inference.generate.DRAWN_LOGITS", 120)
    blocks = generation._blocks
    monkeypatch.setattr(generation, "_blocks", lambda values: [widths.append(len(values)), blocks(values)][1])
    assert choose(logits, draws, settings).tolist() == together.tolist()
    assert set(widths) == {2, 1}


@pytest.mark.parametrize("width", [1, 2, 3, 16, 17, 50])
def test_prefix_sums_are_cumulative_sums(width):
    values = torch.rand(3, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    torch.testing.assert_close(prefix_sums(values), values.cumsum(-1))


def ending_often(chance_of_end):
    """A model whose end token is likelier than it would be."""
    model = tiny.language_model()

    def lift(module, inputs, output):
        output[..., model.end_id] += chance_of_end
        return output

    model.model.lm_head.register_forward_hook(lift)
    return model


def answer_alone(model, prompt, seed, settings):
    """One answer without cache, batch or padding."""
    ids, draws = list(prompt), uniform_draws([seed], settings.max_new_tokens)
    for step in range(settings.max_new_tokens):
        logits = model.model(input_ids=torch.tensor([ids])).logits[:, -1].detach()
        if step < settings.min_new_tokens:
            logits[:, model.end_id] = float("-inf")
        ids.append(int(choose(logits, draws[:, step], settings)))
        if ids[-1] == model.end_id:
            break
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompts", [PROMPTS * 3, [[5, 6], [7, 8], [9, 10], [11, 12]] * 3], ids=["padded", "even"])
@pytest.mark.parametrize("least", [0, 3])
def test_answers_are_those_of_each_prompt_alone(prompts, least):
    model, settings = ending_often(4.5), SamplingSettings(10, min_new_tokens=least)
    seeds = list(range(len(prompts)))
    answers = generate(model, prompts, seeds=seeds, settings=settings, prompt_width=8)
    found = [row[keep].tolist() for row, keep in zip(answers.answer_BR, answers.answer_mask_BR, strict=True)]
    assert found == [answer_alone(model, prompt, seed, settings) for prompt, seed in zip(prompts, seeds, strict=True)]
    assert len({len(row) for row in found}) > 2
    assert min(len(row) for row in found) >= least + 1
    assert answers.prompt_BQ.shape == (12, 8)
    assert (answers.answer_BR[~answers.answer_mask_BR] == model.padding_id).all()


def test_the_model_reads_fewer_rows_when_half_have_ended():
    model, rows = ending_often(4.5), []
    model.model.register_forward_pre_hook(
        lambda m, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    answers = generate(model, PROMPTS * 4, seeds=list(range(16)), settings=SamplingSettings(30))
    assert rows[0] == 16
    assert min(rows) <= 4
    assert len(rows) == answers.answer_BR.shape[1] == int(answers.answer_mask_BR.sum(1).max())


@pytest.fixture
def sampled():
    model = ending_often(3.0)
    answers = generate(model, PROMPTS, seeds=[1, 2, 3, 4], settings=SETTINGS, prompt_width=9)
    return model, answers, as_sequences(answers, answer_width=12, padding=model.padding_id)


def test_sequences_hold_prompt_and_answer_without_a_gap(sampled):
    model, answers, sequences = sampled
    for row, prompt in enumerate(PROMPTS):
        answer = answers.answer_BR[row][answers.answer_mask_BR[row]].tolist()
        whole = prompt + answer
        assert sequences.ids_BT[row].tolist() == whole + [model.padding_id] * (sequences.ids_BT.shape[1] - len(whole))
        assert int(sequences.mask_BT[row].sum()) == len(whole)
        assert sequences.answer_mask_BR[row].tolist() == [place < len(answer) for place in range(12)]
    assert sequences.ids_BT.shape[1] == int(sequences.mask_BT.sum(1).max())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_and_entropies_are_those_of_each_answer_alone(sampled, temperature):
    model, answers, sequences = sampled
    found, entropy = answer_log_probabilities(model.model, sequences, temperature=temperature, dtype="fp32")
    for row, prompt in enumerate(PROMPTS):
        answer = answers.answer_BR[row][answers.answer_mask_BR[row]]
        ids = torch.cat([torch.tensor(prompt), answer])[None]
        all_RV = torch.log_softmax(model.model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature, -1)
        torch.testing.assert_close(found[row, : len(answer)], all_RV.gather(1, answer[:, None]).squeeze(1))
        torch.testing.assert_close(entropy[row, : len(answer)], -(all_RV.exp() * all_RV).sum(-1))
        assert (found[row, len(answer) :] == 0).all()
    assert found.requires_grad
    assert not entropy.requires_grad
    assert answer_log_probabilities(model.model, sequences, temperature=1, dtype="fp32", entropy_gradient=True)[
        1
    ].requires_grad


def test_an_answer_to_nothing_is_refused(sampled):
    model, _, sequences = sampled
    empty = replace(sequences, prompt_tokens_B=sequences.prompt_tokens_B * torch.tensor([1, 1, 0, 1]))
    with pytest.raises(DataError, match="an answer without a prompt"):
        answer_log_probabilities(model.model, empty, temperature=1, dtype="fp32")


def test_rows_lose_shared_padding_and_keep_their_figures(sampled):
    model, _, sequences = sampled
    lengths = sequences.mask_BT.sum(1)
    index = lengths.argsort()[:2]
    part = sequences.rows(index)
    assert part.ids_BT.shape[1] == int(lengths[index].max())
    whole, _ = answer_log_probabilities(model.model, sequences, temperature=1, dtype="fp32")
    torch.testing.assert_close(
        answer_log_probabilities(model.model, part, temperature=1, dtype="fp32")[0], whole[index]
    )


def test_values_stand_before_each_token_and_after_the_last(sampled):
    _, answers, sequences = sampled
    scalar = ScalarModel(tiny.language_model()).eval()
    torch.nn.init.normal_(scalar.head.weight, generator=torch.Generator().manual_seed(0))
    found = answer_values(scalar, sequences, dtype="fp32")
    assert found.shape == (4, 13)
    for row, prompt in enumerate(PROMPTS):
        count = int(answers.answer_mask_BR[row].sum())
        ids = torch.cat([torch.tensor(prompt), answers.answer_BR[row, :count]])[None]
        torch.testing.assert_close(found[row, : count + 1], scalar(ids)[0, len(prompt) - 1 :])


def preference_model(pooling):
    language_model = tiny.language_model()
    scalar = ScalarModel(language_model).eval()
    torch.nn.init.normal_(scalar.head.weight, generator=torch.Generator().manual_seed(0))
    return PreferenceModel(scalar, language_model, {"pooling": pooling})


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("groups", [None, 1, 3])
def test_scores_do_not_depend_on_the_grouping(pooling, groups, monkeypatch):
    monkeypatch.setattr("charter.inference.score.CPU_PASS_TOKENS", 2)
    model, widths = preference_model(pooling), []
    rows = [list(range(5, 5 + length)) for length in (4, 20, 3, 21, 5, 19, 20)]

    def call(ids_BT, **asked):
        widths.append(ids_BT.shape[1])
        return model.scalar(ids_BT, **asked)

    found = score_rows(model, rows, [2] * 7, call=call, groups=groups)
    alone = torch.cat([score_rows(model, [row], [2]) for row in rows])
    torch.testing.assert_close(found, alone)
    assert len(widths) == groups if groups else widths[0] <= 5 < widths[-1]
    found.sum().backward()
    assert model.scalar.head.weight.grad.abs().sum() > 0


def test_groups_cost_least():
    def cost(groups):
        return sum(10 + len(group) * max(lengths[index] for index in group) for group in groups)

    lengths = [3, 40, 5, 38, 4, 12, 13]
    found = length_groups(lengths, pass_tokens=10)
    assert sorted(index for group in found for index in group) == list(range(7))
    assert cost(found) == min(cost(equal_groups(lengths, groups=2)), cost(found), cost([list(range(7))]))
    assert found == [[0, 4, 2], [5, 6], [3, 1]]
    assert length_groups([], pass_tokens=1) == []
