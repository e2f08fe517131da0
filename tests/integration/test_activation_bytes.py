"""Bytes that autograd saves in real transformers models, against the list of kept tensors: frozen bases with adapters,
experts, GPT-2, gradient checkpointing. Per layer, as the difference of a 3-layer and a 1-layer model, on CPU."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from charter.catalog.huggingface import architecture_from_mapping
from charter.physics.kept_activations import ALL_MATRICES, LayerKind, kept_by_layer
from charter.physics.memory import training_memory
from charter.physics.memory_profiles import HUGGINGFACE, MemoryJob
from charter.physics.memory_shape import MemoryShape
from charter.physics.precision import PURE_BF16
from charter.spec.architecture import Architecture, MixtureOfExperts
from charter.spec.layout import Layout, Recompute

pytestmark = pytest.mark.torch
BATCH, SEQ, RANK = 2, 128, 4
TOKENS = BATCH * SEQ
LLAMA = Architecture(hidden_size=256, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=704, vocab_size=512)
QWEN3 = replace(LLAMA, qk_norm=True, model_type="qwen3")
GPT2 = Architecture(
    hidden_size=256, num_layers=2, num_heads=4, intermediate_size=1024, vocab_size=512, gated_mlp=False,
    norm_parameters_per_feature=2, learned_positions=256, attention_bias=True, mlp_bias=True, model_type="gpt2",
)  # fmt: skip
MIXTRAL = replace(
    LLAMA,
    mixture=MixtureOfExperts(num_experts=4, experts_per_token=2, expert_intermediate_size=352),
    model_type="mixtral",
)


def model_of(shape):
    common = {"vocab_size": shape.vocab_size, "attn_implementation": "sdpa"}
    if shape.model_type == "gpt2":
        config = transformers.GPT2Config(
            **common, n_embd=shape.hidden_size, n_layer=shape.num_layers, n_head=shape.num_heads, n_positions=256,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
    else:
        sizes = {
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.intermediate_size,
        }
        if shape.mixture:
            sizes["intermediate_size"] = shape.mixture.expert_intermediate_size
            sizes |= {"num_local_experts": shape.mixture.num_experts, "num_experts_per_tok": 2}
        kind = {"llama": "LlamaConfig", "qwen3": "Qwen3Config", "mixtral": "MixtralConfig"}[shape.model_type]
        more = {"head_dim": shape.head_size} if shape.model_type == "qwen3" else {}
        config = getattr(transformers, kind)(**common, **sizes, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.train()


class Adapted(torch.nn.Module):
    """A frozen linear layer with a low-rank one beside it, as LoRA has it, without dropout."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, RANK, bias=False, dtype=torch.bfloat16)
        self.up = torch.nn.Linear(RANK, base.out_features, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapt(model, names):
    """Freeze everything and put adapters on some linear layers."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, torch.nn.Linear):
                setattr(module, name, Adapted(child))
    return model


def saved_bytes(model):
    """Bytes saved for the backward pass of the decoder, each storage once, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept, alive = {}, []

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    ids = torch.arange(TOKENS).reshape(BATCH, SEQ) % 512
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = model.get_decoder()(ids, use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(kept.values())


def per_layer(shape, prepare=lambda model: model):
    deep, shallow = (saved_bytes(prepare(model_of(replace(shape, num_layers=count)))) for count in (3, 1))
    return (deep - shallow) / 2


def ours(shape, trained=ALL_MATRICES, **more):
    layer = kept_by_layer(shape, LayerKind(seq_len=SEQ, implementation="huggingface", **more), trained)
    return layer.bytes_per_token(Layout(), fused_attention=True) * TOKENS


@pytest.mark.parametrize("shape", [LLAMA, QWEN3, GPT2], ids=["llama", "qwen3", "gpt2"])
def test_full_training_keeps_what_the_list_says(shape):
    assert per_layer(shape) == pytest.approx(ours(shape), rel=0.03)


CLASSES = {
    "gemma": {"head_dim": 64},
    "gemma3_text": {"head_dim": 64},
    "gpt_neox": {},
    "opt": {"ffn_dim": 704, "word_embed_proj_dim": 256, "dropout": 0.0},
    "phi": {},
    "gpt_oss": {"head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_keep_what_their_code_says(kind):
    """Norms in fp32, joint projections, ReLU, activations in steps: what a class writes otherwise than Llama's."""
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 2}
    attention = "eager" if kind == "gpt_oss" else "sdpa"

    def model(layers):
        names = sizes | CLASSES[kind] | {"vocab_size": 512, "max_position_embeddings": 256, "num_hidden_layers": layers}
        config = transformers.AutoConfig.for_model(kind, **names)
        loaded = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention
        )
        return loaded.train(), architecture_from_mapping(config.to_dict())

    (deep, shape), (shallow, _) = model(4), model(2)
    kept = MemoryShape.of(
        MemoryJob(architecture=shape, seq_len=SEQ, profile=HUGGINGFACE, precision=PURE_BF16, fused_attention=True)
    )
    scores = float(kept.scores) if attention == "eager" else 0.0
    counted = (saved_bytes(deep) - saved_bytes(shallow)) / 2 / TOKENS
    assert counted == pytest.approx(float(kept.replicated + kept.sharded) + scores, rel=0.07 if scores else 0.01)


def test_experts_keep_what_the_list_says():
    """The classes of transformers gather tokens expert by expert; indices and masks are what the list leaves out."""
    assert per_layer(MIXTRAL) == pytest.approx(ours(MIXTRAL, mlp="experts"), rel=0.15)


ATTENTION = ("q_proj", "k_proj", "v_proj")
EVERYTHING = (*ATTENTION, "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("names", "trained", "adapters"),
    [
        (ATTENTION, frozenset(("qkv",)), 3),
        (EVERYTHING, ALL_MATRICES - {"norms"}, 7),
    ],
    ids=["attention", "all-linear"],
)
def test_a_frozen_base_keeps_only_what_its_adapters_and_functions_need(names, trained, adapters):
    real = per_layer(LLAMA, lambda model: adapt(model, names))
    narrow = adapters * RANK * 2 * TOKENS
    assert real == pytest.approx(ours(LLAMA, trained=trained) + narrow, rel=0.03)
    assert real < 0.95 * per_layer(LLAMA)


def test_checkpointing_keeps_the_input_of_each_layer():
    def checkpointed(model):
        model.activation_checkpointing_enable({"use_reentrant": True})
        return model

    real = per_layer(LLAMA, checkpointed)
    assert real == pytest.approx(2 * LLAMA.hidden_size * TOKENS, rel=0.05)
    # Sharded, the native engine gathers 16-bit weights, and what runs between layers is of 16 bits as here.
    layout = Layout(recompute=Recompute.FULL, micro_batch=BATCH, data=2, zero=3)
    terms = training_memory(replace(LLAMA, num_layers=3), layout, seq_len=SEQ).phases["loss"]
    inputs = next(term.value for term in terms if term.name == "layer inputs")
    assert inputs / 3 == pytest.approx(real, rel=0.05)
