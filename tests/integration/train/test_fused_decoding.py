"""One token by joint products: the logits of the model's own classes, by a third of the operations."""

import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from charter.inference import fused as decoding
from charter.inference import generate as sampling
from charter.inference.fused import FusedDecoder, JointCache
from charter.inference.generate import SamplingSettings, generate, keep_rows, new_cache
from charter.models import runtime
from charter.models.adapters import add_adapter
from charter.models.engine_layout import CPU_VALUES
from charter.models.runtime import precision
from charter.spec.layout import Adapter

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
KERNELS = 500
"""Of one token through 32 layers, at most; the model's own classes take 1,637."""


def model_of(kind, *, layers=2, **more):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    config, model = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[kind]
    torch.manual_seed(1)
    own = model(config(**SHAPE, num_hidden_layers=layers, attn_implementation="sdpa", **more)).eval()
    for name, item in own.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(item, 1.0, 0.2)
    return own


def adapted(model, *, spread=0.2):
    """Give it adapters whose second matrix is no longer zero, of a scaling that is no power of two."""
    add_adapter(model, Adapter(rank=3, alpha=7), seed=1)
    for name, item in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(item, 0.0, spread)
    return model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("has_adapter", [False, True])
@torch.no_grad()
def test_a_fused_token_has_the_logits_of_the_classes(kind, padded, has_adapter):
    model, prompt = adapted(model_of(kind)) if has_adapter else model_of(kind), 25
    mask_LT = torch.ones(3, prompt + 8, dtype=torch.long)
    if padded:
        mask_LT[1, :20] = mask_LT[2, :18] = 0
    ids_LT = torch.arange(3 * (prompt + 8)).view(3, -1) % 97
    position_LT = (mask_LT.cumsum(1) - 1).clamp_min(0)

    def by_classes(part, cache):
        return model(
            input_ids=ids_LT[:, part],
            attention_mask=mask_LT[:, : part.stop],
            position_ids=position_LT[:, part],
            past_key_values=cache,
            logits_to_keep=1,
        ).logits[:, -1]

    own, handed_over = new_cache(model.config), new_cache(model.config)
    for cache in (own, handed_over):
        by_classes(slice(0, prompt), cache)
    fused = FusedDecoder(model, torch.float32)
    joint = JointCache.of(handed_over, mask_LT if padded else None, torch.float32)
    for column in range(prompt, prompt + 4):
        logits_LV = fused.logits(ids_LT[:, column], position_LT[:, column : column + 1], joint, column)
        torch.testing.assert_close(logits_LV, by_classes(slice(column, column + 1), own), rtol=0, atol=2e-5)
    rows, lost, column = torch.tensor([1, 2]), 16 * padded, prompt + 4
    assert keep_rows(joint, rows, 18 * padded) == lost, "columns go by 16"
    logits_LV = fused.logits(ids_LT[rows, column], position_LT[rows, column : column + 1], joint, column - lost)
    torch.testing.assert_close(logits_LV, by_classes(slice(column, column + 1), own)[rows], rtol=0, atol=2e-5)


@torch.no_grad()
def test_prompts_read_in_parts_leave_what_they_leave_together(monkeypatch):
    """Logits, keys, values and what is in sight: each part has the rows, positions and padding that are its own."""
    model = tiny.language_model()
    prompts = [list(range(5, 5 + length)) for length in (9, 2, 6, 1, 8)]
    logits, caches = {}, {}
    for most in (sampling.PROMPT_TOKENS, 20):
        monkeypatch.setattr(sampling, "PROMPT_TOKENS", most)
        batch = sampling._Unfinished.of(model, range(5), prompts, room=4, device=torch.device("cpu"))
        logits[most] = batch._prompt_logits(model.model, torch.float32)
        caches[most] = batch.cache
    (one, other), (together, parts) = logits.values(), caches.values()
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    torch.testing.assert_close(together.bias_LT, parts.bias_LT, rtol=0, atol=0)
    in_sight_LT = together.bias_LT == 0
    for mine, its in zip(together.pairs_LNTD, parts.pairs_LNTD, strict=True):
        shown = [item.transpose(1, 2)[in_sight_LT] for item in (mine, its)]
        torch.testing.assert_close(*shown, rtol=0, atol=1e-5)


def test_keys_are_kept_as_values_are():
    """Rotation makes fp32 of them under autocast, and attention reads 16 bits: twice the memory for nothing."""
    layer = sampling.RoomyLayer()
    keys, values = layer.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4, dtype=torch.bfloat16))
    assert {keys.dtype, values.dtype, layer._roomy_keys.dtype} == {torch.bfloat16}


@pytest.mark.parametrize("warn_only", [False, True])
def test_the_strict_form_holds_again_after_a_column_is_written(warn_only):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with decoding._in_one_column():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
    finally:
        torch.use_deterministic_algorithms(False)


