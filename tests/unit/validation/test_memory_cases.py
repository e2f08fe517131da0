"""How a row of a source never seen becomes a job and a layout."""

from dataclasses import replace

import pytest

from charter.physics.constants import TrainingMemoryConstants
from charter.physics.fitted import Fitted
from charter.physics.memory import job_memory
from charter.spec.layout import Recompute, ZeroStage
from charter.validation.quantities.memory import TRAINING_MEMORY, inference_case, out_of_memory
from charter.validation.quantities.memory_cases import probe_of, profile_of, training_case
from charter.validation.rows.measurement import Measurement


def row(**cells):
    base = {
        "id": "NEW-1", "metric": "peak_mem_gb", "value": 1.0, "kind": "lora", "model": "Llama-2-7B", "params_b": 6.738,
        "hidden": 4096, "layers": 32, "heads": 32, "ffn": 11008, "vocab": 32000, "gpu": "A100-80GB", "mem_gb": 80,
        "gpus": 1, "attention": "mha", "tied_embeddings": 0,
    }  # fmt: skip
    return Measurement(**{**base, **cells})


@pytest.mark.parametrize(
    ("cells", "profile"),
    [
        ({"framework": "Megatron-Core 0.9"}, "megatron"),
        ({"framework": "NeMo 25.02"}, "megatron"),
        ({"framework": "Megatron-DeepSpeed"}, "megatron-deepspeed"),
        ({"framework": "GPT-NeoX (DeepSpeed)", "pp": 4}, "megatron-deepspeed"),
        ({"framework": "DeepSpeed 0.14", "shard": "zero3"}, "deepspeed"),
        ({"framework": "OpenRLHF", "gpus": 8}, "deepspeed"),
        ({"framework": "trlX", "gpus": 8}, "deepspeed"),
        ({"framework": "TRL 0.12"}, "huggingface"),
        ({"framework": "TRL 0.12", "shard": "zero2"}, "deepspeed"),
        ({"framework": "Transformers + PEFT", "shard": "FSDP"}, "fsdp"),
        ({"framework": "LLaMA-Factory"}, "huggingface"),
        ({"framework": "axolotl"}, "huggingface"),
        ({"framework": "Unsloth"}, "unsloth"),
        ({"framework": "torchtune"}, "torchtune"),
        ({"framework": "torchtitan"}, "torchtitan"),
        ({"framework": "MaxText"}, "maxtext"),
        ({"framework": "nanotron"}, "nanotron"),
        ({"framework": "InternEvo", "pp": 4}, "internevo"),
        ({"framework": "YaFSDP"}, "fsdp"),
        ({"framework": "MosaicML Composer"}, "composer"),
        ({"framework": "verl"}, "fsdp"),
        ({"framework": "NeMo-RL (Megatron + vLLM)"}, "megatron"),
        ({"framework": "verl", "pp": 12, "tp": 8, "shard": "zero1"}, "megatron"),
        ({"framework": "verl", "tp": 2, "shard": "distopt"}, "megatron"),
        ({"framework": "NeMo-RL", "tp": 4, "shard": "zero3"}, "fsdp"),
        ({"framework": "slime", "tp": 4}, "megatron"),
        ({"framework": "SkyRL"}, "fsdp"),
        ({"framework": "in-house", "tp": 8}, "megatron"),
        ({"framework": "", "gpus": 64}, "fsdp"),
        ({"framework": ""}, "huggingface"),
    ],
)
def test_frameworks_map_to_the_nearest_profile(cells, profile):
    assert profile_of(row(**cells)).name == profile


def test_blank_cells_of_an_adapter_table_are_filled():
    case = training_case(row(framework="LLaMA-Factory", adapter="qlora", dtype="nf4"))
    assert (case.layout.micro_batch, case.layout.accumulation, case.layout.zero) == (1, 1, ZeroStage.NONE)
    assert case.layout.recompute is Recompute.FULL
    assert case.job.seq_len == 512
    assert case.job.adapter.base_bytes == pytest.approx(0.5625)


