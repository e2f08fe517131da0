"""Published totals of parameters, to the last one, from the shapes of the catalog.

Seen failing under mutations of production lines (tests that fail):
- physics/shapes.py, `query + 2 * key` -> `query + key`: 226 of 319.
"""

import pytest

from charter.catalog import models
from charter.physics.shapes import count_parameters

# What the reference implementations count (model cards, safetensors headers); exact.
PUBLISHED = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_630_071_296,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-pt": 999_885_952,
    "openai-community/gpt2": 124_439_808,
    "openai-community/gpt2-xl": 1_557_611_200,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-13b": 12_853_473_280,
    "mosaicml/mpt-7b": 6_649_286_656,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "EleutherAI/pythia-70m": 70_426_624,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "facebook/opt-350m": 331_196_416,
    "tiiuae/falcon-7b": 6_921_720_704,
    "tiiuae/falcon-40b": 41_303_293_952,
    "bigscience/bloom-560m": 559_214_592,
    "bigscience/bloom": 176_247_271_424,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-3-4b-pt": 4_300_079_472,
    "Qwen/Qwen-72B": 72_287_920_128,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen/Qwen2-VL-7B-Instruct": 8_291_375_616,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "llava-hf/llava-1.5-7b-hf": 7_063_427_072,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "deepseek-ai/DeepSeek-V2": 235_741_434_880,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "databricks/dbrx-base": 131_596_523_520,
    "ai21labs/Jamba-v0.1": 51_570_323_328,
    "bigcode/starcoder": 15_517_456_384,
}
# Rounded totals, in 10^9, as printed in the papers, with the rounding as tolerance.
ROUNDED = {
    "openai/gpt3-175b": (175.0, 0.5),
    "facebook/opt-66b": (66.0, 0.5),
    "facebook/opt-175b": (175.0, 0.5),
    "mosaicml/mpt-30b": (30.0, 0.1),
    "deepseek-ai/DeepSeek-V3": (671.0, 0.5),
    "meta-llama/Llama-4-Scout-17B-16E": (107.8, 0.1),
    "meta-llama/Llama-4-Maverick-17B-128E": (400.0, 1.0),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (79.7, 0.1),
    "moonshotai/Kimi-K2-Instruct": (1026.0, 1.0),
    "nvidia/Nemotron-4-340B-Base": (340.0, 1.5),
    "nvidia/Nemotron-H-8B-Base-8K": (8.1, 0.05),
    "nvidia/Nemotron-H-47B-Base-8K": (46.8, 0.1),
    "nvidia/Nemotron-H-56B-Base-8K": (56.3, 0.1),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B": (31.6, 0.05),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B": (120.6, 0.5),
    "ibm-ai-platform/Bamba-9B-v1": (9.78, 0.01),
    "ibm-granite/granite-4.0-h-small": (32.2, 0.1),
    "ai21labs/AI21-Jamba-1.5-Large": (398.6, 0.5),
    "google/palm-540b": (540.35, 0.05),
    "Snowflake/snowflake-arctic-base": (480.0, 2.0),
}
# Active parameters, in 10^9: Mixtral paper (arXiv:2401.04088) 13 B, model cards of Qwen3, DeepSeek-V3 report 37 B.
ACTIVE = {
    "mistralai/Mixtral-8x7B-v0.1": (12.9, 0.1),
    "mistralai/Mixtral-8x22B-v0.1": (39.0, 0.5),
    "Qwen/Qwen3-30B-A3B": (3.3, 0.1),
    "Qwen/Qwen3-235B-A22B": (22.0, 0.5),
    "deepseek-ai/DeepSeek-V3": (37.0, 0.7),
    "deepseek-ai/DeepSeek-V2": (21.0, 0.5),
    "meta-llama/Llama-4-Scout-17B-16E": (17.2, 0.1),
    "meta-llama/Llama-4-Maverick-17B-128E": (17.2, 0.1),
    "moonshotai/Kimi-K2-Instruct": (32.6, 0.5),
    "databricks/dbrx-base": (36.0, 0.5),
    "ai21labs/Jamba-v0.1": (12.0, 0.2),
    "Snowflake/snowflake-arctic-base": (17.0, 0.5),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B": (3.6, 0.05),
}
# What the checkpoint of DeepSeek-V3 holds beside the model: 14 B for one layer of multi-token prediction, of which
# embedding and head (1.85 B together) are copies (README of its repository): 11.5 B of its own.
MTP_BILLIONS = 11.5


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_total_is_exact(name, published):
    assert count_parameters(models.get(name).architecture).total == published


@pytest.mark.parametrize(("name", "rounded"), ROUNDED.items())
def test_total_agrees_with_the_rounded_one(name, rounded):
    published, tolerance = rounded
    assert count_parameters(models.get(name).architecture).total / 1e9 == pytest.approx(published, abs=tolerance)


@pytest.mark.parametrize(("name", "rounded"), ACTIVE.items())
def test_active_parameters_agree(name, rounded):
    published, tolerance = rounded
    assert count_parameters(models.get(name).architecture).active / 1e9 == pytest.approx(published, abs=tolerance)


@pytest.mark.parametrize("model", models.catalog(), ids=lambda model: model.name)
def test_every_total_stated_in_the_catalog_is_what_we_count(model):
    total = count_parameters(model.architecture).total
    assert model.published_parameters in (None, total)
    assert total > 7 * 10**7


def test_multi_token_prediction_counts_only_when_asked():
    shape = models.get("deepseek-ai/DeepSeek-V3").architecture
    extra = count_parameters(shape, mtp=True).total - count_parameters(shape).total
    assert extra / 1e9 == pytest.approx(MTP_BILLIONS, abs=0.15)
