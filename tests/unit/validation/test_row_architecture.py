"""Rows of measurement tables as architectures: by name, by columns, by size; and the sizes they print."""

import pytest

from charter.physics.shapes import count_parameters
from charter.validation.alarms import MEASUREMENTS
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal, read_measurements
from charter.validation.rows.shapes import layers_in_name, model_named, tokens

# Distinct models as published tables print them: name, params_b, hidden, layers, heads, kv_heads, head_dim, ffn,
# vocab, attention, tied_embeddings, seq; deviations beyond 5 % are names that round (see ROUNDED_NAMES).
PRINTED = """
BLOOM-proto-181B|181.0|14336|72|64|64|224|57344|250000|mha|1|2048
GPT-13B (tr1)|13|5120|40|32|32|160|20480|50257|mha|1|2048
OPT-1.3B actor + OPT-350M critic|1.316|2048|24|32|32|64|8192|50272|mha|1|512
OPT-66B actor + OPT-350M critic|65.7|9216|64|72|72|128|36864|50272|mha|1|512
OPT-350M reward|0.331|1024|24|16|16|64|4096|50272|mha|1|512
MPT-125m|0.13|768|12|12|12|64|3072|50368|mha|1|8192
MPT-125m|0.1741|768|12|12|12|64|3072|50368|mha|1|65536
MPT-7b|6.9189|4096|32|32|32|128|16384|50368|mha|1|65536
MPT-70b|64.8624|8192|80|64|64|128|32768|50368|mha|1|2048
GPT-530B|530|20480|105|128|128|160|81920|51200|mha|1|2048
CodeLlama 34 B|33.744|8192|48|64|8|128|22016|32000|gqa|0|512
Falcon 40 B|41.8|8192|60|128|8|64|32768|65024|gqa|0|512
LLAMA3_70B|70.554|8192|80|64|8|128|28672|128256|gqa|0|8192
GPT-1.7B|1.7|2048|24|16|16|128|8192|131072|mha|1|4096
GPT-177B|177|12288|96|96|96|128|49152|131072|mha|1|4096
GPT3-175B|175|12288|96|96|96|128|49152|51200|mha|1|2048
Nemotron-340B|340|18432|96|96|8|192|73728|256000|gqa|0|4096
Qwen-1.8b|1.837|2048|24|16|16|128|5504|151936|mha|0|1024
Qwen3-0.6B|0.596|1024|28|16|8|128|3072|151936|gqa|1|
BLOOM-176B|176|14336|70|112|112|128|57344|250880|mha|1|2048
LLaMA-65B QLoRA|65.286|8192|80|64|64|128|22016|32000|mha|0|512
Pythia-1.0B|1.01|2048|16|8|8|256|8192|50304|mha|0|2048
TinyLlama-1.1B|1.1|2048|22|32|4|64|5632|32000|gqa|0|2048
13B (FasterTransformer)|12.9|5120|40|40|40|128|20480|51200|mha|1|
MPT-7B|6.7||||||||mha|1|
""".strip().splitlines()
ONLY_A_LABEL = {"BLOOM-proto-20B", "phi-1.5 1.3 B", "StableLM Alpha 3 B", "Nemotron-8B"}
ROUNDED_NAMES = {"phi-1.5 1.3 B": 1.418, "StableLM Alpha 3 B": 3.637, "Nemotron-8B": 8.54}


def row(**columns):
    return Measurement(id="X-1", metric="step_time_s", value=1.0, **columns)


def printed(line):
    name, params, *sizes, attention, tied, seq = line.split("|")
    columns = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    found = {column: int(cell) for column, cell in zip(columns, sizes, strict=True) if cell}
    seq_len = int(seq) if seq else None
    return row(model=name, params_b=float(params), attention=attention, tied_embeddings=int(tied), seq=seq_len, **found)


def billions(shape):
    return count_parameters(shape).total / 1e9


@pytest.mark.parametrize("line", PRINTED, ids=lambda line: "|".join(line.split("|")[:2]))
def test_printed_sizes_come_out_within_three_per_cent(line):
    asked = printed(line)
    assert billions(architecture_of(asked)) == pytest.approx(asked.params_b, rel=0.03)


def test_every_bundled_row_with_widths_has_its_printed_size():
    off = {}
    for asked in read_measurements(MEASUREMENTS):
        if asked.params_b and asked.hidden and asked.layers and asked.model not in ONLY_A_LABEL:
            ratio = billions(architecture_of(asked)) / asked.params_b
            if abs(ratio - 1) > 0.05:
                off[asked.model] = ratio
    assert off == {}