def test_adapters_follow_the_defaults_of_their_trainer():
    """LLaMA-Factory has `lora_rank` 8 and no dropout; of others, that nobody knows, rank and dropout are assumed."""
    adapters = [training_case(row(framework=name, adapter="lora")).job.adapter for name in ("LLaMA-Factory", "axolotl")]
    assert [(adapter.rank, adapter.dropout) for adapter in adapters] == [(8, False), (16, True)]


def test_zero_without_a_32_bit_copy_is_fsdp():
    """DeepSpeed keeps a 32-bit copy of what it shards, so a Trainer without one shards by FSDP."""
    full = {"kind": "sft", "adapter": "full", "gpus": 8, "shard": "zero3", "parameter_dtype": "fp32"}
    profiles = {
        name: [profile_of(row(framework=name, master_dtype=master, **full)).name for master in ("none", "fp32")]
        for name in ("hf trainer", "in-house")
    }
    assert list(profiles.values()) == [["fsdp", "deepspeed"]] * 2


def test_a_frozen_copy_scores_the_answers_of_kto():
    tuned = {"framework": "TRL", "shard": "zero3", "gpus": 8, "adapter": "full"}
    copies = [training_case(row(kind=kind, **tuned)).extra_bytes for kind in ("dpo", "kto", "orpo", "sft")]
    assert copies == pytest.approx([2 * 6.738e9 / 8] * 2 + [0, 0], rel=1e-3)


def test_updates_of_rl_recompute_where_nobody_says():
    cells = {"framework": "verl", "pp": 4, "shard": "zero1", "gpus": 8, "adapter": "full"}
    modes = [training_case(row(kind=kind, **cells)).layout.recompute for kind in ("grpo", "pretrain")]
    assert modes == [Recompute.FULL, Recompute.SELECTIVE]


def test_liger_makes_gradients_beside_one_part_of_its_logits():
    """A part has as many positions, to a power of two, as make its logits as large as the input; adapters leave the
    output projection without gradient (`fused_linear_cross_entropy_forward`)."""
    cells = {"framework": "hf trainer", "logits_kernel": "chunked", "seq": 3000, "vocab": 128256, "params_b": None}
    full, lora = (
        phase_of(training_case(row(**cells, adapter=adapter, kind=kind)), "loss")["logits and loss"]
        for adapter, kind in (("full", "sft"), ("lora", "lora"))
    )
    part, gradient_of_input = 128 * 128256 * 2, 3000 * 4096 * 2
    assert lora == part + gradient_of_input
    assert full == lora + 2 * 128256 * 4096


def test_litgpt_recomputes_only_where_it_shards():
    assert training_case(row(framework="litgpt", seq=512)).layout.recompute is Recompute.NONE
    sharded = training_case(row(framework="litgpt", seq=512, shard="fsdp", gpus=2))
    assert sharded.layout.recompute is Recompute.FULL
    assert (sharded.layout.data, sharded.layout.zero) == (2, ZeroStage.PARAMETERS)


@pytest.mark.parametrize(
    ("shard", "stage"),
    [
        ("zero1", 1), ("ZeRO-2", 2), ("stage 3", 3), ("FSDP full_shard", 3), ("fsdp-shard_grad_op", 2),
        ("distributed optimizer (ZeRO-1)", 1), ("distopt", 1), ("ddp", 0), ("none", 0),
    ],
)  # fmt: skip
def test_sharding_is_read_as_printed(shard, stage):
    found = training_case(row(kind="pretrain", adapter="full", shard=shard, gpus=8, framework="x"))
    assert found.layout.zero == stage


@pytest.mark.parametrize(
    ("notes", "probe"),
    [
        ("torch.cuda.max_memory_reserved", (True, False)),
        ("real run, allocated memory", (False, False)),
        ("nvidia-smi, all processes", (True, True)),
        ("", (True, True)),
    ],
)
def test_the_probe_is_read_from_the_notes(notes, probe):
    assert probe_of(row(notes=notes), "huggingface") == probe


def test_reward_models_hold_pairs_and_no_vocabulary():
    case = training_case(row(kind="rm", adapter="full", mbs=4, framework="DeepSpeed", shard="zero2", gpus=8))
    assert case.layout.micro_batch == 8
    assert case.job.head == "scalar"


