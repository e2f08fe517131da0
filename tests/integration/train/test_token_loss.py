"""Log-probabilities and losses straight from hidden states, beside the plain formulas."""

import math

import pytest

torch = pytest.importorskip("torch")

import tiny
import torch.nn.functional as functional

from charter.models import token_forward
from charter.models.token_forward import (
    PLAIN_HEADS,
    figures_of_logits,
    give_token_forward,
    summed_token_loss,
    token_figures,
    token_losses,
)
from charter.train.distillation import GivenWords, LikeliestWords

pytestmark = pytest.mark.torch
POSITIONS, HIDDEN, VOCABULARY = 23, 8, 37


@pytest.fixture
def given():
    """Hidden states, a head and targets, drawn once."""
    draw = torch.Generator().manual_seed(3)
    hidden = torch.randn(POSITIONS, HIDDEN, generator=draw)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=draw)
    target = torch.randint(VOCABULARY, (POSITIONS,), generator=draw)
    return hidden.requires_grad_(), weight.requires_grad_(), target


@pytest.fixture(params=[16 * VOCABULARY, 2**20], ids=["chunks", "one chunk"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(token_forward, "CPU_CHUNK", request.param)


@pytest.fixture(params=[0, 2**26], ids=["computed again", "kept"])
def _kept(request, monkeypatch):
    monkeypatch.setattr(token_forward, "CPU_KEPT", request.param)


def gradients(loss, *of):
    return torch.autograd.grad(loss, of)


def test_two_tokens_by_hand():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(3.0)], [0.0]])
    found = token_figures(hidden, weight, torch.tensor([0]))
    assert found.log_probability_N.item() == pytest.approx(math.log(0.75))
    assert found.entropy_N.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert found.is_likeliest_N.tolist() == [True]
    assert token_figures(hidden, weight, torch.tensor([1])).is_likeliest_N.tolist() == [False]
    halved = token_figures(hidden, weight, torch.tensor([0]), temperature=0.5)
    assert halved.log_probability_N.item() == pytest.approx(math.log(0.9))


@pytest.mark.usefixtures("_chunks")
def test_summed_loss_is_cross_entropy(given):
    hidden, weight, target = given
    plain_N = functional.cross_entropy(hidden @ weight.T, target, reduction="none")
    plain = plain_N.sum()
    found = summed_token_loss(hidden, weight, target)
    torch.testing.assert_close(found.loss_sum, plain)
    torch.testing.assert_close(found.log_probability_N, -plain_N)
    expected = gradients(2 * plain, hidden, weight)
    torch.testing.assert_close(gradients(2 * found.loss_sum, hidden, weight), expected)


@pytest.mark.usefixtures("_chunks", "_kept")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_figures_and_their_gradients_are_those_of_the_logits(given, temperature):
    hidden, weight, target = given
    plain = figures_of_logits(hidden @ weight.T, target, temperature=temperature)
    found = token_figures(hidden, weight, target, temperature=temperature)
    torch.testing.assert_close(found.log_probability_N, plain.log_probability_N)
    torch.testing.assert_close(found.entropy_N, plain.entropy_N)
    assert found.is_likeliest_N.tolist() == plain.is_likeliest_N.tolist()
    by = torch.linspace(-1, 1, POSITIONS)
    for loss in (
        lambda of: (by * of.log_probability_N).sum(),
        lambda of: (by * of.entropy_N).sum(),
        lambda of: (by * of.log_probability_N + of.entropy_N).sum(),
    ):
        expected = gradients(loss(plain), hidden, weight)
        torch.testing.assert_close(gradients(loss(found), hidden, weight), expected, rtol=1e-4, atol=1e-5)
        plain = figures_of_logits(hidden @ weight.T, target, temperature=temperature)
        found = token_figures(hidden, weight, target, temperature=temperature)


def test_bits_do_not_depend_on_whether_gradients_are_wanted(given):
    hidden, weight, target = given
    with torch.no_grad():
        without = token_figures(hidden, weight, target).log_probability_N
    assert torch.equal(token_figures(hidden, weight, target).log_probability_N, without)


def test_small_gradients_do_not_vanish_in_half_precision():
    """Logits are exact: 17 for the target, -3 to 0 for others, whose probabilities are too small for fp16."""
    hidden = torch.eye(5, HIDDEN).half().requires_grad_()
    target = torch.arange(5)
    others = -torch.randint(4, (VOCABULARY, HIDDEN), generator=torch.Generator().manual_seed(4)).half()
    weight = others.index_put((target, target), torch.tensor(17.0).half()).requires_grad_()
    scale = 2.0**12
    found = gradients(scale * summed_token_loss(hidden, weight, target).loss_sum, hidden, weight)
    wide = hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
    exact = gradients(scale * functional.cross_entropy(wide[0] @ wide[1].T, target, reduction="sum"), *wide)
    for got, wanted in zip(found, exact, strict=True):
        assert got.dtype == torch.float16
        torch.testing.assert_close(got.float(), wanted, rtol=0.01, atol=1e-7)


def test_a_frozen_head_gets_no_gradient(given):
    hidden, weight, target = given
    frozen = weight.detach()
    for found in (summed_token_loss(hidden, frozen, target).loss_sum, token_figures(hidden, frozen, target)[0].sum()):
        (found,) = gradients(found, hidden)
        assert found.abs().sum() > 0