@pytest.mark.parametrize(("name", "real"), ROUNDED_NAMES.items())
def test_a_known_model_keeps_its_shape_where_the_printed_size_is_a_label(name, real):
    assert billions(architecture_of(row(model=name, params_b=round(real)))) == pytest.approx(real, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LLAMA3.1_405B", "meta-llama/Llama-3.1-405B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Qwen3_235B_a22B", "Qwen/Qwen3-235B-A22B"),
        ("Qwen2-72B-Instruct-GPTQ-Int4", "Qwen/Qwen2-72B"),
        ("Qwen2.5-Math-7B", "Qwen/Qwen2.5-7B"),
        ("Llama-3.1-Nemotron-70B", "meta-llama/Llama-3.1-70B"),
        ("NEMOTRONH_56B", "nvidia/Nemotron-H-56B-Base-8K"),
        ("Nemotron3_Nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"),
        ("GPT_OSS 20B", "openai/gpt-oss-20b"),
        ("Llama4 Maverick", "meta-llama/Llama-4-Maverick-17B-128E"),
        ("DeepSeek-V3-MTP", "deepseek-ai/DeepSeek-V3"),
        ("Mixtral_8x22B", "mistralai/Mixtral-8x22B-v0.1"),
        ("Falcon 7 B", "tiiuae/falcon-7b"),
        ("phi-2 2.7 B", "microsoft/phi-2"),
        ("GPT2-1.5B", "openai-community/gpt2-xl"),
        ("Vicuna-13B", "huggyllama/llama-13b"),
    ],
)
def test_names_as_tables_print_them(name, expected):
    assert model_named(name).name == expected


@pytest.mark.parametrize("name", ["Llama-2 family total", "GPT-175B", "Llama 9B", "", "Qwen3.5-35B-A3B", "GPT-3 20T"])
def test_names_of_nobody_match_nothing(name):
    assert model_named(name) is None


def test_spellings_of_one_name_have_the_same_words():
    assert tokens("DeepSeek V3") == tokens("DeepSeekV3") == tokens("deepseek-v3")
    assert tokens("Llama 2 7 B") == tokens("LLAMA2-7B") == tokens("llama-2-7b-hf")


def test_columns_win_over_the_catalog():
    shape = architecture_of(row(model="Llama-3-8B", vocab=32_000, tied_embeddings=1, kv_heads=4))
    assert (shape.vocab_size, shape.tied_embeddings, shape.kv_heads, shape.hidden_size) == (32_000, True, 4, 4096)


def test_a_name_that_the_widths_contradict_is_not_believed():
    shape = architecture_of(row(model="Llama-3-8B", hidden=2048, layers=16, heads=32, ffn=5632, vocab=32_000))
    assert (shape.hidden_size, shape.num_layers, shape.gated_mlp) == (2048, 16, True)


def test_shortened_models_scale_layers_of_every_kind():
    assert layers_in_name("llama3_70b-12layers") == 12
    scout = architecture_of(row(model="Llama-4-Scout", layers=12))
    assert (scout.num_layers, scout.moe_layers, scout.chunked_layers) == (12, 12, 9)
    nemotron = architecture_of(row(model="Nemotron-H-8B", layers=26))
    assert (nemotron.attention_layers, nemotron.state_space_layers, nemotron.mlp_layers) == (2, 12, 12)
    assert architecture_of(row(model="deepseek_v3-4layers")).moe_layers == 1


def test_experts_come_from_the_columns():
    asked = row(
        model="Somebody's MoE",
        params_b=30.5,
        hidden=2048,
        layers=48,
        heads=32,
        kv_heads=4,
        head_dim=128,
        expert_ffn=768,
        vocab=151_936,
        n_experts=128,
        n_active_experts=8,
        n_shared_experts=0,
        dense_first_layers=0,
        tied_embeddings=0,
        attention="gqa",
    )
    shape = architecture_of(asked)
    assert billions(shape) == pytest.approx(30.5, rel=0.01)
    assert count_parameters(shape).active / 1e9 == pytest.approx(3.35, abs=0.05)