def test_a_reserving_engine_shows_its_setting_not_its_need():
    cells = {"kind": "inference", "framework": "vLLM 0.6", "isl": 1024, "osl": 128}
    assert inference_case(row(**cells)).preallocated == pytest.approx(0.9 * 85.9e9, rel=0.01)
    other = inference_case(row(**cells, notes="gpu_memory_utilization=0.5"))
    assert other.preallocated == pytest.approx(0.5 * 85.9e9, rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "name", "kv"),
    [
        ("BF16", "bf16", 2.0), ("bf16 + int8 KV", "bf16", 1.06), ("AWQ-INT4", "int4", 2.0), ("GPTQ-Int8", "int8", 2.0),
        ("FP8", "fp8", 2.0), ("bnb.nf4-dq", "nf4", 2.0), ("bnb.nf4", "nf4-plain", 2.0), ("Q4_K_M", "q4_k_m", 2.0),
    ],
)  # fmt: skip
def test_weights_and_caches_are_read_from_the_dtype(dtype, name, kv):
    case = inference_case(row(kind="inference", framework="Transformers", dtype=dtype, isl=1, osl=2048))
    assert (case.job.weights.name, case.job.kv_bytes_per_value) == (name, kv)


BLOOM = {
    "framework": "Megatron-DeepSpeed 2022", "kind": "pretrain", "hidden": 14336, "layers": 70, "heads": 112,
    "ffn": 57344, "vocab": 250880, "tied_embeddings": 1, "gpus": 384, "tp": 4, "pp": 12, "dp": 8, "shard": "zero1",
    "mbs": 2, "gbs": 2048, "seq": 2048, "recompute": "full", "adapter": "full", "stack_version": "2022",
}  # fmt: skip


def held(case, **changes):
    """Terms of the fullest phase and bytes per trained parameter of a rank, of a row as typed."""
    memory = job_memory(replace(case.job, **changes), case.layout)
    return {term.name: term.value for term in memory.terms}, memory


def test_embedding_and_head_count_as_layers_of_the_pipeline():
    assert training_case(row(**BLOOM)).job.end_layers == (5, 5)
    assert training_case(row(**{**BLOOM, "layers": 72})).job.end_layers is None
    assert training_case(row(**{**BLOOM, "framework": "Megatron-LM"})).job.end_layers is None


def test_bf16_gradients_stay_beside_those_they_are_added_to():
    typed = {"parameter_dtype": "bf16", "gradient_dtype": "fp32", "optimizer_dtype": "fp32", "master_dtype": "fp32"}
    terms, _ = held(training_case(row(**BLOOM, dtype="bf16", compute_dtype="bf16", **typed)))
    halves = training_case(row(**BLOOM, dtype="fp16", compute_dtype="fp16"))
    fp16, memory = held(halves)
    assert terms["gradients"] == pytest.approx(2 * fp16["gradients"])
    assert 0 < terms["16-bit gradients"] < terms["weights"]
    assert "16-bit gradients" not in fp16
    step = {term.name: term.value for term in memory.phases["optimizer step"]}["optimizer step"]
    assert step == pytest.approx(12 * min(250880 * 14336 / 4, fp16["weights"] / 2 / 8), rel=0.02)


def test_all_kernels_are_loaded_by_software_of_2022():
    assert held(training_case(row(**BLOOM)))[0]["device context"] == pytest.approx(1.3e9)
    new = held(training_case(row(**{**BLOOM, "stack_version": "2024"})))[0]
    assert new["device context"] < 1e9


def test_nanotron_reduces_in_place_and_gathers_flat_weights():
    cells = {
        "framework": "nanotron 0.5", "kind": "pretrain", "gpus": 32, "tp": 1, "pp": 2, "dp": 16, "shard": "zero1",
        "mbs": 1, "gbs": 256, "seq": 4096, "adapter": "full", "recompute": "none",
    }  # fmt: skip
    whole, alone, plain = (
        {term.name: term.value for term in job_memory(case.job, case.layout).phases["end of backward"]}
        for case in (
            training_case(row(**cells)),
            training_case(row(**{**cells, "dp": 1, "gpus": 2})),
            training_case(row(**{**cells, "shard": "none"})),
        )
    )
    assert whole["16-bit gradients"] == pytest.approx(whole["gradients"] / 2)
    assert whole["cached by the allocator"] == pytest.approx(whole["weights"])
    assert "communication buckets" not in whole
    assert "cached by the allocator" not in alone
    assert plain["communication buckets"] == pytest.approx(plain["weights"])
    assert training_case(row(**{**cells, "tp": 4})).layout.sequence_parallel


