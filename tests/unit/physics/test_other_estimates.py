import pytest

from charter.catalog import models
from charter.physics.flops import kv_cache_bytes, kv_cache_bytes_per_token
from charter.physics.node import (
    checkpoint_bytes,
    host_terms,
    model_checkpoint_bytes,
    network_bytes_per_step,
    retained_bytes,
)
from charter.physics.precision import FSDP_MIXED
from charter.physics.shapes import count_parameters
from charter.physics.stacks import PROFILES
from charter.physics.terms import Breakdown, Interval, Term
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

NATIVE = PROFILES["native"]
LLAMA = models.get("Llama-3.1-8B").architecture
DEEPSEEK = models.get("DeepSeek-V3").architecture


def test_checkpoints_take_14_bytes_per_trained_parameter():
    """BLOOM: 2.3 TB for 176.2 B parameters is 13.1 bytes each, of which the card's rounding and format are the rest."""
    assert checkpoint_bytes(13e9) / 1e9 == 182
    published = 2.3e12 / count_parameters(models.get("bloom").architecture).total
    assert published == pytest.approx(13.1, abs=0.06)
    assert checkpoint_bytes(176.2e9) / 2.3e12 == pytest.approx(1.07, abs=0.01)


def test_an_adapter_checkpoint_is_small():
    assert model_checkpoint_bytes(LLAMA, adapter=Adapter(rank=16)) < 0.01 * model_checkpoint_bytes(LLAMA)


def test_retention_counts_the_checkpoint_being_written():
    assert retained_bytes(100, keep_last=2) == 300


def test_kv_cache_of_known_models():
    assert kv_cache_bytes_per_token(LLAMA) == 2 * 32 * 8 * 128 * 2
    assert kv_cache_bytes_per_token(models.get("Llama-2-7B").architecture) == 524_288
    assert kv_cache_bytes_per_token(DEEPSEEK) == (512 + 64) * 61 * 2
    assert kv_cache_bytes_per_token(DEEPSEEK, tensor=8) == kv_cache_bytes_per_token(DEEPSEEK)
    assert kv_cache_bytes_per_token(LLAMA, tensor=16) == kv_cache_bytes_per_token(LLAMA) / 8


def test_windowed_layers_keep_only_the_window():
    mistral = models.get("Mistral-7B-v0.1").architecture
    assert kv_cache_bytes(mistral, 32768) == kv_cache_bytes(mistral, 4096)
    gemma = models.get("gemma-2-9b").architecture
    assert kv_cache_bytes(gemma, 8192) == 0.75 * 8192 * kv_cache_bytes_per_token(gemma)


def test_host_memory_stages_a_checkpoint_twice_or_loads():
    sizes = {"offload_bytes": 0.0, "ranks": 8}
    small = host_terms(loading_bytes=16e9, checkpoint_bytes=4e9, **sizes)
    large = host_terms(loading_bytes=16e9, checkpoint_bytes=9e9, **sizes)
    assert small.terms[0].name == "loading"
    assert large.terms[0].name == "staging"
    assert large.total - small.total == 2 * 9e9 - 16e9


def test_offload_moves_the_optimizer_to_the_host():
    sizes = {"loading_bytes": 16e9, "checkpoint_bytes": 4e9, "ranks": 8}
    plain, offloaded = (host_terms(offload_bytes=size, **sizes) for size in (0.0, 96e9))
    pinned = next(term.value for term in offloaded.terms if term.name == "pinned buffers")
    assert pinned == 8 * 2**30
    assert offloaded.total - plain.total - pinned == 96e9


def test_network_bytes_follow_the_zero_paper():
    ddp = network_bytes_per_step(LLAMA, Layout(data=1024), seq_len=1024, stack=NATIVE, precision=FSDP_MIXED).total
    assert ddp == pytest.approx(2 * 4 * count_parameters(LLAMA).total, rel=2e-3)
    zero3 = Layout(data=1024, zero=ZeroStage.PARAMETERS, accumulation=2)
    sharded = network_bytes_per_step(LLAMA, zero3, seq_len=1024, stack=NATIVE).total
    assert sharded == pytest.approx(2 * (2 * 2 + 4) * count_parameters(LLAMA).total, rel=2e-3)


@pytest.mark.parametrize(
    ("stack", "adapter", "times"),
    [("native", None, 5 / 4), ("native", Adapter(rank=16), 6 / 4), ("maxtext", None, 6 / 4)],
    ids=["to the last product", "an adapter to the end", "to the end"],
)
def test_recomputation_repeats_tensor_parallel_traffic(stack, adapter, times):
    """As many reductions as a step is timed with (`test_step_columns.py`)."""

    def tensor(recompute):
        layout = Layout(tensor=8, recompute=recompute)
        return network_bytes_per_step(LLAMA, layout, seq_len=1024, stack=PROFILES[stack], adapter=adapter).total

    assert tensor(Recompute.FULL) == times * tensor(Recompute.NONE)


def test_intervals_are_ordered_and_scale():
    interval = Interval.around(10.0, sigma=0.3)
    assert interval.p10 < interval.p50 == 10 < interval.p90
    assert interval.scaled(2).p90 == 2 * interval.p90
    assert interval.p10 * interval.p90 == pytest.approx(100)


def test_breakdowns_sum_by_part():
    terms = tuple(
        Term(name=str(i), part="a" if i % 2 else "b", value=float(i), unit="bytes", formula="i", source="test")
        for i in range(5)
    )
    found = Breakdown(terms=terms)
    assert found.total == 10
    assert found.by_part() == {"b": 6, "a": 4}
    assert found.part("a", "b") == 10
