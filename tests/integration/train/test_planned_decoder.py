"""How the plan takes the native engine to decode is how it decodes: real models of many types, asked of both."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny
from test_fused_decoding import SHAPE
from torch.utils._python_dispatch import TorchDispatchMode

from charter.catalog import accelerators
from charter.catalog.huggingface import reading_of_mapping
from charter.engines.native.capabilities import FUSED_TYPES
from charter.inference import fused, generate
from charter.inference.fused import FusedDecoder
from charter.inference.generate import SamplingSettings
from charter.models.adapters import add_adapter
from charter.models.language_model import LanguageModel
from charter.models.runtime import precision
from charter.physics.serving_devices import NATIVE_CAPTURED
from charter.plan.phase import Role
from charter.plan.stage_time import native_decoder
from charter.spec.layout import Adapter, Layout, ZeroStage

pytestmark = pytest.mark.torch
H100 = accelerators.get("H100")
ADAPTER = Adapter(rank=2)
CASES = {
    "llama": ("Llama", {}, None, Layout()),
    "qwen2": ("Qwen2", {}, None, Layout()),
    "qwen3": ("Qwen3", {}, None, Layout()),
    "mistral": ("Mistral", {"sliding_window": None}, None, Layout()),
    "mistral with a window": ("Mistral", {"sliding_window": 16}, None, Layout()),
    "gemma": ("Gemma", {}, None, Layout()),
    "phi3": ("Phi3", {"pad_token_id": 0}, None, Layout()),
    "mixtral": ("Mixtral", {"num_local_experts": 2}, None, Layout()),
    "llama with an adapter": ("Llama", {}, ADAPTER, Layout()),
    "llama, sharded": ("Llama", {}, None, Layout(data=2, zero=ZeroStage.PARAMETERS)),
}
"""Class, its configuration, adapter and layout."""


RECURRENT = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
SHARDED = Layout(data=2, zero=ZeroStage.PARAMETERS)
CACHES = {
    "plain": ("Llama", {}, 2, SHARDED),
    "of a mixture": ("Mixtral", {"num_local_experts": 2}, 2, SHARDED),
    "with a window": ("Mistral", {"sliding_window": 16}, 2, SHARDED),
    "with recurrent layers": ("Qwen3Next", RECURRENT, 4, SHARDED),
    "with a window, in 32 bits": ("Mistral", {"sliding_window": 16}, 2, Layout()),
}
"""Class, its configuration, layers and layout."""
PROMPT = 40


def own_model(name, layers, **more):
    import transformers

    config = getattr(transformers, f"{name}Config")(
        **SHAPE, head_dim=8, num_hidden_layers=layers, attn_implementation="sdpa", **more
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    return model, reading_of_mapping(config.to_dict()).architecture


class MovedKeys(TorchDispatchMode):
    """Bytes of whole keys or values of a layer that operations read or write, those of attention included."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            results = result if isinstance(result, tuple) else (result,)
            listed = [item for part in args for item in (part if isinstance(part, (list, tuple)) else (part,))]
            for item in (*listed, *results):
                if isinstance(item, torch.Tensor) and item.dim() == 4 and item.shape[2] >= 15:
                    self.bytes += item.numel() * item.element_size()
        return result


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("case", CACHES)
@torch.no_grad()
def test_a_token_moves_the_cache_as_often_as_planned(monkeypatch, case, is_padded):
    """Operation by operation: no copy and no repetition of what stays in place; all that other caches concatenate."""
    name, more, layers, layout = CACHES[case]
    model, architecture = own_model(name, layers, **more)
    if layout.zero:
        model = model.to(torch.bfloat16)  # as weights are gathered
    monkeypatch.setattr(generate, "is_queued", lambda device: True)
    own = LanguageModel(model=model, tokenizer=tiny.language_model().tokenizer)
    prompts = [list(range(1, 1 + length)) for length in ((PROMPT, PROMPT - 9) if is_padded else (PROMPT, PROMPT))]
    batch = generate._Unfinished.of(own, range(2), prompts, 4, torch.device("cpu"))
    with precision("bf16", torch.device("cpu")):
        for _ in range(2):
            token_L = batch.next_logits(model, None).argmax(-1)
            batch.extend(token_L, token_L < 0, look=False)
        moved = MovedKeys()
        with moved:
            batch.next_logits(model, None)
    context = min(PROMPT + 2, architecture.sliding_window or PROMPT + 2)
    once = 2 * 2 * 2 * context * 8 * architecture.attention_layers * 2  # rows, keys and values, heads, D, layers, bytes
    role = Role(name="policy", architecture=architecture, model="m", trained=True)
    planned = native_decoder(role, accelerators.get("MI300X"), layout)
    assert not planned.repeats_heads
    assert moved.bytes / once == pytest.approx(planned.cache_passes, rel=0.06)


def fuses(monkeypatch, model, adapter, layout):
    """Return True if the engine answers by joint products, on a device that queues its work."""
    if adapter is not None:
        add_adapter(model, adapter, seed=1)
    if layout.zero:  # what FSDP2 does to each part that it shards
        model.get_decoder().layers[0].register_forward_pre_hook(lambda *_: None)
    tokens, logits = [], FusedDecoder.logits
    for module in (generate, fused):
        monkeypatch.setattr(module, "is_queued", lambda device: True)
    monkeypatch.setattr(FusedDecoder, "logits", lambda *given: tokens.append(1) or logits(*given))
    settings = SamplingSettings(max_new_tokens=3, min_new_tokens=3, temperature=0.0, dtype="bf16")
    own = LanguageModel(model=model.eval(), tokenizer=tiny.language_model().tokenizer)
    generate.generate(own, [[5, 6, 7], [8, 9]], seeds=[1, 2], settings=settings)
    return len(tokens) == 2


@pytest.mark.parametrize("case", CASES)
def test_the_plan_prices_a_graph_where_the_engine_has_one(monkeypatch, case):
    name, more, adapter, layout = CASES[case]
    model, architecture = own_model(name, 2, **more)
    role = Role(name="policy", architecture=architecture, model="m", adapter=adapter)
    planned = native_decoder(role, H100, layout) is NATIVE_CAPTURED
    assert planned == fuses(monkeypatch, model, adapter, layout)
    assert not planned or model.config.model_type in FUSED_TYPES


def test_every_type_of_the_table_is_among_the_cases():
    import transformers

    present = {getattr(transformers, f"{name}Config").model_type for name, *_ in CASES.values()}
    assert present >= FUSED_TYPES


def test_other_devices_and_split_tensors_have_no_graphs():
    from charter.catalog import models

    role = Role(name="policy", architecture=models.get("Llama-3.1-8B").architecture, model="m")
    assert native_decoder(role, H100, Layout()) is NATIVE_CAPTURED
    for accelerator, layout in (
        (accelerators.get("MI300X"), Layout()),
        (H100, Layout(tensor=2)),
        (H100, Layout(data=2, zero=ZeroStage.GRADIENTS)),
    ):
        assert native_decoder(role, accelerator, layout) is not NATIVE_CAPTURED
    hosts = [native_decoder(role, H100, layout).layer_slowness for layout in (Layout(), SHARDED, Layout(tensor=2))]
    assert hosts == sorted(set(hosts)), "hooks, and more so split tensors, are the host's work"
    small = Role(name="policy", architecture=role.architecture, model="m", adapter=Adapter(rank=2, base_bits=4))
    assert native_decoder(small, H100, Layout()) is not NATIVE_CAPTURED, "a base in 4 bits is no plain matrix"