def test_the_flat_step_of_internevo_stays_cached():
    cells = {
        "framework": "InternEvo", "kind": "sft", "gpus": 4, "tp": 4, "pp": 1, "dp": 1, "shard": "zero1", "mbs": 1,
        "gbs": 4, "seq": 2048, "adapter": "full", "recompute": "full",
    }  # fmt: skip
    terms, _ = held(training_case(row(**cells)))
    assert terms["cached by the allocator"] == pytest.approx(1.5 * terms["optimizer"])
    assert "cached by the allocator" not in held(training_case(row(**cells)), reserved=False)[0]
    units = training_case(row(**{**cells, "tp": 1, "dp": 4, "shard": "fsdp"}))
    assert (units.job.profile.flat_step, units.job.profile.step_bytes) == (1.0, 12.0)


def test_logits_of_deepspeed_stay_in_16_bits():
    typed = {"gradient_dtype": "fp16", "master_dtype": "fp32", "logits_kernel": "full", "adapter": "qlora"}
    narrow = training_case(row(framework="hf-trainer", model="Qwen-7B", **typed))
    assert (narrow.job.profile.name, narrow.job.cross_entropy) == ("deepspeed", "shifted")
    assert training_case(row(framework="hf-trainer", **typed)).job.cross_entropy is None
    autocast = training_case(row(framework="hf-trainer", model="Qwen-7B", logits_kernel="full"))
    assert (autocast.job.profile.name, autocast.job.cross_entropy) == ("huggingface", None)


def test_logits_of_torchtune_and_torchtitan():
    cells = {"kind": "sft", "adapter": "full", "seq": 4096, "mbs": 1, "recompute": "full", "shard": "none"}
    each = {("torchtune", False): 14 * 512, ("torchtitan", False): 12 * 4096, ("torchtitan", True): 14 * 4096}
    for (framework, reserved), bytes_per_token in each.items():
        case = training_case(row(framework=framework, **cells))
        loss = phase_of(replace(case, job=replace(case.job, reserved=reserved)), "loss")
        assert loss["logits and loss"] == pytest.approx(bytes_per_token * 32000)


def test_verdicts_take_the_constants_they_are_given():
    typed = {"dtype": "bf16", "parameter_dtype": "bf16", "gradient_dtype": "fp32", "optimizer_dtype": "fp32"}
    cells = {**BLOOM, **typed, "metric": "oom", "pp": 6, "dp": 16, "layers": 100, "hidden": 12288, "ffn": 49152}
    plain = out_of_memory(row(**cells))
    more = out_of_memory(row(**cells), {"training-memory": Fitted(shared={"slack": 1.0})})
    assert more.fits_probability < plain.fits_probability


def nanotron(**cells):
    base = {
        "kind": "pretrain", "model": "Llama-arch-1.34B", "params_b": 1.34, "hidden": 2048, "layers": 16, "heads": 32,
        "ffn": 8192, "vocab": 131072, "tied_embeddings": 1, "gpus": 64, "pp": 2, "dp": 32, "mbs": 1, "gbs": 256,
        "seq": 4096, "shard": "zero1", "recompute": "none", "framework": "nanotron",
    }  # fmt: skip
    return row(**{**base, **cells})


def test_name_of_llama_means_a_gated_mlp_however_wide():
    architecture = training_case(nanotron()).job.architecture
    assert architecture.gated_mlp
    assert architecture.tied_embeddings


def test_nanotron_splits_layers_by_products():
    """One layer is 4 x 2048^2 + 3 x 8192 x 2048 products, the head 131072 x 2048: four layers' worth. Half of 20 is 10,
    and the layer that passes it stays."""
    assert training_case(nanotron()).job.end_layers == (11, 5)
    assert training_case(nanotron(pp=4, dp=16)).job.end_layers == (6, 1)