def test_prompts_are_read_in_passes_of_so_many_tokens(monkeypatch):
    """The same answers, and no pass over more than fits."""
    model = tiny.language_model()
    prompts = [list(range(5 + length, 5 + 2 * length)) for length in (9, 4, 6, 10, 8)]
    settings = SamplingSettings(max_new_tokens=12, min_new_tokens=12, temperature=0.0, dtype="bf16")
    for module in (sampling, decoding):
        monkeypatch.setattr(module, "is_queued", lambda device: True)
    forward, widths = model.model.forward, []

    def noted(*args, **given):
        widths.append(given["input_ids"].numel())
        return forward(*args, **given)

    monkeypatch.setattr(model.model, "forward", noted)
    answers = []
    for most in (sampling.PROMPT_TOKENS, 20):
        widths.clear()
        monkeypatch.setattr(sampling, "PROMPT_TOKENS", most)
        answers.append(generate(model, prompts, seeds=range(5), settings=settings).answer_BR)
        assert max(widths) <= most
    assert len(widths) == 3
    assert (answers[0] == answers[1]).float().mean() > 0.9


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("most", [sampling.PROMPT_TOKENS, 20, None])
def test_a_prompt_of_several_answers_is_read_once(monkeypatch, dtype, most):
    """By joint products (bf16) and by the model's classes: as many tokens fewer as answers, and the same answers.

    With None on processors, as stages that begin there now are configured.
    """
    model, read = tiny.language_model(), []
    texts = [list(range(5 + length, 5 + 2 * length)) for length in (9, 4, 6, 9)]
    texts[3][2] += 1  # as long as the first, and another
    prompts = [text for text in texts for _ in range(4)]
    settings = SamplingSettings(max_new_tokens=12, dtype=dtype)
    if most is None:
        monkeypatch.setattr(runtime, "_CONFIGURED", dict(CPU_VALUES))
    else:
        for module in (sampling, decoding, runtime):
            monkeypatch.setattr(module, "is_queued", lambda device: True)
        monkeypatch.setattr(sampling, "PROMPT_TOKENS", most)
    forward = model.model.forward

    def noted(*args, **given):
        read.extend([given["input_ids"].numel()] if given["input_ids"].shape[1] > 1 else [])
        return forward(*args, **given)

    monkeypatch.setattr(model.model, "forward", noted)
    shared = generate(model, prompts, seeds=range(16), settings=settings)
    tokens = sum(read)
    read.clear()
    monkeypatch.setattr(sampling, "_repeats", lambda cache: False)
    apart = generate(model, prompts, seeds=range(16), settings=settings)
    assert sum(read) == 4 * tokens
    assert torch.equal(shared.answer_BR, apart.answer_BR)
    assert torch.equal(shared.prompt_BQ, apart.prompt_BQ)
    assert len({tuple(row.tolist()) for row in shared.answer_BR}) == 16, "an answer each"


@pytest.mark.parametrize("order", [[0, 1, 0, 1, 0], [0, 0, 0, 1, 1]])
def test_rows_of_a_shared_prompt_have_its_logits(monkeypatch, order):
    """Whatever stands between them: only neighbours are read as one."""
    monkeypatch.setattr(runtime, "_CONFIGURED", {"device": "cpu"})
    model, texts = tiny.language_model(), ([5, 6, 7, 8], [9, 10, 11, 12])
    batch = sampling._Unfinished.of(model, range(5), [texts[which] for which in order], room=4, device=CPU)
    assert batch.first_rows == [0, 1, 2, 3, 4], "a stage that began so reads every row"
    monkeypatch.setattr(runtime, "_CONFIGURED", dict(CPU_VALUES))
    batch = sampling._Unfinished.of(model, range(5), [texts[which] for which in order], room=4, device=CPU)
    assert batch.first_rows == [row for row in range(5) if row == 0 or order[row] != order[row - 1]]
    alone = [model.model(input_ids=torch.tensor([text])).logits[0, -1].detach() for text in texts]
    expected = torch.stack([alone[which] for which in order])
    with torch.no_grad():
        torch.testing.assert_close(batch.next_logits(model.model, None), expected, rtol=0, atol=1e-5)
    assert batch.cache.layers[0].keys.shape[0] == 5


class ReplayedGraph:
    """A CUDA graph as far as a processor has one: the operations recorded last, computed again into the same memory."""

    def __init__(self, decoder, ids_L, position_LQ, cache):
        self.decoder, self.cache, self.memory = decoder, weakref.ref(cache), [*cache.pairs_LNTD, cache.bias_LT]
        decoder.recorded += 1

    def logits(self, ids_L, position_LQ, column):
        decoder, cache = self.decoder, self.cache()
        present = [*cache.pairs_LNTD, cache.bias_LT]
        assert all(one is other for one, other in zip(self.memory, present, strict=True)), "the memory is another"
        decoder.replayed += 1
        return decoder.one_token(ids_L, position_LQ, cache, torch.tensor([column]))


