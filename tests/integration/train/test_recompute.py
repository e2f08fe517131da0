"""Recomputation changes memory, not bits; frozen models and precisions."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from charter.errors import DataError, MissingExtraError, StageError
from charter.models import parallel as recompute
from charter.models.engine_layout import StageLayout
from charter.models.language_model import (
    new_language_model,
    set_dropout,
)
from charter.models.parallel import (
    KEPT_OPERATIONS,
    parallelize,
    recompute_layers,
)
from charter.models.preference import ScalarModel
from charter.models.ranks import Ranks
from charter.models.runtime import checked_attention, precision, seeded

IDS = torch.arange(2 * 48).view(2, 48) % 400
CPU = torch.device("cpu")


def model(attention="sdpa"):
    return new_language_model(
        tiny.ARCHITECTURE, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=1, attention=attention
    )


def gradients(how, *, attention="sdpa", training=True, on_host=False):
    """Gradients of a model with dropout, and the bytes kept for them."""
    module = model(attention).model
    set_dropout(module, 0.2)
    parallel = parallelize(module, StageLayout(recompute=how, offload_activations=on_host), Ranks(), dtype="fp32")
    module.train(training)
    kept = []
    own = {item.untyped_storage().data_ptr() for item in module.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with seeded(5), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = parallel.call(input_ids=IDS, labels=IDS, use_cache=False).loss
    held = sum(kept)
    loss.backward()
    return {name: item.grad for name, item in module.named_parameters()}, held


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("how", ["full", "selective"])
def test_recomputing_keeps_every_bit(how, training, attention):
    plain, held = gradients("none", attention=attention, training=training)
    again, held_again = gradients(how, attention=attention, training=training)
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert held_again < held


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_inputs_on_the_host_change_no_bit(training, monkeypatch):
    """Of each layer its input alone goes there; what the layer keeps while it runs again does not."""
    away, hooks = [], recompute.save_on_cpu

    def noted(**more):
        made = hooks(**more)
        pack = made.pack_hook
        made.pack_hook = lambda tensor: away.append(tuple(tensor.shape)) or pack(tensor)
        return made

    monkeypatch.setattr(recompute, "save_on_cpu", noted)
    here, _ = gradients("full", training=training)
    assert away == []
    there, _ = gradients("full", training=training, on_host=True)
    assert away == [(*IDS.shape, tiny.ARCHITECTURE.hidden_size)] * tiny.ARCHITECTURE.num_layers
    assert all(torch.equal(here[name], there[name]) for name in here)


@pytest.mark.parametrize("how", ["none", "selective"])
def test_inputs_on_the_host_need_full_recomputation(how):
    layout = StageLayout(recompute=how, offload_activations=True)
    with pytest.raises(StageError, match=f"moves what recompute full keeps; found recompute {how}"):
        parallelize(model().model, layout, Ranks(), dtype="fp32")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_selective_repeats_no_product(attention):
    products = {how: products_of(how, attention) for how in ("none", "selective", "full")}
    assert products["none"] == products["selective"] < products["full"]


def products_of(how, attention):
    """Products with weights in a forward and a backward pass."""
    module, count = model(attention).model, 0
    parallel = parallelize(module, StageLayout(recompute=how), Ranks(), dtype="fp32")

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            nonlocal count
            count += operation in KEPT_OPERATIONS
            return operation(*args, **(kwargs or {}))

    with Products():
        parallel.call(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    return count


def test_selective_keeps_attention_by_bounds(monkeypatch):
    """Packed rows are planned as others are; the operation has kernels for CUDA only."""
    from torch.nn.attention import varlen

    monkeypatch.setattr(varlen, "_should_use_cudnn", lambda _: False)
    calls = {}
    for how in ("selective", "full"):
        layers = torch.nn.Sequential(Attention())
        layers._no_split_modules = ["Attention"]
        recompute_layers(layers, how)
        value = torch.empty(8, 2, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
        with Operations() as seen:
            layers(value).sum().backward()
        calls[how] = seen.names.count("torch_attn::_varlen_attn")
        assert value.grad.shape == value.shape
    assert calls == {"selective": 1, "full": 2}


class Attention(torch.nn.Module):
    """Attention of eight tokens in two conversations."""

    def forward(self, value):
        from torch.nn.attention.varlen import varlen_attn

        bounds = torch.empty(3, dtype=torch.int32, device=value.device)
        return varlen_attn(value * 2, value, value, bounds, bounds, 5, 5, window_size=(-1, 0))


class Operations(TorchDispatchMode):
    """Names of operations, in their order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))


def test_without_gradients_nothing_is_recomputed(monkeypatch):
    module = model().model
    recompute_layers(module, "full")
    monkeypatch.setattr(recompute, "checkpoint", None)
    with torch.no_grad():
        module(input_ids=IDS)
    with pytest.raises(TypeError):
        module(input_ids=IDS)


def test_an_unknown_policy_and_a_class_without_layers_are_refused():
    with pytest.raises(StageError, match="none, selective or full"):
        recompute_layers(model().model, "most")
    with pytest.raises(StageError, match="_no_split_modules"):
        recompute_layers(torch.nn.Linear(2, 2), "full")


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_frozen_copy_computes_the_bits_of_what_it_was_copied_from(dtype):
    trained, frozen = ScalarModel(model()), ScalarModel(model())
    for scalar in (trained, frozen):
        torch.nn.init.ones_(scalar.head.weight)
    parallelize(frozen, StageLayout(), Ranks(), dtype=dtype, trained=False)
    with torch.no_grad(), precision(dtype, CPU):
        assert torch.equal(trained(IDS), frozen(IDS))
    assert frozen.body.layers[0].mlp.up_proj.weight.dtype == precision_type(dtype)
    assert frozen.body.embed_tokens.weight.dtype == torch.float32
    assert frozen.body.rotary_emb.inv_freq.dtype == torch.float32
    assert not any(item.requires_grad for item in frozen.parameters())


def precision_type(dtype):
    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def test_tied_embeddings_are_not_cast():
    module = model().model
    parallelize(module, StageLayout(), Ranks(), dtype="bf16", trained=False)
    assert module.lm_head.weight is module.model.embed_tokens.weight
    assert module.lm_head.weight.dtype == torch.float32


def test_autocast_computes_in_the_asked_type():
    layer = torch.nn.Linear(4, 4)
    for dtype in ("bf16", "fp16"):
        with precision(dtype, CPU):
            assert layer(torch.ones(1, 4)).dtype == precision_type(dtype)
    with precision("fp32", CPU):
        assert layer(torch.ones(1, 4)).dtype == torch.float32


def test_attention_that_cannot_run_here_is_refused():
    assert checked_attention("eager") == "eager"
    with pytest.raises(DataError, match="sdpa, eager"):
        checked_attention("flash_attention_9")
    if not torch.cuda.is_available():
        with pytest.raises((MissingExtraError, DataError), match="use attention sdpa"):
            checked_attention("flash_attention_2")
        with pytest.raises(DataError, match="CUDA"):
            checked_attention("flex_attention")


def test_the_implementation_asked_for_is_used():
    assert model("eager").model.config._attn_implementation == "eager"