def test_nanotron_prints_the_memory_of_its_first_stage():
    cases = [training_case(nanotron(mbs=4, vocab=vocabulary, params_b=None)) for vocabulary in (131072, 4 * 131072)]
    even = [replace(case, job=replace(case.job, end_layers=(8, 8))) for case in cases]
    small, large = TRAINING_MEMORY.predict(TRAINING_MEMORY.prepare(even), TrainingMemoryConstants())
    stages = [job_memory(case.job, case.layout).stage for case in even]
    assert stages == ["last", "last"]
    assert large - small < 12, "an embedding of 1.6 billion parameters in 6.4 bytes each, no logits of 64 GiB"


def test_outputs_of_a_host_ahead_are_reserved_memory():
    case = training_case(nanotron(pp=1, tp=2, dp=32, seqpar=1))
    reserved, allocated = (
        job_memory(replace(case.job, reserved=counts), case.layout).phases["loss"] for counts in (True, False)
    )
    waiting = [
        next(item.value for item in terms if item.name == "gathered sequence") for terms in (reserved, allocated)
    ]
    hidden = 2 * 2048 * 4096
    assert waiting == [(2 + 2 * 16) * hidden, 2 * hidden]


def test_torchtune_gathers_its_tables_apart():
    cells = {
        "framework": "torchtune", "kind": "sft", "adapter": "full", "gpus": 8, "dp": 8, "shard": "fsdp2", "mbs": 2,
        "gbs": 16, "seq": 2048, "vocab": 128256, "params_b": None, "recompute": "full", "logits_kernel": "chunked",
    }  # fmt: skip
    case = training_case(row(**cells))
    assert case.job.profile.implementation == "huggingface", "a chunked loss of its own is not Liger's"
    phases = job_memory(case.job, case.layout).phases
    gathered = {
        phase: next(item.value for item in phases[phase] if item.name == "gathered weights")
        for phase in ("loss", "backward")
    }
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert gathered == {"loss": 2 * 2 * 128256 * 4096, "backward": 2 * 2 * layer}


def test_torchtitan_has_a_micro_batch_for_each_stage():
    cells = {"framework": "torchtitan", "kind": "pretrain", "gpus": 64, "tp": 1, "pp": 8, "dp": 8, "gbs": 256}
    layout = training_case(row(**cells)).layout
    assert (layout.micro_batch, layout.accumulation) == (4, 8)
    printed = training_case(row(**cells, mbs=1)).layout
    assert (printed.micro_batch, printed.accumulation) == (1, 32)


def phase_of(case, phase):
    """Terms of a phase by name."""
    return {term.name: term.value for term in job_memory(case.job, case.layout).phases[phase]}


ADAPTED = {"framework": "hf trainer", "adapter": "lora", "shard": "none", "seq": 2048, "lora_rank": 64, "mbs": 1}


def test_trained_ends_are_copies_in_16_bits():
    """Weights, gradients and two moments of 2 B each, and half as much for the step as 32 bits would take."""
    plain, ends = (phase_of(training_case(row(**ADAPTED, also_held=held)), "optimizer step") for held in ("", "ends"))
    both = 2 * 32000 * 4096
    for term, each in {"weights": 2, "gradients": 2, "optimizer": 4, "optimizer step": 2}.items():
        assert ends[term] - plain[term] == pytest.approx(each * both), term


def test_notes_say_what_is_held_where_no_column_does():
    assert training_case(row(**ADAPTED, notes="LoRA (emb)")).job.adapter.trains_ends
    assert not training_case(row(**ADAPTED, notes="LoRA (emb)", also_held="none")).job.adapter.trains_ends
    second = {**ADAPTED, "framework": "litgpt", "adapter": "adapter"}
    assert training_case(row(**second, notes="adapter_v2")).job.adapter.scaled_outputs
    assert not training_case(row(**second)).job.adapter.scaled_outputs


def test_temporaries_of_adapters_stay_in_small_segments():
    case = training_case(row(**ADAPTED))
    weights = phase_of(case, "loss")["weights"]  # 4 B per parameter, as the step's list of square roots
    assert phase_of(case, "loss")["cached by the allocator"] == pytest.approx(weights)
    assert phase_of(case, "loss")["16-bit copies"] == pytest.approx(weights / 2)
    assert "cached by the allocator" not in phase_of(case, "optimizer step")
    allocated = replace(case, job=replace(case.job, reserved=False))
    assert "cached by the allocator" not in phase_of(allocated, "loss")