@pytest.mark.parametrize("has_adapter", [False, True])
def test_a_token_is_recorded_again_when_its_memory_changes(monkeypatch, has_adapter):
    """Room that is added and rows that leave are another memory; what is drawn is the same with graphs as without."""
    model, decoders = tiny.language_model(), []
    if has_adapter:
        adapted(model.model, spread=0.01)
    prompts = [list(range(5, 5 + length)) for length in (9, 4, 6, 9)]
    settings = SamplingSettings(max_new_tokens=150, temperature=0.0, dtype="bf16")
    for module in (sampling, decoding):
        monkeypatch.setattr(module, "is_queued", lambda device: True)

    def answers(has_graphs):
        build = FusedDecoder.__init__

        def built(self, *given):
            build(self, *given)
            self._has_graphs, self.recorded, self.replayed = has_graphs, 0, 0
            decoders.append(self)

        with monkeypatch.context() as patched:
            patched.setattr(FusedDecoder, "__init__", built)
            patched.setattr(decoding, "TokenGraph", ReplayedGraph)
            return generate(model, prompts, seeds=[1, 2, 3, 4], settings=settings)

    monkeypatch.setattr(type(model), "end_id", property(lambda self: -1))
    first_end = int(answers(False).answer_BR[0, 20])
    monkeypatch.setattr(type(model), "end_id", property(lambda self: first_end))
    plain, graphs = answers(False), answers(True)
    assert torch.equal(plain.answer_BR, graphs.answer_BR)
    assert plain.answer_mask_BR[0].sum() <= 21 < plain.answer_BR.shape[1], "a row leaves, and others go on"
    assert (decoders[1].recorded, decoders[1].replayed) == (0, 0)
    assert decoders[2].recorded == 3, "at the start, without the row that left, with more room"
    assert decoders[2].replayed == 149 - 3


def test_memory_of_a_group_is_gone_before_the_next_one_is_read(monkeypatch):
    """Keys, values and the graph over them: else a rollout would need those of two groups at once."""
    model, caches, alive = tiny.language_model(), [], []
    of, build = JointCache.of, FusedDecoder.__init__

    def noted(*given):
        alive.append(sum(ref() is not None for ref in caches))
        cache = of(*given)
        caches.append(weakref.ref(cache))
        return cache

    def built(self, *given):
        build(self, *given)
        self._has_graphs, self.recorded, self.replayed = True, 0, 0

    for module in (sampling, decoding):
        monkeypatch.setattr(module, "is_queued", lambda device: True)
    monkeypatch.setattr(JointCache, "of", staticmethod(noted))
    monkeypatch.setattr(FusedDecoder, "__init__", built)
    monkeypatch.setattr(decoding, "TokenGraph", ReplayedGraph)
    monkeypatch.setattr(sampling, "_groups", lambda *_: [[0, 1], [2, 3]])
    settings = SamplingSettings(max_new_tokens=6, min_new_tokens=6, temperature=0.0, dtype="bf16")
    generate(model, [[5, 6, 7]] * 4, seeds=[1, 2, 3, 4], settings=settings)
    assert alive == [0, 0]


def test_columns_that_no_token_has_written_hold_zero(monkeypatch):
    """Whatever was in their memory: attention multiplies them by 0, which makes nothing of NaN but NaN."""
    cache = new_cache(model_of("llama").config)
    for layer in range(2):
        cache.update(torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8), layer)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # memory that nobody has written is NaN
    try:
        joint = JointCache.of(cache, None, torch.bfloat16)
        joint.make_room(200)
    finally:
        torch.use_deterministic_algorithms(False)
    for pair_LNTD in joint.pairs_LNTD:
        assert pair_LNTD.shape[2] >= 200
        assert pair_LNTD[:, :, :3].eq(1).all()
        assert pair_LNTD[:, :, 3:].eq(0).all()


def test_angles_that_depend_on_the_length_are_not_recorded():
    for kind, is_fixed in (("default", True), ("llama3", True), ("dynamic", False), ("longrope", False)):
        assert decoding._has_fixed_angles(type("Rotary", (), {"rope_type": kind})) is is_fixed


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_adapter", [False, True])
def test_fused_answers_are_those_of_the_classes(monkeypatch, stored, has_adapter):
    model = tiny.language_model()
    model.model.to(stored)
    if has_adapter:
        adapted(model.model)
    prompts = [list(range(5, 5 + length)) for length in (9, 4, 6, 9)]
    settings = SamplingSettings(max_new_tokens=150, min_new_tokens=150, temperature=0.0, dtype="bf16")
    steps = []

    def answers():
        return generate(model, prompts, seeds=[1, 2, 3, 4], settings=settings).answer_BR

    plain = answers()
    logits = FusedDecoder.logits
    for module in (sampling, decoding):
        monkeypatch.setattr(module, "is_queued", lambda device: True)
    monkeypatch.setattr(FusedDecoder, "logits", lambda *args: steps.append(1) or logits(*args))
    fused = answers()
    assert len(steps) >= 149, "all tokens but the first"
    assert (plain[:, :8] == fused[:, :8]).float().mean() > 0.9
    assert torch.equal(fused, answers()), "the same bits again"


