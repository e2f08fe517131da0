"""Layers on processors: hidden states and gradients of transformers' own classes, by fewer passes over memory."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from charter.models import layer_passes, runtime
from charter.models.engine_layout import CPU_VALUES
from charter.models.layer_passes import asked_hidden
from charter.models.parallel import recompute_layers
from charter.models.runtime import precision
from charter.models.token_forward import give_token_forward

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}  # fmt: skip
IDS = torch.arange(3 * 14).view(3, 14) % 97
ONE_EACH, RAGGED = torch.tensor([5, 27, 33]), torch.tensor([3, 4, 5, 27, 28, 29, 30, 31])


@pytest.fixture(autouse=True)
def begun_now(monkeypatch):
    monkeypatch.setattr(runtime, "_CONFIGURED", dict(CPU_VALUES))
    monkeypatch.setattr(layer_passes, "PART", 96)


def model_of(kind):
    import transformers as hf

    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    torch.manual_seed(1)
    more = {"sliding_window": 6} if kind == "mistral" else {"head_dim": 6} if kind == "qwen3" else {}
    config = getattr(hf, f"{names[kind]}Config")(**SHAPE, attn_implementation="sdpa", **more)
    model = getattr(hf, f"{names[kind]}ForCausalLM")(config)
    for name, item in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(item, 1.0, 0.2)
    give_token_forward(model)
    return model


def counted(monkeypatch):
    """Tokens that went through the norms of these layers."""
    rows, forward = [], layer_passes.AddedNorm.forward

    def count(ctx, stream_MH, *more):
        rows.append(len(stream_MH))
        return forward(ctx, stream_MH, *more)

    monkeypatch.setattr(layer_passes.AddedNorm, "forward", staticmethod(count))
    return rows


def by_both(model, run):
    """What `run` gives, and the gradients of its weighted sum: here, and by transformers' layers."""
    results = []
    for values in (dict(CPU_VALUES), {}):
        runtime._CONFIGURED = values
        model.zero_grad()
        out = run(model)
        by = torch.linspace(-1, 1, out.numel()).view(out.shape)
        (by * out).sum().backward()
        results.append((out.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    return results


def assert_alike(own, theirs):
    torch.testing.assert_close(own[0], theirs[0], rtol=2e-5, atol=2e-5)
    assert own[1].keys() == theirs[1].keys()
    for name, value in own[1].items():
        torch.testing.assert_close(value, theirs[1][name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("padded", [False, True])
def test_hidden_states_and_gradients_are_the_classes_own(kind, padded, monkeypatch):
    rows = counted(monkeypatch)
    mask = torch.ones_like(IDS)
    mask[1, :5] = 0
    inputs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)} if padded else {}
    real = mask.bool() if padded else torch.ones_like(IDS).bool()
    own, theirs = by_both(
        model_of(kind), lambda model: model.model(IDS, use_cache=False, **inputs).last_hidden_state[real]
    )
    assert_alike(own, theirs)
    assert rows == [42] * 6


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("at", [ONE_EACH, RAGGED])
@pytest.mark.parametrize("padded", [False, True])
def test_the_last_layer_reads_what_is_asked_for(kind, at, padded, monkeypatch):
    rows = counted(monkeypatch)
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    inputs = {"input_ids": IDS, "attention_mask": mask if padded else None, "position_ids": None}
    own, theirs = by_both(model_of(kind), lambda model: asked_hidden(model.get_decoder(), at, inputs))
    assert_alike(own, theirs)
    assert rows == [42] * 5 + [len(at)]


def test_other_orders_and_most_positions_go_through_whole(monkeypatch):
    model, rows = model_of("llama"), counted(monkeypatch)
    for at in (RAGGED.flip(0), torch.arange(40), torch.arange(14)):
        inputs = {"input_ids": IDS, "attention_mask": None, "position_ids": None}
        own, theirs = by_both(model, lambda model, at=at, inputs=inputs: asked_hidden(model.get_decoder(), at, inputs))
        assert_alike(own, theirs)
    assert rows == [42] * 18


def test_frozen_parts_have_no_gradients():
    model = model_of("qwen2")
    for name, item in model.named_parameters():
        item.requires_grad_("k_proj" in name or "gate" in name)
    own, theirs = by_both(model, lambda model: model.model(IDS, use_cache=False).last_hidden_state)
    assert_alike(own, theirs)


def test_a_pass_without_gradients_has_the_same_bits():
    model = model_of("llama")
    inputs = {"input_ids": IDS, "attention_mask": None, "position_ids": None}
    trained = asked_hidden(model.get_decoder(), RAGGED, inputs)
    with torch.no_grad():
        assert torch.equal(asked_hidden(model.get_decoder(), RAGGED, inputs), trained)


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputed_layers_have_the_same_gradients(how):
    model = model_of("llama")

    def run(model):
        return model.model(IDS, use_cache=False).last_hidden_state

    plain = by_both(model, run)[0]
    recompute_layers(model, how)
    again = by_both(model, run)[0]
    assert torch.equal(plain[0], again[0])
    assert all(torch.equal(value, again[1][name]) for name, value in plain[1].items())


def test_all_else_is_the_classes_own(monkeypatch):
    model, rows = model_of("llama"), counted(monkeypatch)
    cached = model.model(IDS, use_cache=True)
    with precision("bf16", CPU):
        model.model(IDS, use_cache=False)
    with monkeypatch.context() as on_an_accelerator:
        on_an_accelerator.setattr(layer_passes, "is_queued", lambda device: True)
        model.model(IDS, use_cache=False)
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *seen: None)
    model.model.layers[1].self_attn.q_proj = torch.nn.Sequential(model.model.layers[1].self_attn.q_proj)
    monkeypatch.setattr(runtime, "_CONFIGURED", {})
    model.model(IDS, use_cache=False)
    assert rows == []
    monkeypatch.setattr(runtime, "_CONFIGURED", dict(CPU_VALUES))
    hidden = model.model(IDS, use_cache=False).last_hidden_state
    assert rows == [42] * 2
    torch.testing.assert_close(hidden, cached.last_hidden_state, rtol=2e-5, atol=2e-5)


def test_reading_takes_no_more_memory_than_the_classes_own(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    from planned_against.live import TaggedBytes

    def most_bytes(values):
        runtime._CONFIGURED = values
        with torch.no_grad(), TaggedBytes(vocabulary=97) as live:
            model.model(input_ids=IDS, use_cache=False)
        return live.found()["total"]

    model = model_of("llama")
    assert most_bytes(dict(CPU_VALUES)) <= most_bytes({})