def test_adam_of_torch_2_0_makes_two_lists():
    old, new = (training_case(row(**ADAPTED, stack_version=year)).job.profile for year in ("2023", "2024"))
    assert (old.step_bytes, new.step_bytes) == (8.0, 4.0)


def test_a_shifted_copy_of_narrow_logits_is_reserved():
    per_logit = {}
    for model in ("Qwen-7B", "Llama-2-7B"):
        for reserved in (True, False):
            case = training_case(row(**{**ADAPTED, "model": model, "logits_kernel": "full"}))
            loss = phase_of(replace(case, job=replace(case.job, reserved=reserved)), "loss")
            per_logit[model, reserved] = loss["logits and loss"] / (2048 * case.job.architecture.vocab_size)
    assert list(per_logit.values()) == [16, 14, 14, 14]
    under_zero = {**ADAPTED, "model": "Qwen-7B", "logits_kernel": "full", "shard": "zero2", "gpus": 4}
    profile = training_case(row(**under_zero)).job.profile
    assert (profile.name, profile.freed_logits) == ("deepspeed", 2)


def test_a_step_in_the_backward_pass_has_one_gradient():
    cells = {
        "framework": "torchtune", "kind": "sft", "adapter": "full", "shard": "none", "seq": 2048, "mbs": 1,
        "recompute": "full", "parameter_dtype": "bf16", "gradient_dtype": "none", "optimizer_dtype": "bf16",
        "master_dtype": "none",
    }  # fmt: skip
    embedding = 2 * 32000 * 4096
    waiting = {}
    for tied in (0, 1):
        case = training_case(row(**cells, tied_embeddings=tied))
        waiting |= {(tied, at): phase_of(case, at)["unreduced gradients"] for at in ("backward", "end of backward")}
    assert [value / embedding for value in waiting.values()] == [1, 1, 1, 2]
    usual = training_case(row(**{**cells, "gradient_dtype": "bf16"}))
    assert "unreduced gradients" not in phase_of(usual, "backward")


def test_a_pipeline_makes_reduction_buffers_alone_too():
    cells = {**BLOOM, "dtype": "fp16", "shard": "zero1", "pp": 10, "layers": 80, "gbs": 64}
    buckets = [
        phase_of(training_case(row(**{**cells, "dp": data, "gpus": 40 * data})), "backward")["communication buckets"]
        for data in (1, 2)
    ]
    assert buckets == [2e9, 4e9]


def test_a_bound_is_no_peak():
    """A need below it agrees and teaches nothing; one above it is off by what it is above."""
    small, large = (
        training_case(row(metric="peak_mem_gb_upper", value=value, adapter="lora")) for value in (48.0, 2.0)
    )
    constants = TrainingMemoryConstants()
    prepared = TRAINING_MEMORY.prepare([small, large])
    need = TRAINING_MEMORY.predict(prepared, constants)
    assert TRAINING_MEMORY.taught(prepared, constants) == pytest.approx([48.0, need[1]])
    assert small.most_bytes == float("inf")
    bound = row(metric="peak_mem_gb_upper", value=48.0)
    assert [bound.error_of(predicted) for predicted in (40.0, 60.0)] == [0.0, 0.25]


def test_the_scripts_of_qlora_page_their_moments():
    """`qlora.py`: rank 64, no dropout, adapters in 16 bits, paged_adamw_32bit; 65B fitted into 48 GB."""
    case = training_case(row(framework="qlora 2023", adapter="qlora", model="LLaMA-65B", dtype="nf4"))
    assert (case.job.adapter.rank, case.job.adapter.dropout) == (64, False)
    assert (case.job.precision.parameter_bytes, case.job.precision.optimizer_bytes) == (2, 0)