def test_under_autocast_sums_stay_in_fp32(given):
    hidden, weight, target = given
    plain = functional.cross_entropy((hidden.bfloat16() @ weight.bfloat16().T).float(), target, reduction="sum")
    with torch.autocast("cpu", torch.bfloat16):
        found = summed_token_loss(hidden, weight, target)
    assert found.loss_sum.dtype == torch.float32
    torch.testing.assert_close(found.loss_sum, plain)
    by_hidden, by_weight = gradients(found.loss_sum, hidden, weight)
    assert (by_hidden.dtype, by_weight.dtype) == (torch.float32, torch.float32)
    exact = gradients(functional.cross_entropy(hidden @ weight.T, target, reduction="sum"), hidden, weight)
    torch.testing.assert_close((by_hidden, by_weight), exact, rtol=0.05, atol=0.05)


def batch():
    draw = torch.Generator().manual_seed(5)
    ids_BT = torch.randint(3, 400, (3, 11), generator=draw)
    return ids_BT, torch.rand(3, 11, generator=draw) < 0.6


def parameter_gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: item.grad.clone() for name, item in model.named_parameters()}


@pytest.mark.parametrize("way", ["fused", "other model type", "hooked head"])
def test_a_models_token_losses_are_those_of_its_logits(way, monkeypatch):
    model = tiny.language_model().model
    if way == "other model type":
        monkeypatch.setattr("charter.models.token_forward.PLAIN_HEADS", frozenset())
    if way == "hooked head":
        model.lm_head.register_forward_hook(lambda module, inputs, output: 2 * output)
    ids_BT, counted_BT = batch()
    logits_BTV = model(input_ids=ids_BT).logits
    target_BT = torch.where(counted_BT, ids_BT, -100)[:, 1:]
    plain = functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), target_BT.flatten(), reduction="sum")
    expected = parameter_gradients(model, plain)
    found = token_losses(model, ids_BT, counted_BT)
    assert len(found.entropy_N) == int(counted_BT[:, 1:].sum())
    torch.testing.assert_close(found.loss_sum, plain)
    torch.testing.assert_close(parameter_gradients(model, found.loss_sum), expected, rtol=1e-4, atol=1e-5)


def test_padding_at_the_right_needs_no_mask():
    model = tiny.language_model().model
    ids_BT, counted_BT = batch()
    longer = functional.pad(ids_BT, (0, 4), value=7)
    found = token_losses(model, longer, functional.pad(counted_BT, (0, 4)))
    torch.testing.assert_close(found.loss_sum, token_losses(model, ids_BT, counted_BT).loss_sum)


def test_a_model_keeps_its_class_name_its_weights_and_its_logits():
    from transformers import LlamaForCausalLM

    model = tiny.language_model().model
    assert type(model).__name__ == "LlamaForCausalLM"
    assert isinstance(model, LlamaForCausalLM)
    names, kind = list(model.state_dict()), type(model)
    give_token_forward(model)
    assert type(model) is kind
    assert names == list(LlamaForCausalLM(model.config).state_dict())
    ids_BT, _ = batch()
    assert torch.equal(model(ids_BT).logits, LlamaForCausalLM.forward(model, ids_BT).logits)


@pytest.mark.parametrize("model_type", sorted(PLAIN_HEADS & {"mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo2"}))
def test_other_plain_heads_give_what_their_logits_give(model_type):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        model_type,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    ids_BT = torch.arange(3, 23).view(2, 10)
    expected = figures_of_logits(model(input_ids=ids_BT).logits[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())
    give_token_forward(model)
    found = token_losses(model, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    torch.testing.assert_close(found.log_probability_N, expected.log_probability_N)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_figures_of_several_words_are_those_of_the_logits(given, temperature):
    hidden, weight, target = given
    plain_NV = torch.log_softmax(hidden @ weight.T / temperature, -1)
    likeliest = LikeliestWords(5, temperature).of_hidden(hidden, weight, None)
    wanted_NK, words_NK = plain_NV.topk(5, -1)
    assert torch.equal(likeliest.word_NK, words_NK)
    torch.testing.assert_close(likeliest.log_probability_NK, wanted_NK)
    assert not likeliest.log_probability_NK.requires_grad
    words = GivenWords(torch.cat([target[:, None], words_NK], 1), temperature)  # a word may stand there twice
    upstream = torch.randn(POSITIONS, 6, generator=torch.Generator().manual_seed(4))
    plain = gradients((upstream * plain_NV.gather(1, words.word_NK)).sum(), hidden, weight)
    for found in (words.of_hidden(hidden, weight, None), words.of_logits(hidden @ weight.T)):
        torch.testing.assert_close(found.log_probability_NK, plain_NV.gather(1, words.word_NK))
        torch.testing.assert_close(found.entropy_N, -(plain_NV.exp() * plain_NV).sum(-1).detach())
        assert not found.entropy_N.requires_grad
        torch.testing.assert_close(gradients((upstream * found.log_probability_NK).sum(), hidden, weight), plain)
    assert torch.equal(
        LikeliestWords(99, 1.0).of_logits(hidden @ weight.T).word_NK.sort(1).values[0], torch.arange(VOCABULARY)
    )


def test_words_have_the_bits_of_one_token(given):
    """So that the first ratio of policies is 1 whichever way a token was asked for."""
    hidden, weight, target = given
    one = token_figures(hidden, weight, target, temperature=0.7).log_probability_N
    both = GivenWords(torch.stack([target, target.flip(0)], 1), 0.7).of_hidden(hidden, weight, None)
    assert torch.equal(both.log_probability_NK[:, 0], one)
