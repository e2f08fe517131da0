"""Rows as other sources would print them: nothing crashes, few are refused, and predictions stay plausible."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from charter.physics.flops import training_flops_per_token
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, settled
from charter.validation.validate import RowVerdict, validate

MODELS = ("Llama-2-7B", "Qwen3-30B-A3B", "DeepSeek-V3")
STACKS = ("torchtitan", "MaxText", "DeepSpeed ZeRO++", "YaFSDP", "LLaMA-Factory", "Unsloth", "torchtune", "")
DEVICES = ("8x H100 SXM5 80GB", "A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "TPU v5p-128", "L40S", "MI300X")
TRAINING = ("step_time_s", "tokens_per_s", "samples_per_s", "peak_mem_gb", "peak_mem_mib", "gpu_hours", "wall_minutes")
RL = ("step_time_s", "ppo_generate_time_s", "ppo_actor_train_time_s", "ppo_score_time_s", "out_tokens_per_s", "oom")
SERVING = ("out_tokens_per_s", "requests_per_s", "ttft_ms", "tpot_ms", "e2e_latency_s", "tokens_per_s_per_user", "oom")


def row(**cells: Any) -> Measurement:
    return Measurement(**{"id": "ZZZ-1", "metric": "step_time_s", "value": 1.0, "dtype": "bf16"} | cells)


def predicted(*rows: Measurement) -> list[float]:
    verdicts = validate(rows)
    assert [verdict.refused for verdict in verdicts] == [None] * len(rows)
    return [float(verdict.predicted or 0.0) for verdict in verdicts]


def one(**cells: Any) -> float:
    return predicted(row(**cells))[0]


TUNING: dict[str, Any] = {
    "kind": "sft",
    "model": "Llama 3.1 8B",
    "gpu": "H100",
    "gpus": 8,
    "framework": "torchtune",
    "shard": "fsdp",
    "mbs": 2,
    "gbs": 32,
    "recompute": "full",
    "seq": 2048,
    "metric": "tokens_per_s_per_gpu",
}
PPO: dict[str, Any] = {"kind": "ppo", "model": "Qwen2.5-7B", "gpu": "H100", "gpus": 16, "framework": "OpenRLHF"}
PPO |= {"samples_per_step": 1024, "isl": 256, "osl": 1024}
SERVED: dict[str, Any] = {"kind": "inference", "model": "Llama-2-7B", "gpu": "A100-SXM-80GB", "gpus": 1, "mbs": 8}
SERVED |= {"isl": 512, "osl": 128, "framework": "vLLM"}


def test_few_rows_of_unseen_sources_are_refused_and_none_is_absurd() -> None:
    notes = "1.0B tokens, 1 epoch"
    made: list[Measurement] = []
    for model, device, stack in product(MODELS, DEVICES, STACKS):
        named = {"model": model, "gpu": device, "framework": stack, "notes": notes}
        kinds = ("pretrain", "sft", "lora", "rm")
        i = len(made) // 2
        made += [
            row(kind=kinds[(i + j) % 4], metric=TRAINING[(i + j) % 7], gpus=16, gbs=48 if j % 2 else None, **named)
            for j in range(2)
        ]
    for model, metric in product(MODELS, RL):
        made += [row(kind="GRPO", model=model, gpu="H100", gpus=64, framework="verl", metric=metric)]
    for model, metric, device in product(MODELS, SERVING, DEVICES):
        made += [row(kind="inference", model=model, gpu=device, framework="vLLM", metric=metric)]
    verdicts = validate(made)
    assert sum(verdict.refused is not None for verdict in verdicts) < 0.02 * len(made)
    assert all(_is_sensible(verdict) for verdict in verdicts if verdict.refused is None)


def _is_sensible(verdict: RowVerdict) -> bool:
    if isinstance(verdict.predicted, bool):
        return True
    low, middle, high = verdict.p10, verdict.predicted, verdict.p90
    return low is not None and middle is not None and high is not None and 0 < low <= middle <= high < 1e12


@pytest.mark.parametrize("model", ["Llama 3.1 8B", "Llama 3.1 70B", "Qwen3-235B-A22B"])
@pytest.mark.parametrize("framework", ["torchtitan", "Megatron-Bridge", "MaxText"])
def test_training_uses_a_plausible_share_of_the_peak(model: str, framework: str) -> None:
    made = row(
        kind="pretrain", model=model, framework=framework, gpu="H100", gpus=256, seq=8192, metric="tokens_per_s_per_gpu"
    )
    flops = training_flops_per_token(architecture_of(made), 8192)
    assert 0.02 < predicted(made)[0] * flops / accelerator_of(made).peak_flops_per_second("bf16") < 0.75


def test_other_names_of_metrics_measure_the_same() -> None:
    step = one(**TUNING | {"metric": "step_time_s"})
    assert one(**TUNING | {"metric": "step_time_ms", "unit": "ms"}) == pytest.approx(1e3 * step)
    assert one(**TUNING | {"metric": "samples_per_s"}) == pytest.approx(32 / step)
    assert one(**TUNING | {"metric": "tokens_per_s"}) == pytest.approx(32 * 2048 / step)
    assert one(**TUNING | {"metric": "steps_per_s"}) == pytest.approx(1 / step)
    whole = one(**SERVED | {"metric": "e2e_latency_s"})
    assert one(**SERVED | {"metric": "requests_per_s"}) == pytest.approx(8 / whole)
    assert one(**SERVED | {"metric": "tokens_per_s_per_user"}) == pytest.approx(128 / whole)
    assert one(**SERVED | {"metric": "prefill_tokens_per_s"}) == pytest.approx(
        8 * 512 / one(**SERVED | {"metric": "ttft_s"})
    )
    run = {"kind": "sft", "model": "Llama-2-7B", "gpu": "H100", "gpus": 8, "notes": "100k samples"}
    assert one(**run, metric="wall_minutes") == pytest.approx(60 * one(**run, metric="wall_hours"))


def test_mebibytes_are_read_as_such() -> None:
    assert one(**TUNING | {"metric": "peak_mem_mib"}) == pytest.approx(
        1024 * one(**TUNING | {"metric": "peak_mem_gib"})
    )


def test_spellings_of_the_same_setting_give_the_same_prediction() -> None:
    memory = TUNING | {"metric": "peak_mem_gb"}
    for same in (
        ("Full", "none", "full fine-tuning"),
        ("lora", "LoRA", "LoRA r=16"),
        ("qlora", "QLoRA", "QLoRA (nf4)"),
    ):
        assert len({one(**memory | {"adapter": spelt}) for spelt in same}) == 1
    assert (
        len({one(**memory | {"recompute": spelt}) for spelt in ("full", "yes", "GC", "on", "gradient checkpointing")})
        == 1
    )
    assert len({one(**memory | {"recompute": spelt}) for spelt in ("none", "no", "None (flash)")}) == 1
    assert one(**memory | {"offload": "cpu"}) == one(**memory | {"offload": "optimizer+params"})
    assert one(**memory | {"shard": "ZeRO-Offload"}) < one(**memory | {"shard": "zero2"})


def test_a_row_of_kind_lora_trains_adapters_in_a_whole_run() -> None:
    run = {"model": "Llama-2-7B", "gpu": "H100", "gpus": 8, "notes": "100k samples", "metric": "wall_hours"}
    assert one(kind="lora", **run) < one(kind="sft", **run)


def test_adapters_train_faster_than_everything_and_a_four_bit_base_slower() -> None:
    job = TUNING | {"mbs": 4, "recompute": "none"}
    full, lora, qlora = (one(**job | {"adapter": adapter}) for adapter in ("full", "lora", "qlora"))
    assert full < lora > qlora
    assert one(**job | {"adapter": "lora", "dtype": "int8"}) <= lora


def test_recomputation_and_offloading_slow_a_step_and_save_memory() -> None:
    for column, leaner in (("recompute", ("none", "full")), ("offload", ("none", "optimizer", "optimizer+params"))):
        rates = [one(**TUNING | {column: value}) for value in leaner]
        peaks = [one(**TUNING | {column: value, "metric": "peak_mem_gb"}) for value in leaner]
        assert rates == sorted(rates, reverse=True)
        assert peaks == sorted(peaks, reverse=True)


def test_pairs_cost_more_than_single_answers() -> None:
    step = TUNING | {"metric": "step_time_s", "framework": "TRL"}
    plain, compared, free = (one(**step | {"notes": notes}) for notes in ("", "DPO", "SimPO"))
    assert 1.5 * plain < free < compared < 4 * plain


def test_experts_of_a_megatron_job_without_a_layout_are_spread_over_its_replicas() -> None:
    rates = [
        one(kind="pretrain", framework="NeMo", model="Qwen3-30B-A3B", gpu="H100", gpus=gpus, gbs=8 * gpus, seq=4096,
            metric="tokens_per_s_per_gpu")
        for gpus in (8, 64)
    ]  # fmt: skip
    assert rates[0] > rates[1] > 2000


def test_zero_bubble_schedules_and_compressed_traffic_are_read_from_the_text() -> None:
    deep = {
        "kind": "pretrain",
        "model": "Llama-2-7B",
        "gpu": "A100",
        "gpus": 8,
        "pp": 8,
        "mbs": 1,
        "gbs": 16,
        "seq": 2048,
    }
    plain = row(framework="Megatron-LM 2021", **deep)
    bubble, none = predicted(plain, replace(plain, notes="ZB-1P schedule"))
    assert none < bubble
    wide = {
        "kind": "pretrain",
        "model": "Llama 3.1 70B",
        "gpu": "V100",
        "gpus": 256,
        "shard": "zero3",
        "mbs": 1,
        "seq": 2048,
    }
    gathered, compressed = predicted(
        row(framework="DeepSpeed", **wide), row(framework="DeepSpeed", notes="qwZ+qgZ", **wide)
    )
    assert compressed < gathered


def test_a_step_of_reinforcement_learning_is_no_shorter_than_its_parts() -> None:
    whole, *parts = (
        one(**PPO, metric=metric)
        for metric in ("step_time_s", "ppo_generate_time_s", "ppo_train_time_s", "ppo_score_time_s", "ppo_refit_time_s")
    )
    assert sum(parts) <= whole


@pytest.mark.parametrize("dtype", ["GPTQ", "W4A8", "W4A8KV4", "EXL2 4.0bpw", "AQLM 2-bit", "awq"])
def test_weights_of_few_bits_are_read_faster(dtype: str) -> None:
    served = SERVED | {"metric": "out_tokens_per_s", "mbs": 1}
    assert one(**served | {"dtype": dtype}) > 1.5 * one(**served)
    memory = SERVED | {"metric": "peak_mem_gb", "framework": "transformers"}
    assert one(**memory | {"dtype": dtype}) < 0.6 * one(**memory)


def test_llama_cpp_splits_layers_over_devices() -> None:
    served = SERVED | {"framework": "llama.cpp", "metric": "out_tokens_per_s", "mbs": 1, "dtype": "Q4_K_M"}
    assert one(**served | {"gpus": 4}) <= one(**served)


TYPED: dict[str, Any] = {
    "id": "NEW-1", "metric": "tokens_per_s_per_gpu", "value": 5000.0, "kind": "pretrain", "model": "Llama-2-7B",
    "gpus": 64, "seq": 4096, "mbs": 1, "gbs": 512, "stack": "megatron-lm", "accelerator": "A100-SXM-80GB",
    "compute_dtype": "bf16", "recompute_kind": "full", "shard_kind": "zero1", "attention_kernel": "flash2",
}  # fmt: skip


def width_and_knowledge(**changes: Any) -> tuple[float, str]:
    (verdict,) = validate([Measurement(**settled(TYPED | changes))])
    return verdict.p90 / verdict.p10, verdict.knowledge


def test_a_family_that_no_row_has_is_new_however_near() -> None:
    assert width_and_knowledge()[1] == "seen"
    for stack in ("axolotl", "something-new", "unknown"):
        assert width_and_knowledge(stack=stack)[1] == "unseen"
    # Never narrower; of today's rows both have the same width.
    assert width_and_knowledge(stack="axolotl")[0] >= width_and_knowledge()[0] * (1 - 1e-9)


def test_a_kind_of_device_that_no_row_has_widens_a_time():
    known, new = width_and_knowledge()[0], width_and_knowledge(accelerator="MI300X-192GB")[0]
    assert width_and_knowledge(accelerator="H800-SXM-80GB")[0] == pytest.approx(known)
    assert new > 1.1 * known
    # Stacks that nobody measured never have a narrower width; of today's rows both have the same one.
    assert width_and_knowledge(accelerator="MI300X-192GB", stack="axolotl")[0] >= new * (1 - 1e-9)


def test_a_device_hardly_changes_how_well_memory_is_known():
    memory = {"metric": "peak_mem_gib", "value": 60.0, "parameter_dtype": "bf16"}
    new = width_and_knowledge(**memory, accelerator="MI300X-192GB")
    assert new[0] == pytest.approx(width_and_knowledge(**memory)[0])


TYPED_TUNING: dict[str, Any] = TYPED | {"kind": "sft", "metric": "peak_mem_gib", "value": 20.0, "gpus": 8, "gbs": 64}
TYPED_TUNING |= {"stack": "hf-trainer", "accelerator": "H100-SXM-80GB", "shard_kind": "zero3"}


def tuned(**cells: Any) -> float:
    return predicted(Measurement(**settled(TYPED_TUNING | cells)))[0]


@pytest.mark.parametrize(("base", "bytes_each"), [("fp32", 4.0), ("fp8", 1.0), ("int8", 1.02), ("int4", 0.52)])
def test_a_frozen_base_is_as_large_as_typed(base: str, bytes_each: float) -> None:
    lora = {"kind": "lora", "adapter": "lora", "gpus": 1, "gbs": 1, "shard_kind": "none"}
    half, other = (tuned(**lora, parameter_dtype=each) for each in ("bf16", base))
    assert half - other == pytest.approx((2.0 - bytes_each) * 6.5e9 / 2**30, rel=0.06)


def test_activations_of_tf32_have_32_bits() -> None:
    assert tuned(compute_dtype="tf32") == tuned(compute_dtype="fp32") > 1.05 * tuned(compute_dtype="bf16")


def test_a_model_stands_whole_before_zero3_divides_it_alone() -> None:
    stage = {"gpus": 64, "offload": "optimizer", "model": "Llama-3.1-8B"}
    assert tuned(**stage, stack="deepspeed") == pytest.approx(2 * 8.03e9 / 2**30, rel=0.12)
    assert tuned(**stage, stack="hf-trainer") < 0.9 * tuned(**stage, stack="deepspeed")
    large = stage | {"model": "Llama-3.1-70B"}  # would not stand on one device, so it is divided as it is made
    buffer = 2 * 5e8 / 2**30  # of ZeRO-3's reductions, where no trainer sets it, and some slack
    assert tuned(**large, stack="deepspeed") - tuned(**large, stack="hf-trainer") == pytest.approx(buffer, rel=0.15)


def test_traffic_has_the_bytes_of_what_is_sent() -> None:
    rate = {"metric": "tokens_per_s_per_gpu", "gpus": 64, "interconnect": "25Gbps per node", "gbs": 64}
    for stack in ("megatron-lm", "megatron-deepspeed", "megatron-bridge"):
        job = rate | {"stack": stack, "shard_kind": "zero1", "recompute_kind": "full"}
        narrow, wide = (tuned(**job, gradient_dtype=each) for each in ("bf16", "fp32"))
        assert narrow / wide == pytest.approx((4 + 2) / (2 + 2), rel=0.05)
    sharded = rate | {"stack": "torchtitan", "shard_kind": "zero3"}
    ratio = tuned(**sharded, compute_dtype="bf16") / tuned(**sharded, compute_dtype="tf32")
    assert ratio == pytest.approx((2 * 4 + 4) / (2 * 2 + 4), rel=0.05)


def test_a_kind_that_names_its_algorithm_is_that_algorithm() -> None:
    rate = {"metric": "samples_per_s", "gbs": 64, "mbs": 1}
    assert 1.8 < tuned(**rate) / tuned(**rate, kind="orpo") < tuned(**rate) / tuned(**rate, kind="dpo") < 3.2
    reference = tuned(kind="dpo", shard_kind="zero1") - tuned(kind="orpo", shard_kind="zero1")
    assert reference == pytest.approx(2 * 6.74e9 / 2**30, rel=0.1)
    assert tuned(kind="dpo", gpus=64) - tuned(kind="orpo", gpus=64) < reference / 50


def test_an_algorithm_without_a_critic_holds_none() -> None:
    step = {"kind": "ppo", "stack": "verl", "prompt_tokens": 512, "response_tokens_mean": 1024, "samples_per_step": 512}
    for metric, most in (("peak_mem_gib", 0.8), ("step_time_s", 0.95)):
        assert tuned(**step | {"kind": "grpo"}, metric=metric) < most * tuned(**step, metric=metric)


@pytest.mark.parametrize("stack", ["hf-trainer", "litgpt", "maxtext", "torchtitan", "megatron-lm", "nanotron"])
def test_a_fused_loss_keeps_no_more_than_whole_logits(stack: str) -> None:
    chunked, fused, full = (
        tuned(stack=stack, model="Llama-3.1-8B", logits_kernel=each) for each in ("chunked", "fused", "full")
    )
    assert chunked <= fused <= full


TYPED_SERVED: dict[str, Any] = {"id": "ZZZ-1", "metric": "out_tokens_per_s", "value": 1.0, "kind": "inference"}
TYPED_SERVED |= {"stack": "tensorrt-llm", "model": "Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "gpus": 1, "tp": 1}
TYPED_SERVED |= {"prompt_tokens": 512, "response_tokens_mean": 128}


def served(computed: str, stored: str, **cells: Any) -> float:
    typed = {"compute_dtype": computed, "parameter_dtype": stored}
    return predicted(Measurement(**settled(TYPED_SERVED | typed | cells)))[0]


@pytest.mark.parametrize(
    ("computed", "stored", "bytes_each"),
    [("fp32", "fp32", 4), ("tf32", "fp32", 4), ("bf16", "bf16", 2), ("bf16", "fp8", 1), ("int8", "int8", 1)],
)
def test_one_stream_is_bound_by_the_bytes_of_its_weights(computed: str, stored: str, bytes_each: float) -> None:
    roof = 3.35e12 / (bytes_each * 8e9)
    assert 0.4 * roof < served(computed, stored, mbs=1, prompt_tokens=16) < roof


def test_products_of_integers_are_quicker_than_expanded_ones() -> None:
    wide = {"metric": "ttft_ms", "mbs": 1, "prompt_tokens": 8192}
    assert served("int8", "int8", **wide) < 0.8 * served("bf16", "bf16", **wide)
    assert served("bf16", "fp8", **wide) > served("bf16", "bf16", **wide) > 1.4 * served("fp8", "fp8", **wide)


@pytest.mark.parametrize("stored", ["nvfp4", "mxfp4"])
def test_four_bit_floats_are_products_where_a_device_has_them(stored: str) -> None:
    wide = {"metric": "ttft_ms", "mbs": 1, "prompt_tokens": 8192}
    assert served(stored, stored, **wide) > served("bf16", "bf16", **wide)
    blackwell = wide | {"accelerator": "B200-SXM-180GB"}
    assert served(stored, stored, **blackwell) < 0.8 * served("bf16", "bf16", **blackwell)


def test_a_dense_family_is_not_read_as_its_relative_of_experts() -> None:
    for name in ("OLMo-7B", "allenai/OLMo-2-1124-7B"):
        assert architecture_of(row(model=name)).mixture is None
    for name in ("OLMoE-7B", "DeepSeek 671B", "Qwen-30B"):
        assert architecture_of(row(model=name)).mixture is not None


def test_a_mixture_of_experts_has_its_width_however_it_is_told() -> None:
    named, dense = width_and_knowledge(model="Qwen3-30B-A3B"), width_and_knowledge(model="Qwen3-32B")
    assert named == width_and_knowledge(model="Qwen3-30B-A3B", n_experts=128, n_active_experts=8, expert_ffn=768)
    assert named[0] > dense[0]


def test_a_stack_known_by_dense_models_is_new_to_experts() -> None:
    trained = TUNING | {"kind": "pretrain", "seq": 4096, "gpus_per_node": 8, "stack": "torchtitan"}
    dense, experts = validate([row(**trained), row(**trained | {"model": "Qwen3-30B-A3B", "ep": 8})])
    measured = validate([row(**trained | {"model": "Qwen3-30B-A3B", "ep": 8, "stack": "megatron-bridge"})])[0]
    assert [verdict.knowledge for verdict in (dense, experts, measured)] == ["seen", "unseen", "seen"]
