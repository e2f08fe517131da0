"""What a token may see: nothing later, nothing of other conversations, nothing of padding; by every attention."""

import itertools
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

import tiny

from charter.engines.common.capabilities import refused_kernels
from charter.errors import StageError
from charter.inference.generate import SamplingSettings, generate, new_cache
from charter.models.chat import Encoded
from charter.models.engine_layout import CPU_ATTENTION, StageLayout
from charter.models.language_model import new_language_model
from charter.models.parallel import Parallel
from charter.models.ranks import Ranks
from charter.models.runtime import ATTENTION, FLASH, configure, precision
from charter.models.token_forward import give_token_forward
from charter.spec.stage import SftStage
from charter.train import sft
from charter.train.packing import VARLEN, check_packable, model_inputs, packed_batch, take_bounds
from charter.train.token_data import collate

CPU = torch.device("cpu")
LENGTHS = (20, 13)
SIXTEEN = ("bf16", "fp16")
LAYOUTS = ("alone", "right padded", "left padded", "packed")


def cases(*others):
    """Each attention with each of `others` and each precision that the checks let through."""
    spec = {dtype: SftStage(init="a", data=("d",), dtype=dtype, packing=True) for dtype in ("fp32", *SIXTEEN)}
    for attention, *rest, dtype in itertools.product(ATTENTION, *others, spec):
        if not [*refused_kernels(spec[dtype], attention=attention, compiled=False)]:
            yield attention, *rest, dtype


