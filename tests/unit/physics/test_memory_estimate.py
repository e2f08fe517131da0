from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.physics.columns import Layouts
from charter.physics.inference_memory import inference_memory
from charter.physics.memory import inference_alternatives, job_memory, training_alternatives, training_memory
from charter.physics.memory_profiles import DEEPSPEED, MEGATRON_DEEPSPEED, NATIVE, AdapterUse, MemoryJob
from charter.physics.memory_shape import ModelColumns, rank_columns, stage_layers
from charter.physics.precision import FP32, FSDP_MIXED, ZERO_PAPER
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

LLAMA = models.get("Llama-3.1-8B").architecture
LLAMA70 = models.get("Llama-3.1-70B").architecture
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
DEEPSEEK = models.get("DeepSeek-V3").architecture
H100 = accelerators.get("H100")
SMALL = Architecture(hidden_size=512, num_layers=8, num_heads=8, intermediate_size=1376, vocab_size=4096)

degrees = st.sampled_from([1, 2, 4, 8])
layouts = st.builds(
    Layout,
    data=degrees,
    tensor=degrees,
    pipeline=degrees,
    zero=st.sampled_from(ZeroStage),
    micro_batch=st.sampled_from([1, 2, 8]),
    accumulation=st.sampled_from([1, 4, 16]),
    recompute=st.sampled_from(Recompute),
    sequence_parallel=st.booleans(),
)


def total(layout, **more):
    return training_memory(SMALL, layout, seq_len=256, **more).total_bytes


def parameters_of(shape, stage, *, pipeline):
    """Parameters of one rank of a pipeline stage."""
    model, columns = ModelColumns.of(shape), Layouts.of(Layout(pipeline=pipeline))
    layers = stage_layers(model.layers, columns.pipeline, stage)
    return float(rank_columns(model, columns, stage=stage, layers=layers).total)


@pytest.mark.parametrize("name", [item.name for item in models.catalog() if item.architecture.mixture])
def test_a_layer_gathers_the_experts_that_are_counted(name):
    """Experts narrower than the model (Nemotron 3 Super) had been gathered four times as large as they are."""
    shape = models.get(name).architecture
    columns, count = ModelColumns.of(shape), count_parameters(shape)
    assert float(columns.layer_experts) * shape.moe_layers == count.experts
    assert float(columns.layer_matrices + columns.layer_experts) >= 0.999 * count.layers / shape.num_layers


def test_parts_add_up_to_the_total():
    memory = training_memory(LLAMA, Layout(data=8, zero=ZeroStage.PARAMETERS), seq_len=4096)
    assert sum(memory.by_part().values()) == pytest.approx(memory.total_bytes)
    named = (
        memory.parameter_bytes,
        memory.gradient_bytes,
        memory.optimizer_bytes,
        memory.part("activations"),
        memory.logits_bytes,
        memory.part("buffers"),
        memory.part("overhead"),
    )
    assert sum(named) == pytest.approx(memory.total_bytes)
    assert all(term.formula and term.source and term.unit == "bytes" for term in memory.terms)


@given(layouts)
def test_more_data_parallelism_adds_at_most_the_buffers_of_sharding(layout):
    wider = replace(layout, data=layout.data * 2)
    first = training_memory(SMALL, layout, seq_len=256)
    second = training_memory(SMALL, wider, seq_len=256)
    fixed = ("parameters", "gradients", "optimizer", "activations", "logits")
    copies = Layouts.of(wider).copies - Layouts.of(layout).copies
    buckets = 4 * count_parameters(SMALL).total * float(copies)
    assert second.part(*fixed) <= first.part(*fixed) * (1 + 1e-12) + buckets


@given(layouts)
def test_each_zero_stage_keeps_no_more_state(layout):
    def state(zero):
        """At the step, where all of it is; the fullest phase may be another one for each stage."""
        terms = training_memory(SMALL, replace(layout, zero=zero), seq_len=256).phases["optimizer step"]
        return sum(term.value for term in terms if term.part in ("parameters", "gradients", "optimizer"))

    states = [state(zero) for zero in ZeroStage]
    assert states == sorted(states, reverse=True)


@given(layouts)
def test_recomputation_never_keeps_more(layout):
    deep = Layout(data=layout.data, tensor=layout.tensor, micro_batch=layout.micro_batch)
    none = training_memory(SMALL, deep, seq_len=2048).part("activations")
    selective, full = (
        training_memory(SMALL, replace(deep, recompute=mode), seq_len=2048).part("activations")
        for mode in (Recompute.SELECTIVE, Recompute.FULL)
    )
    assert full < selective < none


