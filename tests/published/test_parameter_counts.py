"""Published totals of parameters, to the last one, from the shapes of the catalog."""

import pytest

from charter.catalog import models
from charter.estimate.parameters import count_parameters

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
}
# Rounded totals, in 10^9, as printed in the papers, with the rounding as tolerance.
ROUNDED = {
    "openai/gpt3-175b": (175.0, 0.5),
    "facebook/opt-66b": (66.0, 0.5),
    "facebook/opt-175b": (175.0, 0.5),
    "mosaicml/mpt-30b": (30.0, 0.1),
    "bigscience/bloom": (176.247, 0.001),
    "deepseek-ai/DeepSeek-V3": (671.0, 0.5),
}
# Active parameters, in 10^9: Mixtral paper (arXiv:2401.04088) 13 B, model cards of Qwen3, DeepSeek-V3 report 37 B.
ACTIVE = {
    "mistralai/Mixtral-8x7B-v0.1": (12.9, 0.1),
    "mistralai/Mixtral-8x22B-v0.1": (39.0, 0.5),
    "Qwen/Qwen3-30B-A3B": (3.3, 0.1),
    "Qwen/Qwen3-235B-A22B": (22.0, 0.5),
    "deepseek-ai/DeepSeek-V3": (37.0, 0.7),
}


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
    assert total > 10**8