class Flash:
    """flash-attn's two functions by their signatures, by plain products; notes what it was called with."""

    def __init__(self):
        self.bounds = []

    def rows(
        self, q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        assert causal, "a decoder's attention"
        assert deterministic, "the backward pass adds up in any order without it"
        assert q.dtype in (torch.bfloat16, torch.float16), "its kernels take 16 bits only"
        assert not dropout_p
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        queries, keys = q.shape[2], k.shape[2]
        sees = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        found = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, sees, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return found.transpose(1, 2)

    def varlen(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        self.bounds.append(cu_seqlens_q)
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        assert int(max_seqlen_q) >= int(cu_seqlens_q.diff().max())
        assert int(max_seqlen_k) >= int(cu_seqlens_k.diff().max())
        parts = [
            self.rows(q[None, a:b], k[None, c:d], v[None, c:d], 0.0, softmax_scale, causal, deterministic=deterministic)
            for (a, b), (c, d) in zip(itertools.pairwise(bounds_q), itertools.pairwise(bounds_k), strict=True)
        ]
        return torch.cat(parts, 1)[0]


@pytest.fixture
def flash(monkeypatch):
    """Transformers with flash attention installed, on a CPU; its environment is the one that stages have."""
    from transformers import modeling_flash_attention_utils as utils

    own = Flash()
    functions = (own.rows, own.varlen, None, utils._pad_input, utils._unpad_input)
    process = utils._lazy_define_process_function(own.varlen)
    monkeypatch.setattr(utils, "lazy_import_flash_attention", lambda *_, **__: (functions, (process, dict)))
    monkeypatch.delenv("FLASH_ATTENTION_DETERMINISTIC", raising=False)
    threads = torch.get_num_threads()
    configure({"threads": threads, "attention": FLASH})
    yield own
    torch.use_deterministic_algorithms(False)
    os.environ.pop("FLASH_ATTENTION_DETERMINISTIC", None)


@pytest.fixture
def flex(monkeypatch):
    """Transformers compiles flex attention; uncompiled, its forward pass runs on a CPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils
    from transformers.integrations import flex_attention as integration

    def plain(query, key, value, training=False, **options):
        return flex_attention(query, key, value, **options)

    def blocks(*args, _compile=True, **more):
        return create_block_mask(*args, **more)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", plain)
    monkeypatch.setattr(masking_utils, "create_block_mask", blocks)


@pytest.fixture
def varlen(monkeypatch, flash):
    """Torch's own attention by bounds, which has kernels for CUDA only, by the same plain products."""
    from torch.nn.attention import varlen as module
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(q, k, v, bounds_q, bounds_k, longest_q, longest_k, *, scale=None, window_size=(-1, -1)):
        assert window_size == (-1, 0), "a token sees what precedes it"
        assert scale == pytest.approx(q.shape[-1] ** -0.5), "the model's own, which may be another than the usual"
        assert q.shape == k.shape == v.shape
        more = {"softmax_scale": scale, "causal": True, "deterministic": True}
        return flash.varlen(q, k, v, bounds_q, bounds_k, longest_q, longest_k, **more)

    monkeypatch.setattr(module, "varlen_attn", attend)
    take_bounds()
    yield flash
    AttentionInterface.register("sdpa", sdpa_attention_forward)


@pytest.fixture
def seen(monkeypatch):
    """Types of what torch's fused attention is called with."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    plain, types = torch.nn.functional.scaled_dot_product_attention, []

    def attend(query, key, value, **more):
        with_mask = [mask] if (mask := more.get("attn_mask")) is not None and mask.is_floating_point() else []
        types.append({item.dtype for item in (query, key, value, *with_mask)})
        return plain(query, key, value, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    yield types
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def loss_in_bf16(model):
    inputs, _ = inputs_of("right padded", "sdpa")
    with precision("bf16", CPU):
        return model.model(**inputs).logits.float().square().mean()


def test_processors_attend_in_fp32_where_the_stage_says_so(seen):
    threads = torch.get_num_threads()
    model = model_with("sdpa")
    as_before = loss_in_bf16(model)
    assert seen
    seen.clear()
    configure({"device": "cpu", "threads": threads, "exact": "record", CPU_ATTENTION: "fp32"})
    loss = loss_in_bf16(model)
    assert seen
    assert all(types == {torch.float32} for types in seen)
    assert loss.item() == pytest.approx(as_before.item(), rel=0.02)
    loss.backward()
    assert all(item.grad.isfinite().all() for item in model.model.parameters() if item.grad is not None)


def model_with(attention):
    """A tiny model whose heads share keys and values by pairs."""
    grouped = replace(tiny.ARCHITECTURE, num_heads=4, num_kv_heads=2)
    model = new_language_model(grouped, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=0)
    model.model.eval().config._attn_implementation = "sdpa" if attention == VARLEN else attention
    return model


def rows_of(lengths, *, seed=11):
    generator = torch.Generator().manual_seed(seed)
    return [
        Encoded(tuple(torch.randint(5, 90, (length,), generator=generator).tolist()), (True,) * length)
        for length in lengths
    ]


def inputs_of(layout, attention):
    """Inputs of a model, and (row, first, behind the last) of each conversation in them."""
    rows = rows_of((17, 17) if layout == "alone" else LENGTHS)
    if layout == "packed":
        batch = packed_batch([rows], padding=0)
        batch = batch.flattened() if attention in (FLASH, VARLEN) else batch
        first = len(rows[0].ids)
        return model_inputs(batch, attention=attention, device=CPU), [(0, 0, first), (0, first, first + LENGTHS[1])]
    if layout in ("alone", "right padded"):
        ids_BT, _ = collate(rows, padding=0)
        return {"input_ids": ids_BT}, [(number, 0, len(row.ids)) for number, row in enumerate(rows)]
    width = max(len(row.ids) for row in rows) + 3
    ids_BT = torch.tensor([[0] * (width - len(row.ids)) + list(row.ids) for row in rows])
    mask_BT = torch.tensor([[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows])
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": (mask_BT.cumsum(1) - 1).clamp_min(0)}
    return inputs, [(number, width - len(row.ids), width) for number, row in enumerate(rows)]


def leaks(attention, layout, dtype):
    """What a token sees that it must not, and what it does not see that it must."""
    model = model_with(attention).model
    inputs, spans = inputs_of(layout, attention)
    outside = torch.ones_like(inputs["input_ids"], dtype=torch.bool)
    for row, first, behind in spans:
        outside[row, first:behind] = False

    def logits_of(ids_BT):
        with torch.no_grad(), precision(dtype, CPU):
            return model(**{**inputs, "input_ids": ids_BT}, use_cache=False).logits

    before = logits_of(inputs["input_ids"])
    for (row, first, behind), (other, begin, end), at_end in ((*spans, True), (*spans[::-1], False)):
        place = behind - 1 if at_end else (first + behind) // 2
        changed = inputs["input_ids"].clone()
        changed[row, place] += 1
        differs_BT = (logits_of(changed) != before).any(-1)
        if differs_BT[row, first:place].any():
            yield "a later token"
        if differs_BT[other, begin:end].any():
            yield "another conversation"
        if not differs_BT[row, place] or not differs_BT[row, behind - 1]:
            yield "not what precedes it"
    if outside.any():
        differs_BT = (logits_of(torch.where(outside, 7, inputs["input_ids"])) != before).any(-1)
        if (differs_BT & ~outside).any():
            yield "padding"


@pytest.mark.usefixtures("flash", "flex")
def test_no_token_sees_what_it_must_not():
    """Whatever is changed, logits before it and in other conversations keep every bit."""
    seen = {case: what for case in cases(LAYOUTS) if (what := sorted({*leaks(*case)}))}
    assert seen == {}


def off_with_a_cache(attention, dtype):
    """How far logits by a cache, the last four tokens one by one, are from those of one pass."""
    model = model_with(attention).model
    inputs, spans = inputs_of("left padded", attention)
    ids_BT, mask_BT, position_BT = (inputs[name] for name in ("input_ids", "attention_mask", "position_ids"))
    with torch.no_grad(), precision(dtype, CPU):
        at_once = model(**inputs, use_cache=False).logits.float()
        cache, prompt, parts = new_cache(model.config), ids_BT.shape[1] - 4, []
        for start, stop in ((0, prompt), *((place, place + 1) for place in range(prompt, ids_BT.shape[1]))):
            out = model(
                input_ids=ids_BT[:, start:stop],
                attention_mask=mask_BT[:, :stop],
                position_ids=position_BT[:, start:stop],
                past_key_values=cache,
                use_cache=True,
            )
            parts.append(out.logits.float())
    off_BT = (torch.cat(parts, 1) - at_once).abs().amax(-1)
    return max(off_BT[row, first:behind].max().item() for row, first, behind in spans)


@pytest.mark.usefixtures("varlen")
def test_attention_by_bounds_sees_what_a_mask_lets_it_see():
    for dtype in SIXTEEN:
        assert [*leaks(VARLEN, "packed", dtype)] == []
        logits = {}
        for attention in (VARLEN, "sdpa"):
            inputs, _ = inputs_of("packed", attention)
            with torch.no_grad(), precision(dtype, CPU):
                logits[attention] = model_with(attention).model(**inputs, use_cache=False).logits
        torch.testing.assert_close(logits[VARLEN], logits["sdpa"], rtol=0, atol=2e-2)
    assert all([*leaks("sdpa", layout, "bf16")] == [] for layout in LAYOUTS), "without bounds nothing has changed"


def test_a_packed_step_by_bounds_has_the_loss_of_one_by_a_mask(monkeypatch, varlen):
    """Through what a stage of SFT calls: it takes the bounds, flattens the rows, and reads them."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    class Rows(list):
        def lengths(self):
            return [len(row.ids) for row in self]

    data = Rows(rows_of((20, 13, 9, 24, 5)))
    spec = SftStage(init="a", data=("d",), dtype="bf16", packing=True, seq_len=40)
    losses = {}
    for attention in ("sdpa", VARLEN):
        AttentionInterface.register("sdpa", sdpa_attention_forward)
        monkeypatch.setattr(sft, "packed_attention", lambda *_, attention=attention, **__: attention)
        model = tiny.language_model()
        give_token_forward(model.model)
        trained = SimpleNamespace(model=model, parallel=Parallel(model.model))
        setup = SimpleNamespace(layout=StageLayout(), ranks=Ranks(), device=CPU)
        count, loss_of = sft._packed(setup, spec, trained, data)
        loss = loss_of(range(count), 0)
        assert len(varlen.bounds) == (tiny.ARCHITECTURE.num_layers if attention == VARLEN else 0)
        losses[attention] = (loss.loss_sum.item(), loss.terms, loss.counters["tokens"])
    assert count == 2
    assert losses[VARLEN] == pytest.approx(losses["sdpa"], rel=2e-3)


@pytest.mark.usefixtures("flash", "flex")
def test_a_cache_changes_neither_what_is_seen_nor_the_logits():
    off = {case: off_with_a_cache(*case) for case in cases()}
    assert {case: by for case, by in off.items() if by > (1e-5 if case[-1] == "fp32" else 2e-2)} == {}


@pytest.mark.usefixtures("flash", "flex")
def test_answers_do_not_hang_on_what_neighbours_are_asked():
    settings = SamplingSettings(max_new_tokens=4, min_new_tokens=4, temperature=0.0, dtype="bf16")
    first, second, third = (list(row.ids) for row in rows_of((9, 14, 14)))
    for attention in ATTENTION:
        model = model_with(attention)
        by_second, by_third = (
            generate(model, [first, neighbour], seeds=[1, 2], settings=settings).answer_BR[0].tolist()
            for neighbour in (second, third)
        )
        assert by_second == by_third, attention


def test_layers_without_masks_of_their_own_are_not_packed():
    """A mask of ours takes the place of a sliding window; a recurrent state or a convolution passes from one to the
    next. A window that no row exceeds is as good as none."""
    from transformers import Gemma3TextConfig, Lfm2Config, LlamaConfig, MistralConfig, Qwen3NextConfig

    for config, seq_len in ((LlamaConfig(), 4096), (MistralConfig(sliding_window=64), 64)):
        check_packable(config, seq_len)
    windows = (MistralConfig(sliding_window=64), Gemma3TextConfig(sliding_window=64))
    for config in (
        *windows,
        Qwen3NextConfig(),
        Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"]),
    ):
        with pytest.raises(StageError, match="packing: false"):
            check_packable(config, 65)


def test_flash_is_given_the_bounds_of_a_packed_row_once(flash):
    """Left to itself, transformers looks for them in every layer, and the processor waits for the device each time."""
    inputs, spans = inputs_of("packed", FLASH)
    with torch.no_grad(), precision("bf16", CPU):
        model_with(FLASH).model(**inputs, use_cache=False)
    assert len(flash.bounds) == tiny.ARCHITECTURE.num_layers
    assert all(bounds is inputs["cu_seq_lens_q"] for bounds in flash.bounds)
    assert flash.bounds[0].tolist() == [0, spans[1][1], spans[1][2]]