def test_new_weights_gathered_as_lists_are_needed():
    """BF16_Optimizer has gradients of two types beside them when it steps: BLOOM's 184B on TP 4 and PP 6 ran out of
    memory at every micro-batch, though its backward pass would have fitted."""
    cells = {
        "framework": "megatron-deepspeed 2022", "kind": "pretrain", "adapter": "full", "model": "BLOOM-proto-184B",
        "params_b": None, "hidden": 12288, "layers": 100, "heads": 64, "ffn": None, "vocab": 250_000, "seq": 2048,
        "gpus": 384, "tp": 4, "pp": 6, "dp": 16, "shard": "zero1", "mbs": 1, "gbs": 2048, "recompute": "full",
        "dtype": "bf16", "parameter_dtype": "bf16", "gradient_dtype": "fp32", "tied_embeddings": 1,
    }  # fmt: skip
    verdicts = [out_of_memory(row(metric="oom", **(cells | more))) for more in ({}, {"mbs": 2}, {"tp": 8, "dp": 8})]
    assert [verdict.fits_probability > 0.5 for verdict in verdicts] == [False, False, True]
    step = phase_of(training_case(row(metric="oom", **cells)), "optimizer step")
    assert step["gathered new weights"] == step["16-bit gradients"] == step["weights"]


def test_zero_3_of_deepspeed_has_one_bucket_and_one_gradient():
    """Its own `reduce_bucket_size` is 5e8, a trainer's `auto` next to nothing. Beside it waits the largest tensor."""
    cells = {"kind": "sft", "adapter": "full", "gpus": 8, "shard": "zero3", "recompute": "full", "vocab": 128256}
    for framework, buckets in (("hf deepspeed", 2 * 5e8), ("hf trainer", 0)):
        terms = phase_of(training_case(row(framework=framework, params_b=None, **cells)), "backward")
        assert terms.get("communication buckets", 0) == buckets
        assert terms["unreduced gradients"] == 2 * 128256 * 4096


def test_hybrid_sharding_holds_a_copy_per_node():
    cells = {"framework": "FSDP", "kind": "pretrain", "adapter": "full", "gpus": 64, "gpus_per_node": 8}
    weights = [phase_of(training_case(row(shard=shard, **cells)), "backward")["weights"] for shard in ("hsdp", "fsdp2")]
    assert weights[0] == 8 * weights[1] == pytest.approx(4 * 6.738e9 / 8, rel=1e-3)


def test_logits_of_megatron_have_one_copy_in_32_bits():
    """`_VocabParallelCrossEntropy` makes the softmax and the gradient of its logits where their copy is."""
    cells = {"framework": "Megatron-LM", "kind": "pretrain", "adapter": "full", "seq": 2048, "tp": 8, "gpus": 8}
    losses = [
        phase_of(training_case(row(logits_kernel=kernel, **cells)), "loss")["logits and loss"]
        for kernel in ("full", "fused")
    ]
    assert losses == [8 * 2048 * 32000 / 8] * 2


def test_log_probabilities_of_verl_overwrite_their_logits():
    """`logprobs_from_logits(inplace_backward=True)` after `logits_rmpad.div_(temperature)`: 2 + 2 bytes a logit."""
    cells = {"kind": "grpo", "adapter": "full", "gpus": 8, "shard": "zero3", "seq": 2048, "logits_kernel": "full"}
    losses = [
        phase_of(training_case(row(framework=framework, **cells)), "loss")["logits and loss"]
        for framework in ("verl", "NeMo-RL")
    ]
    assert losses == [4 * 2048 * 32000, 14 * 2048 * 32000]


def test_adapters_have_the_type_of_their_gradients():
    """Autograd gives a weight a gradient of its own type; Megatron's buffer of gradients goes with a master copy."""
    cells = {"adapter": "lora", "optimizer_dtype": "fp32", "parameter_dtype": "bf16"}
    sizes = [
        training_case(row(framework=name, gradient_dtype=gradient, master_dtype=master, **cells)).job.precision
        for name, gradient, master in (
            ("TRL", "bf16", "none"),
            ("TRL", "fp32", "none"),
            ("Megatron-LM", "fp32", "fp32"),
        )
    ]
    assert [size.parameter_bytes for size in sizes] == [2, 4, 2]


def test_the_longest_answer_decides_over_memory():
    """Of hundreds of answers some reach the limit, and a micro-batch holds them whole."""
    answers = {"framework": "verl", "kind": "grpo", "adapter": "full", "gpus": 8, "isl": 500, "osl": 1000}
    lengths = [training_case(row(response_tokens_cap=cap, **answers)).job.seq_len for cap in (8000.0, None)]
    assert lengths == [8500, 1500]