@given(layouts, st.integers(1, 4))
def test_memory_grows_with_batch_and_sequence(layout, times):
    larger = replace(layout, micro_batch=layout.micro_batch * times)
    assert total(layout) <= total(larger)
    longer = training_memory(SMALL, layout, seq_len=256 * times).total_bytes
    assert total(layout) <= longer * (1 + 1e-12)


@given(layouts)
def test_tensor_parallelism_divides_the_state(layout):
    def state(chosen):
        return training_memory(SMALL, chosen, seq_len=256).part("parameters", "gradients", "optimizer")

    wider = replace(layout, tensor=layout.tensor * 2)
    assert state(wider) < state(layout)


def test_without_sharding_the_state_is_16_bytes_per_parameter():
    memory = training_memory(LLAMA, Layout(), seq_len=128)
    state = memory.part("parameters", "gradients", "optimizer")
    assert state == 16 * count_parameters(LLAMA).total
    assert FSDP_MIXED.state_bytes == ZERO_PAPER.state_bytes == FP32.state_bytes == 16


def test_pipeline_stages_together_hold_the_whole_model():
    for shape in (LLAMA, MIXTRAL, DEEPSEEK):
        first, middle, last = (parameters_of(shape, stage, pipeline=4) for stage in ("first", "middle", "last"))
        longer = shape.num_layers % 4  # stages that hold one layer more; the second stands for those between
        layer = shape.num_layers // 4 + (longer > 1)
        third = middle * (shape.num_layers // 4 + (longer > 2)) / layer
        assert first + middle + third + last == pytest.approx(count_parameters(shape).total, rel=1e-9)


def test_a_tied_embedding_is_held_twice_when_the_pipeline_splits_it():
    tied = models.get("Llama-3.2-1B").architecture
    ranks = [parameters_of(tied, stage, pipeline=2) for stage in ("first", "last")]
    assert sum(ranks) - count_parameters(tied).total == pytest.approx(tied.vocab_size * tied.hidden_size)


def test_expert_parallelism_divides_only_the_experts():
    plain = training_memory(MIXTRAL, Layout(data=8), seq_len=128).parameter_bytes
    spread = training_memory(MIXTRAL, Layout(data=8, expert=8), seq_len=128).parameter_bytes
    experts = count_parameters(MIXTRAL).experts
    assert plain - spread == pytest.approx(4 * experts * 7 / 8)


def test_expert_parallelism_does_not_shard_experts_twice():
    """With ZeRO-3 over 8 and experts over 8, each rank owns an eighth either way."""
    zero3 = Layout(data=8, zero=ZeroStage.PARAMETERS)
    one = training_memory(MIXTRAL, zero3, seq_len=128).parameter_bytes
    other = training_memory(MIXTRAL, replace(zero3, expert=8), seq_len=128).parameter_bytes
    assert one == pytest.approx(other)


def test_the_last_stage_carries_the_logits_and_the_first_the_activations():
    layout = Layout(pipeline=4, accumulation=16)
    assert training_memory(LLAMA70, layout, seq_len=8192).stage == "first"
    assert training_memory(SMALL, replace(layout, micro_batch=1), seq_len=16).stage in ("first", "last")
    vocabulary_heavy = replace(SMALL, vocab_size=500_000)
    assert training_memory(vocabulary_heavy, layout, seq_len=256).stage == "last"


def test_a_scalar_head_has_no_logits_and_no_output_projection():
    lm = training_memory(LLAMA, Layout(), seq_len=1024)
    scalar = training_memory(LLAMA, Layout(), seq_len=1024, head="scalar")
    assert scalar.logits_bytes == 0
    head = LLAMA.vocab_size * LLAMA.hidden_size - LLAMA.hidden_size
    assert lm.parameter_bytes - scalar.parameter_bytes == 4 * head


def test_lora_trains_little_and_qlora_stores_less():
    full = training_memory(LLAMA, Layout(), seq_len=1024)
    lora = training_memory(LLAMA, Layout(), seq_len=1024, adapter=Adapter(rank=16))
    qlora = training_memory(LLAMA, Layout(), seq_len=1024, adapter=Adapter(rank=16, base_bits=4))
    trained = adapter_parameters(LLAMA, Adapter(rank=16))
    assert lora.optimizer_bytes == 8 * trained
    parts = count_parameters(LLAMA)
    wide = parts.embedding + parts.norms  # stay in fp32
    assert lora.parameter_bytes == 2 * (parts.total - wide) + 4 * wide + 4 * trained
    assert qlora.parameter_bytes < 0.45 * lora.parameter_bytes
    sharded = training_memory(LLAMA, Layout(data=8, zero=ZeroStage.PARAMETERS), seq_len=1024, adapter=Adapter(rank=16))
    assert sharded.parameter_bytes == pytest.approx((2 * parts.total + 4 * trained) / 8, rel=1e-6)
    assert full.total_bytes > 3 * lora.total_bytes > 3 * qlora.total_bytes


def test_offloaded_state_is_not_on_the_device():
    memory = training_memory(LLAMA, Layout(offload_optimizer=True), seq_len=128)
    assert memory.optimizer_bytes == 0
    assert memory.parameter_bytes > 0


def test_transformers_layers_keep_more_than_lean_ones():
    def kept(profile):
        terms = training_memory(LLAMA, Layout(), seq_len=1024, profile=profile).phases["loss"]
        return next(term.value for term in terms if term.name == "kept activations")

    lean = replace(NATIVE, implementation="lean")
    assert kept(NATIVE) - kept(lean) == 8 * LLAMA.hidden_size * 1024 * LLAMA.num_layers


def test_inference_holds_weights_and_cache():
    memory = inference_memory(LLAMA70, batch=8, tokens_per_sequence=4096, tensor=2)
    assert memory.parameter_bytes == pytest.approx(70_553_706_496, rel=1e-4)
    assert memory.part("kv_cache") == 8 * 4096 * 327_680 / 2
    quantised = inference_memory(LLAMA70, batch=8, tokens_per_sequence=4096, tensor=2, weights="int4")
    ends = 2 * LLAMA70.vocab_size * LLAMA70.hidden_size / 2
    ends += count_parameters(LLAMA70).norms
    matrices = memory.parameter_bytes / 2 - ends
    assert quantised.parameter_bytes == pytest.approx((0.5 + 2.5 / 128) * matrices + 2 * ends, rel=1e-9)


def test_a_processor_has_no_device_context():
    cpu = accelerators.processor(flops_per_second=1e11, memory_bytes_per_second=1e10, memory_bytes=8e9, cores=2)
    names = {term.name for term in training_memory(SMALL, Layout(), seq_len=64, accelerator=cpu).terms}
    assert "process" in names
    assert "device context" not in names


@settings(max_examples=30)
@given(layouts, st.floats(1e8, 1e10))
def test_every_alternative_really_fits(layout, capacity):
    def memory(chosen):
        return training_memory(SMALL, chosen, seq_len=256)

    for item in training_alternatives(layout, memory, capacity):
        assert item.total_bytes <= capacity


def test_alternatives_for_8b_on_one_h100_are_more_accelerators():
    found = training_alternatives(
        Layout(), lambda layout: training_memory(LLAMA, layout, seq_len=4096), H100.memory_bytes
    )
    assert [item.count for item in found if item.count > 1] == [2]


def test_alternatives_for_serving_are_smaller_weights_or_more_devices():
    found = inference_alternatives(
        lambda layout, weights: inference_memory(
            LLAMA70, batch=1, tokens_per_sequence=4096, tensor=layout.tensor, weights=weights
        ),
        Layout(),
        "bf16",
        H100.memory_bytes,
    )
    assert [item.change for item in found] == ["weights in fp8", "weights in int4", "tensor parallel 2"]


def test_deepspeeds_buffers_are_whole_however_few_are_trained():
    alone = Layout(micro_batch=1, zero=ZeroStage.GRADIENTS, recompute=Recompute.FULL)
    job = MemoryJob(
        architecture=LLAMA, seq_len=4096, precision=ZERO_PAPER, adapter=AdapterUse(rank=8), profile=DEEPSPEED
    )
    whole = job_memory(job, alone)
    filled = job_memory(replace(job, profile=replace(DEEPSPEED, whole_buckets=False)), alone)
    assert whole.phase == "loss"  # the buffers are made before the loss is differentiated
    assert whole.total_bytes - filled.total_bytes == pytest.approx(2 * DEEPSPEED.bucket_elements, rel=0.1)


def test_stages_without_copies_have_one_bucket():
    """A billion elements in 16 bits, though there is nobody to reduce with."""
    job = MemoryJob(architecture=LLAMA, seq_len=4096, precision=ZERO_PAPER, profile=MEGATRON_DEEPSPEED)
    peak = job_memory(job, Layout(zero=ZeroStage.OPTIMIZER, pipeline=4, accumulation=8))
    assert [term.value for term in peak.terms if term.name == "communication buckets"] == [2e9]
