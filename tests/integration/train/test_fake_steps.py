"""The engine's steps at true shapes without their memory: FakeTensor has sizes and no values, and bytes are counted.

Fake tensors are on the processor, where torch's dispatch works without CUDA, cut into chunks as on a GPU. What stays
between steps is compared with the plan to the byte; activations are not, since autocast has other rules on a processor.
"""

import weakref
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from charter.catalog import models
from charter.models import token_forward
from charter.models.preference import ScalarModel
from charter.models.runtime import precision
from charter.models.sharded_load import empty_parameters
from charter.physics.memory import training_memory
from charter.spec.layout import Layout
from charter.spec.stage import SftStage
from charter.train.optimizers import make_optimizer

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
SPEC = SftStage(init="a", data=("d",))


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations have made and that are still referred to."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._known = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for item in tree_leaves(out):
            if isinstance(item, torch.Tensor):
                self._count(item.untyped_storage())
        return out

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)

        def gone():
            self._known.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def fake_model(architecture):
    """The causal model of an architecture, without memory; made outside of FakeTensorMode, which draws nothing."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    normed = architecture.qk_norm
    config = (Qwen3Config if normed else LlamaConfig)(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_size,
        max_position_embeddings=architecture.max_position_embeddings,
        tie_word_embeddings=architecture.tied_embeddings,
        attn_implementation="sdpa",
    )
    with empty_parameters():
        model = (Qwen3ForCausalLM if normed else LlamaForCausalLM)(config)
    token_forward.give_token_forward(model)
    return model


def with_fake_memory(module):
    """Give every parameter and buffer of an empty module fake memory."""
    for part in module.modules():
        for name, item in part._parameters.items():
            if item is not None:
                part._parameters[name] = torch.nn.Parameter(torch.empty(item.shape, dtype=item.dtype))
        for name, item in part._buffers.items():
            if item is not None:
                part._buffers[name] = torch.empty(item.shape, dtype=item.dtype)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(token_forward, "CPU_CHUNK", token_forward.CUDA_CHUNK)
    monkeypatch.setattr(token_forward, "CPU_KEPT", token_forward.CUDA_KEPT)
    monkeypatch.setattr(token_forward, "_is_plain", lambda head: True)  # a fake parameter has a class of its own
    # Without values transformers cannot see that no conversations share a row, and would make a mask of T x T.
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda position_ids: None)


def stepped(module, loss_of):
    """Bytes after the optimizer is made, after a backward pass, and after its update; the largest storage of these."""
    with FakeTensorMode(allow_non_fake_inputs=True), LiveBytes() as live:
        with_fake_memory(module)
        optimizer = make_optimizer([(list(module.parameters()), 1e-5)], SPEC)
        states, live.largest = live.now, 0
        with precision("bf16", CPU):
            loss = loss_of()
        loss.backward()
        largest = live.largest
        del loss
        gradients = live.now
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return states, gradients, live.now, largest


def cases():
    for name, layers, tokens in (("Llama-3.1-8B", 2, 8192), ("Llama-3.1-8B", 32, 4096), ("Llama-3.1-70B", 80, 2048)):
        marks = [pytest.mark.thorough] if layers > 2 else []
        yield pytest.param(name, layers, tokens, marks=marks, id=f"{name}-{layers}")


@pytest.mark.parametrize(("name", "layers", "tokens"), [*cases()])
@pytest.mark.parametrize("kind", ["sft", "preference_model"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_step_at_true_shapes_keeps_what_the_plan_says(kind, name, layers, tokens):
    architecture = replace(models.get(name).architecture, num_layers=layers)
    model = fake_model(architecture)

    class Holder:
        pass

    holder = Holder()
    holder.model = model
    module = model if kind == "sft" else ScalarModel(holder)

    def loss_of():
        ids_BT = torch.zeros((1, tokens), dtype=torch.long)
        if kind == "preference_model":
            return module(ids_BT).sum()
        at_N = torch.zeros(tokens - 1, dtype=torch.long)
        return module(input_ids=ids_BT, at_N=at_N, target_N=at_N, summed=True).loss_sum

    states, gradients, after, largest = stepped(module, loss_of)
    parameters = sum(item.numel() for item in module.parameters())
    head = "lm" if kind == "sft" else "scalar"
    plan = {
        term.name: term.value
        for term in training_memory(architecture, Layout(), seq_len=tokens, head=head).phases["loss"]
    }
    assert states == pytest.approx(plan["weights"] + plan["optimizer"], rel=1e-3)
    assert gradients - states == pytest.approx(4 * parameters, rel=1e-2), "gradients in fp32"
    assert after == pytest.approx(states, rel=1e-3), "nothing else stays"
    embedding = 4 * architecture.vocab_size * architecture.hidden_size
    assert largest <= max(embedding, 4 * token_forward.CUDA_CHUNK), "logits are made in chunks"