@pytest.mark.parametrize(("size", "moe_layers"), [(53.5, 24), (29.4, 12)])
def test_experts_without_gate_or_in_every_other_layer_are_recognised_by_the_size(size, moe_layers):
    """GPT-MoE: 24 layers of width 4096 with 16 experts of two matrices, 4096 x 16384."""
    asked = row(
        model="somebody's",
        params_b=size,
        hidden=4096,
        layers=24,
        heads=32,
        ffn=16_384,
        expert_ffn=16_384,
        vocab=51_200,
        n_experts=16,
        n_active_experts=1,
        tied_embeddings=1,
    )
    shape = architecture_of(asked)
    assert (shape.gated_mlp, shape.moe_layers) == (False, moe_layers)
    assert billions(shape) == pytest.approx(size, rel=0.02)


def test_latent_attention_without_a_name_has_the_ranks_of_deepseek():
    asked = row(
        model="mystery",
        hidden=7168,
        layers=61,
        heads=128,
        head_dim=128,
        ffn=18_432,
        expert_ffn=2048,
        vocab=129_280,
        n_experts=256,
        n_active_experts=8,
        n_shared_experts=1,
        dense_first_layers=3,
        attention="mla",
    )
    assert billions(architecture_of(asked)) == pytest.approx(671.03, abs=0.01)


@pytest.mark.parametrize(
    ("name", "params", "hidden", "layers", "heads", "kv", "ffn", "tolerance"),
    [
        ("Nemotron-H-56B", 56.0, 8192, 118, 64, 8, 32_768, 0.01),
        ("unheard-of hybrid", 56.3, 8192, 118, 64, 8, 32_768, 0.03),
        ("unheard-of hybrid", 8.1, 4096, 52, 32, 8, 21_504, 0.03),
        ("unheard-of hybrid", 9.78, 4096, 32, 32, 8, 14_336, 0.03),
    ],
)
def test_hybrids_come_out_near_their_size(name, params, hidden, layers, heads, kv, ffn, tolerance):
    asked = row(
        model=name,
        params_b=params,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv,
        head_dim=128,
        ffn=ffn,
        vocab=131_072,
        attention="hybrid-mamba",
        tied_embeddings=0,
    )
    shape = architecture_of(asked)
    assert billions(shape) == pytest.approx(params, rel=tolerance)
    assert shape.num_layers == layers
    assert 0 < shape.attention_layers < shape.state_space_layers


def test_a_hybrid_known_by_size_alone_is_still_a_hybrid_of_that_size():
    shape = architecture_of(row(model="Zamba2-7B", params_b=7.4, attention="hybrid-mamba"))
    assert billions(shape) == pytest.approx(7.4, rel=0.05)
    assert shape.state_space_layers > shape.attention_layers


@pytest.mark.parametrize(("attention", "field"), [("chunked", "chunked_layers"), ("sliding", "sliding_window_layers")])
def test_what_an_unknown_model_sees_is_capped_as_usual(attention, field):
    shape = architecture_of(row(model="mystery", hidden=4096, layers=48, ffn=14_336, attention=attention))
    assert 0 < getattr(shape, field) < 48


@pytest.mark.parametrize(("size", "hidden"), [(7.0, 4096), (13.0, 5120), (70.0, 8192)])
def test_a_size_alone_is_a_llama(size, hidden):
    shape = architecture_of(row(model="ours", params_b=size))
    assert shape.hidden_size == hidden
    assert billions(shape) == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize("size", [0.03, 0.5, 2.5, 22, 150, 1500])
def test_any_size_can_be_made(size):
    assert billions(architecture_of(row(model="ours", params_b=size))) == pytest.approx(size, rel=0.15)


def test_a_row_that_says_nothing_is_refused():
    with pytest.raises(Refusal, match="neither its shape"):
        architecture_of(row(model="Llama-2 family total"))
    with pytest.raises(Refusal, match="has experts"):
        architecture_of(row(model="ours 35B MoE"))


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Qwen3 235B", 235, 22),
        ("DeepSeek R1 671B", 671, 37),
        ("Qwen3.5-35B-A3B", 35, 3.3),
        ("Hunyuan-A13B 80B", 80, 13),
        ("NemotronNano3 30B-A3B", 31.6, 3.5),
        ("ERNIE-4.5-300B-A47B", 300, 47),
    ],
)
def test_a_model_with_experts_is_not_read_as_dense(name, total, active):
    count = count_parameters(architecture_of(row(model=name)))
    assert count.total / 1e9 == pytest.approx(total, rel=0.1)
    assert count.active / 1e9 == pytest.approx(active, rel=0.35)


def test_a_dense_size_of_a_family_with_experts_stays_dense():
    assert architecture_of(row(model="Llama 405B")).mixture is None
    assert architecture_of(row(model="Qwen3 32B")).mixture is None