class Kernels(TorchDispatchMode):
    """Operations that compute something: no views, no empty memory; those inside a norm count as its one kernel."""

    def __init__(self):
        super().__init__()
        self.count, self.is_paused = 0, False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        returns = operation._schema.returns
        is_view = any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
        self.count += not (is_view or self.is_paused or "empty" in operation._schema.name)
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_adapter", [False, True])
def test_drawing_answers_leaves_the_model_as_it_was(monkeypatch, stored, has_adapter):
    """Every bit of every weight in its own type, and the same parameters, which an optimizer has; mode and all."""
    model = tiny.language_model()
    model.model = (adapted(model.model) if has_adapter else model.model).to(stored)
    monkeypatch.setattr(decoding, "is_queued", lambda device: True)
    before = {name: (id(item), item.clone()) for name, item in model.model.named_parameters()}
    asked = {name: item.requires_grad for name, item in model.model.named_parameters()}
    settings = SamplingSettings(max_new_tokens=4, min_new_tokens=4, dtype="bf16")
    generate(model, [[5, 6, 7], [8, 9]], seeds=[1, 2], settings=settings)
    for name, item in model.model.named_parameters():
        same, value = before[name]
        assert (id(item), item.dtype, item.requires_grad) == (same, value.dtype, asked[name]), name
        assert torch.equal(item, value), name


def kernels_of_a_token(monkeypatch, *, fused, stored):
    """Kernels of one token through 32 layers, rows padded; `aten._fused_rms_norm` is CUDA's alone."""
    model, rms_norm = model_of("llama", layers=32).to(stored), torch.nn.functional.rms_norm
    ids_LT, mask_LT = torch.ones(2, 6, dtype=torch.long), torch.ones(2, 16, dtype=torch.long)
    mask_LT[0, :2] = 0

    def one_kernel(*args):
        seen.count, seen.is_paused = seen.count + 1, True
        out = rms_norm(*args)
        seen.is_paused = False
        return out

    monkeypatch.setattr(torch.nn.functional, "rms_norm", one_kernel)
    with torch.no_grad(), precision("bf16", CPU):
        cache = new_cache(model.config)
        given = {"past_key_values": cache, "logits_to_keep": 1}
        seen = Kernels()
        model(input_ids=ids_LT, attention_mask=mask_LT[:, :6], position_ids=ids_LT.cumsum(1) - 1, **given)
        at_LQ = torch.full((2, 1), 6)
        if not fused:
            model(input_ids=ids_LT[:, :1], attention_mask=mask_LT[:, :7], position_ids=at_LQ, **given)
            with seen:
                model(input_ids=ids_LT[:, :1], attention_mask=mask_LT[:, :8], position_ids=at_LQ + 1, **given)
            return seen.count
        decoder = FusedDecoder(model, torch.bfloat16)
        joint = JointCache.of(cache, mask_LT, torch.bfloat16)
        with seen:
            decoder.logits(ids_LT[:, 0], at_LQ, joint, 6)
    return seen.count


def test_a_token_takes_at_most_so_many_kernels(monkeypatch):
    stored = kernels_of_a_token(monkeypatch, fused=True, stored=torch.bfloat16)
    cast = kernels_of_a_token(monkeypatch, fused=True, stored=torch.float32)
    print(f"KERNELS 16 bits {stored}, fp32 under autocast {cast}")
    assert stored <= KERNELS
    assert cast <= KERNELS * 1.2, "a residual stream in fp32 is cast before every product"


def test_it_computes_in_the_type_of_autocast_or_of_the_weights(monkeypatch):
    """Autocast has a type of its own where it is off too, which says nothing."""
    monkeypatch.setattr(decoding, "is_queued", lambda device: True)

    def type_of(model):
        decoder = FusedDecoder.of(model, CPU)
        return None if decoder is None else decoder.dtype

    wide, narrow = model_of("llama"), model_of("llama").to(torch.float16)
    assert type_of(wide) is None, "nothing asks for 16 bits"
    assert type_of(narrow) is torch.float16
    with precision("bf16", CPU):
        assert type_of(wide) is torch.bfloat16
