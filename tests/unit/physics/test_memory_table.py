"""Memory over arrays of layouts: the same as one by one, and what must hold whatever the layout."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.physics.columns import Layouts
from charter.physics.memory import PHASES, job_memory, training_memory, training_memory_table
from charter.physics.memory_profiles import DEEPSPEED, MEGATRON_STACK, PROFILES, AdapterUse, MemoryJob
from charter.physics.memory_shape import MemoryShape
from charter.physics.precision import FSDP_MIXED, MEGATRON, ZERO_PAPER, with_optimizer
from charter.physics.shapes import count_parameters
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage

SMALL = Architecture(hidden_size=512, num_layers=8, num_heads=8, intermediate_size=1376, vocab_size=4096)
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
DEEPSEEK = models.get("DeepSeek-V3").architecture
NEMOTRON = models.get("Nemotron-H-8B").architecture
GIB = 2**30

degrees = st.sampled_from([1, 2, 4, 8])
layouts = st.builds(
    Layout,
    data=degrees,
    tensor=degrees,
    pipeline=degrees,
    context=st.sampled_from([1, 2]),
    zero=st.sampled_from(ZeroStage),
    micro_batch=st.sampled_from([1, 2, 8]),
    accumulation=st.sampled_from([1, 4, 16]),
    recompute=st.sampled_from(Recompute),
    sequence_parallel=st.booleans(),
    interleave=st.sampled_from([1, 2]),
    offload_optimizer=st.booleans(),
)
profiles = st.sampled_from(sorted(PROFILES))


def total(layout, profile="native"):
    return training_memory(SMALL, layout, seq_len=256, profile=PROFILES[profile]).total_bytes


@given(st.lists(layouts, min_size=2, max_size=6), profiles)
def test_a_table_is_its_layouts_one_by_one(several, name):
    job = MemoryJob(architecture=SMALL, seq_len=256, profile=PROFILES[name])
    table = training_memory_table(MemoryShape.of(job), Layouts.of(several))
    alone = [job_memory(job, layout) for layout in several]
    assert table.total == pytest.approx([memory.total_bytes for memory in alone])


def test_jobs_of_several_models_stack():
    jobs = [
        MemoryJob(architecture=SMALL, seq_len=256),
        MemoryJob(architecture=MIXTRAL, seq_len=512, profile=MEGATRON_STACK, precision=MEGATRON),
        MemoryJob(architecture=NEMOTRON, seq_len=512, adapter=AdapterUse(rank=8)),
    ]
    chosen = [Layout(), Layout(data=8, expert=8, zero=ZeroStage.OPTIMIZER), Layout(recompute=Recompute.FULL)]
    table = training_memory_table(MemoryShape.stacked([MemoryShape.of(job) for job in jobs]), Layouts.of(chosen))
    assert table.total == pytest.approx([job_memory(*pair).total_bytes for pair in zip(jobs, chosen, strict=True)])


@given(layouts, profiles)
def test_the_peak_is_the_largest_phase_and_parts_sum_to_it(layout, name):
    memory = training_memory(SMALL, layout, seq_len=256, profile=PROFILES[name])
    assert set(memory.phases) == {*PHASES}
    assert memory.total_bytes == pytest.approx(max(memory.phase_bytes.values()))
    assert sum(memory.by_part().values()) == pytest.approx(memory.total_bytes)
    assert all(term.value > 0 and term.formula and term.source for term in memory.terms)
    assert memory.p10 < memory.p50 < memory.p90


@given(layouts, profiles)
def test_more_data_parallelism_never_raises_memory(layout, name):
    """Once the group has two ranks: going from one to two adds buckets, gathers and a communicator."""
    wide = replace(layout, data=layout.data * 2)
    assert total(replace(wide, data=wide.data * 2), name) <= total(wide, name) * (1 + 1e-12)


@given(layouts, profiles)
def test_recomputation_never_raises_memory_beyond_one_live_layer(layout, name):
    job = MemoryJob(architecture=SMALL, seq_len=2048, fused_attention=False, profile=PROFILES[name])
    none, selective, full = (job_memory(job, replace(layout, recompute=mode)) for mode in Recompute)
    live = sum(term.value for terms in full.phases.values() for term in terms if term.name == "one live layer")
    beside = live if PROFILES[name].keeps_products else 0.0
    assert selective.total_bytes <= none.total_bytes * (1 + 1e-12) + beside
    assert full.total_bytes <= selective.total_bytes + 1.1 * live


@given(layouts, profiles)
def test_more_sharding_never_raises_memory_beyond_its_buffers(layout, name):
    stages = [
        training_memory(SMALL, replace(layout, zero=zero), seq_len=256, profile=PROFILES[name]) for zero in ZeroStage
    ]
    for less, more in pairwise(stages):
        buffers = max(sum(term.value for term in terms if term.part == "buffers") for terms in more.phases.values())
        assert more.total_bytes <= less.total_bytes + 1.2 * buffers


@given(layouts, st.integers(1, 4), profiles)
def test_memory_grows_with_batch_and_sequence(layout, times, name):
    assert total(layout, name) <= total(replace(layout, micro_batch=layout.micro_batch * times), name) * (1 + 1e-12)
    longer = training_memory(SMALL, layout, seq_len=256 * times, profile=PROFILES[name]).total_bytes
    assert total(layout, name) <= longer * (1 + 1e-12)


def test_half_the_layers_recomputed_lies_between():
    layout = Layout(recompute=Recompute.FULL, micro_batch=8)
    job = MemoryJob(architecture=SMALL, seq_len=2048)
    whole = job_memory(job, layout).total_bytes
    half = job_memory(replace(job, recompute_share=0.5), layout).total_bytes
    none = job_memory(job, replace(layout, recompute=Recompute.NONE)).total_bytes
    assert whole < half < none


def test_offloaded_activations_leave_one_layer():
    layout = Layout(micro_batch=8)
    kept = training_memory(SMALL, layout, seq_len=2048)
    away = training_memory(SMALL, replace(layout, offload_activations=True), seq_len=2048)
    assert away.total_bytes < kept.total_bytes
    assert "kept activations" not in {term.name for term in away.terms}


def test_moments_of_the_native_engine_visit_the_device():
    """Its gradients stay where they step; of its moments those of the largest weight come at once, at most."""
    layout = Layout(data=4, zero=ZeroStage.PARAMETERS, offload_optimizer=True)
    native, other = (
        training_memory(SMALL, layout, seq_len=2048, profile=PROFILES[name]) for name in ("native", "fsdp")
    )
    step = {term.name: term.value for term in native.phases["optimizer step"]}
    owned = count_parameters(SMALL).total / 4
    assert step["gradients"] == pytest.approx(4 * owned)
    assert step["visiting moments"] == pytest.approx(min(8 * owned, 2**28))
    assert {"optimizer", "visiting moments"}.isdisjoint(term.name for term in native.phases["backward"])
    assert {"gradients", "visiting moments"}.isdisjoint(term.name for term in other.phases["optimizer step"])
    large = models.get("Llama-3.1-70B").architecture
    step = {term.name: term.value for term in training_memory(large, layout, seq_len=64).phases["optimizer step"]}
    assert step["visiting moments"] == pytest.approx(8 * 128_256 * 8192 / 4), "of the embedding"


def test_an_uneven_split_makes_a_middle_stage_the_fullest():
    """A short first stage moves the peak to the second, which holds as many micro-batches less one."""
    job = MemoryJob(architecture=models.get("Llama-3.1-70B").architecture, seq_len=8192)
    layout = Layout(pipeline=8, accumulation=32, tensor=8, sequence_parallel=True)
    memory = job_memory(replace(job, end_layers=(4, 4)), layout)
    assert memory.stage == "middle"
    assert memory.total_bytes > job_memory(job, layout).total_bytes * 0.8


def test_gradients_wait_for_the_backward_pass_unless_kept_or_accumulated():
    single = training_memory(SMALL, Layout(), seq_len=256)
    several = training_memory(SMALL, Layout(accumulation=4), seq_len=256)
    megatron = training_memory(SMALL, Layout(), seq_len=256, profile=MEGATRON_STACK, precision=MEGATRON)
    copies = training_memory(SMALL, Layout(data=2), seq_len=256)
    shards = training_memory(SMALL, Layout(data=2, zero=ZeroStage.PARAMETERS), seq_len=256)
    plans = (single, several, megatron, copies, shards)
    early = [{term.part for term in memory.phases["loss"]} for memory in plans]
    assert ["gradients" in parts for parts in early] == [False, True, True, True, False]
    assert "gradients" in {term.part for term in single.phases["end of backward"]}


def test_deepspeed_steps_on_a_flat_fp32_gradient():
    """16 bytes per parameter of state, 8 of temporaries while the optimizer steps."""
    memory = training_memory(SMALL, Layout(), seq_len=1, profile=DEEPSPEED, precision=ZERO_PAPER)
    size = count_parameters(SMALL).total
    assert memory.phase == "optimizer step"
    assert memory.total_bytes == pytest.approx(24 * size, rel=0.2, abs=1.3 * GIB)
    assert next(term.value for term in memory.terms if term.name == "optimizer step") == 8 * size


def test_latent_attention_and_experts_have_activations_of_their_own():
    memory = training_memory(DEEPSEEK, Layout(data=64, expert=64, pipeline=8, accumulation=8), seq_len=4096)
    assert memory.part("activations") > 0
    spread = replace(Layout(data=64, pipeline=8, accumulation=8), expert=32)
    assert training_memory(DEEPSEEK, spread, seq_len=4096).parameter_bytes > memory.parameter_bytes


def test_recurrent_layers_keep_no_scores():
    layout = Layout()
    job = MemoryJob(architecture=NEMOTRON, seq_len=4096)
    eager = job_memory(replace(job, fused_attention=False), layout).total_bytes
    fused = job_memory(job, layout).total_bytes
    scores = 4096 * 4096 * NEMOTRON.num_heads * 6 * NEMOTRON.attention_layers
    assert eager - fused == pytest.approx(scores, rel=0.4)


def test_three_hundred_thousand_layouts_are_one_call():
    """No loop over layouts: the columns of a large table are arrays of its length, and nothing else grows."""
    count = 300_000
    columns = Layouts.of(Layout(tensor=2))
    many = replace(columns, micro_batch=np.tile([1.0, 2.0, 4.0], count // 3))
    table = training_memory_table(MemoryShape.of(MemoryJob(architecture=SMALL, seq_len=256)), many)
    assert table.total.shape == (count,)
    assert len(np.unique(table.total)) == 3


def test_maxtext_keeps_the_products_that_its_policy_names():
    """Llama-3.1-8B, bytes per token and layer: input and both outputs on the residual stream 2 x 4096 each, queries,
    keys and values 2 x 6144, gate and up 2 x 28672; with `minimal_with_context` attention's output and its sums, too.
    """
    llama, layout = models.get("Llama-3.1-8B").architecture, Layout(data=8, zero=ZeroStage.PARAMETERS)
    device, tokens = accelerators.get("TPU-v6e"), 1024
    minimal, context = 3 * 2 * 4096 + 2 * 6144 + 2 * 28672, 2 * 4096 + 4 * 32
    expected = {Recompute.NONE: minimal + context, Recompute.SELECTIVE: minimal, Recompute.FULL: 2 * 4096}
    for mode, each in expected.items():
        memory = training_memory(
            llama, replace(layout, recompute=mode), seq_len=tokens, profile=PROFILES["maxtext"], accelerator=device
        )
        terms = {term.name: term.value for term in memory.phases["loss"]}
        assert terms["layer inputs"] == each * tokens * 32
        assert terms["logits and loss"] == 4 * tokens * 128256
        assert not {"kept activations", "allocator slack", "device context", "communicators"} & set(terms)
    loss, backward = memory.phases["loss"], {term.name: term.value for term in memory.phases["backward"]}
    assert next(term.value for term in loss if term.name == "gathered weights") == 2 * 128256 * 4096
    assert backward["gathered weights"] == 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 + 2 * 4096)
    assert backward["unreduced gradients"] == 2 * 128256 * 4096, "16 bits, the largest matrix"


def test_loss_parallel_holds_sixteen_bytes_a_logit():
    def a_logit(tensor):
        job = MemoryJob(architecture=SMALL, seq_len=256, profile=PROFILES["torchtitan"], reserved=False)
        table = training_memory_table(MemoryShape.of(job), Layouts.of(Layout(tensor=tensor, micro_batch=8)))
        terms = {term.name: term.value for term in table.stages["first"].phases["loss"].at()}
        return terms["logits and loss"] * tensor / (8 * 256 * SMALL.vocab_size)

    assert (a_logit(1), a_logit(2)) == pytest.approx((12.0, 16.0))


def test_eight_bit_moments_step_in_place():
    """One kernel updates a tensor; lists of wider moments need temporaries of their type."""
    profile, layout = PROFILES["huggingface"], Layout()
    steps = []
    for optimizer in ("adam", "adam-bf16", "adam8bit"):
        precision = with_optimizer(FSDP_MIXED, optimizer)
        job = MemoryJob(architecture=SMALL, seq_len=256, profile=profile, precision=precision)
        terms = {term.name: term.value for term in job_memory(job, layout).phases["optimizer step"]}
        steps.append(terms.get("optimizer step", 0.0))
    assert steps == [4 * count_parameters(SMALL).total, 2 * count_parameters(SMALL).total, 0.0]


@pytest.mark.parametrize(
    ("adapter", "counted"),
    [
        (AdapterUse(rank=8, targets=frozenset(("q", "v")), dropout=True), 11_128),
        (AdapterUse(rank=8, targets=frozenset(), prefixed=True), 9_772),
        (AdapterUse(rank=8, targets=frozenset(("norms",)), scaled_outputs=True, prefixed=True), 17_132),
    ],
)
def test_adapters_of_litgpt_keep_what_hooks_count(adapter, counted):
    """Bytes a token and layer that `saved_tensors_hooks` counts in litgpt 0.4.13 (LoRA, adapter, adapter_v2), masks of
    dropout as bytes, without what does not grow with the sequence."""
    tiny = Architecture(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=688, vocab_size=512)
    shape = MemoryShape.of(MemoryJob(architecture=tiny, seq_len=64, profile=PROFILES["litgpt"], adapter=adapter))
    assert float(shape.replicated + shape.sharded) == pytest.approx(counted, rel=0.01)


def test_a_quantised_base_keeps_inputs_beside_trained_norms():
    """bitsandbytes keeps the input of a frozen product; adapter_v2 trains norms, whose values stay as well."""
    kept = [
        MemoryShape.of(
            MemoryJob(
                architecture=SMALL,
                seq_len=64,
                profile=PROFILES["litgpt"],
                adapter=AdapterUse(rank=8, base_bytes=size, targets=frozenset(("norms",))),
            )
        )
        for size in (2.0, 0.5)
    ]
    inputs = 2 * (2 * 512 + 1376)
    difference = kept[1].replicated + kept[1].sharded - kept[0].replicated - kept[0].sharded
    assert float(difference) == inputs


@pytest.mark.parametrize(
    ("adapter", "counted"),
    [(AdapterUse(rank=8), 12_808), (AdapterUse(rank=8, dropout=True), 15_032), (None, 14_232)],
)
def test_autocast_keeps_what_hooks_count(adapter, counted):
    """Bytes a token and layer that `saved_tensors_hooks` counts in a Llama of transformers 5.23 under autocast, without
    casts of weights: adapters of peft 0.21 in 32 bits over 16, then with dropout (masks as bytes); 32-bit weights."""
    tiny = Architecture(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=688, vocab_size=512)
    job = MemoryJob(architecture=tiny, seq_len=64, profile=PROFILES["huggingface"], adapter=adapter)
    table = training_memory_table(MemoryShape.of(job), Layouts.of(Layout()))
    kept = next(term for term in table.stages["first"].phases["loss"].at() if term.name == "kept activations")
    assert kept.value / 64 / 4 == pytest.approx(counted, rel=0.01)
