"""Devices, models and runs as other sources name them: read as what they are, never as something far off."""

import math
from typing import Any

import pytest

from charter.physics.shapes import count_parameters
from charter.validation.quantities.run_total import tokens_of
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal, kind_of
from charter.validation.rows.metrics import algorithm_of
from charter.validation.validate import validate


def row(**cells: Any) -> Measurement:
    return Measurement(**{"id": "ZZZ-1", "metric": "step_time_s", "value": 1.0, "dtype": "bf16"} | cells)


def one(**cells: Any) -> float:
    verdict = validate([row(**cells)])[0]
    assert verdict.refused is None
    return float(verdict.predicted or 0.0)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("A100-80G", "A100-SXM-80GB"),
        ("V100 32G", "V100-SXM2-32GB"),
        ("8*A100 80GB", "A100-SXM-80GB"),
        ("DGX H100", "H100-SXM-80GB"),
        ("HPU Gaudi2", "Gaudi2-96GB"),
        ("v5p-512", "TPU-v5p"),
        ("v5litepod-256", "TPU-v5e"),
        ("v4-512", "TPU-v4"),
        ("p4d.24xlarge", "A100-SXM-40GB"),
        ("p5.48xlarge", "H100-SXM-80GB"),
        ("RTX 4090D", "RTX4090"),
        ("GPU 24GB", "RTX3090"),
        ("Cloud TPU v3", "TPU-v3"),
    ],
)
def test_devices_by_the_names_of_clouds_and_systems(printed: str, name: str) -> None:
    assert accelerator_of(row(gpu=printed)).name == name


@pytest.mark.parametrize(
    ("known", "others"),
    [
        ("TPU-v6e", ("Trillium", "v6e-8", "TPU v6e")),
        ("TPU7x", ("Ironwood",)),
        ("TPU-v5e", ("v5litepod-8",)),
        ("A100-SXM-40GB", ("p4d.24xlarge",)),
    ],
)
@pytest.mark.parametrize("framework", ["HF Trainer", "Megatron-LM", ""])
def test_a_device_computes_as_fast_by_any_name(known: str, others: tuple[str, ...], framework: str) -> None:
    trained = {"model": "Llama-3.2-1B", "gpus": 1, "seq": 1024, "mbs": 4, "gbs": 16, "framework": framework}
    assert {one(gpu=gpu, **trained) for gpu in others} == {one(gpu=known, **trained)}


@pytest.mark.parametrize("kind", ["GSPO", "CISPO", "VAPO", "ReMax", "Dr. GRPO"])
def test_algorithms_of_reinforcement_by_their_names(kind: str) -> None:
    assert kind_of(kind) == "ppo"
    assert algorithm_of(row(framework=f"verl {kind}")) is algorithm_of(row(notes=kind))


@pytest.mark.parametrize(
    ("model", "params_b"), [("Phi-4-mini-instruct", 3.8), ("GPT-3 XL", 1.3), ("Phi-4", 14.7), ("Phi-4-reasoning", 14.7)]
)
def test_a_smaller_sibling_is_a_model_of_its_own(model: str, params_b: float) -> None:
    assert count_parameters(architecture_of(row(model=model))).total / 1e9 == pytest.approx(params_b, rel=0.03)


def test_a_sibling_nobody_knows_is_refused() -> None:
    with pytest.raises(Refusal, match="Phi-4-multimodal"):
        architecture_of(row(model="Phi-4-multimodal"))


@pytest.mark.parametrize("model", ["falcon-mamba-7b", "Zamba2-7B", "mamba2-2.7b"])
def test_mixers_in_a_name_leave_few_layers_with_a_cache(model: str) -> None:
    shape = architecture_of(row(model=model))
    assert shape.attention_layers < 0.15 * shape.num_layers < shape.state_space_layers


@pytest.mark.parametrize("model", ["RWKV-6-7B", "recurrentgemma-9b"])
def test_recurrent_layers_of_other_kinds_are_refused(model: str) -> None:
    with pytest.raises(Refusal, match="recurrent layers"):
        architecture_of(row(model=model))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("LLaMA-30B", 1.4e12),
        ("LLaMA 33B", 1.4e12),
        ("Llama-3-8B", 15e12),
        ("CodeLlama-34B", 5e11),
        ("Llama-2-7b-chat", 2e12),
        ("DeepSeek-R1-Distill-Qwen-32B", None),
    ],
)
def test_tokens_of_a_run_are_those_of_the_model_that_is_named(model: str, tokens: float | None) -> None:
    assert tokens_of(row(kind="run_total", metric="gpu_hours", model=model)) == tokens


SERVED: dict[str, Any] = {"kind": "inference", "model": "Llama-2-7B", "isl": 128, "osl": 128, "mbs": 1, "gpus": 1}
SERVED |= {"metric": "out_tokens_per_s", "framework": "llama.cpp", "dtype": "Q4_0"}


@pytest.mark.parametrize(("gpu", "bandwidth"), [("RTX 3060", 360e9), ("RTX 3090", 936e9), ("RTX 4090", 1008e9)])
def test_one_stream_of_llama_cpp_is_bound_by_memory_not_by_tiles(gpu: str, bandwidth: float) -> None:
    roof = bandwidth / (0.52 * 6.7e9)
    assert 0.3 * roof < one(**SERVED | {"gpu": gpu}) < roof


@pytest.mark.parametrize(
    ("gpu", "dtype", "least"), [("RTX 3090", "bf16", 0.65), ("A10G", "bf16", 0.65), ("A100", "fp32", 0.4)]
)
def test_one_stream_of_a_server_is_bound_by_memory_too(gpu: str, dtype: str, least: float) -> None:
    device = accelerator_of(row(gpu=gpu))
    roof = device.memory_bytes_per_second / ((4 if dtype == "fp32" else 2) * 6.7e9)
    served = SERVED | {"framework": "vLLM", "dtype": dtype, "isl": 16}
    assert least * roof < one(**served | {"gpu": gpu}) < roof


def test_a_prompt_without_answer_measures_the_reading_of_prompts() -> None:
    reading = SERVED | {"gpu": "RTX 4090", "isl": 512, "osl": 0, "metric": "tokens_per_s"}
    assert one(**reading) > 1000


DEEPSEEK: dict[str, Any] = {"kind": "inference", "model": "DeepSeek-R1", "isl": 1024, "osl": 1024, "dtype": "fp8"}
DEEPSEEK |= {"metric": "tokens_per_s_per_gpu", "framework": "SGLang"}


def test_experts_spread_over_data_parallel_ranks_fit_and_serve_many_sequences() -> None:
    spread = one(**DEEPSEEK | {"gpu": "H100", "gpus": 96, "ep": 96, "dp": 96})
    together = one(**DEEPSEEK | {"gpu": "H200", "gpus": 8, "tp": 8})
    apart = one(**DEEPSEEK | {"gpu": "H200", "gpus": 8, "tp": 8, "notes": "DP attention"})
    assert 0.2 * together < spread
    assert apart > together


@pytest.mark.parametrize(
    "metric", ["median_ttft_ms", "p99_tpot_ms", "inter_token_latency_ms", "time_to_first_token_ms"]
)
def test_latencies_by_their_other_names(metric: str) -> None:
    usual = "ttft_ms" if "first" in metric or "ttft" in metric else "tpot_ms"
    served = SERVED | {"gpu": "A100", "framework": "vLLM"}
    assert one(**served | {"metric": metric}) == one(**served | {"metric": usual})


@pytest.mark.parametrize("gpu", ["RTX 4090", "A100-80GB", "H100"])
@pytest.mark.parametrize("framework", ["torchtitan", "HF Trainer", "Megatron-LM", "DeepSpeed ALST"])
def test_a_need_beyond_the_device_is_said_and_not_cut(gpu: str, framework: str) -> None:
    tuned = {"kind": "sft", "model": "Llama 3.1 8B", "gpu": gpu, "gpus": 8, "seq": 65536, "mbs": 2}
    peak = one(**tuned, framework=framework, metric="peak_mem_gib", recompute="none") * 2**30
    assert peak > accelerator_of(row(gpu=gpu)).memory_bytes
    assert one(**tuned, framework=framework, metric="oom", recompute="none") == 1.0


def test_titans_selective_policy_keeps_a_third() -> None:
    titan = {
        "kind": "pretrain",
        "model": "Llama 3.1 8B",
        "gpu": "H100",
        "gpus": 64,
        "framework": "torchtitan",
        "mbs": 1,
    }
    none, some, full = (
        one(**titan, seq=4096, metric="peak_mem_gib", recompute=policy) for policy in ("none", "selective op", "full")
    )
    assert none > some > full
    assert some - full == pytest.approx(0.35 * (none - full), rel=0.2)


@pytest.mark.parametrize("framework", ["Unsloth", "LLaMA-Factory", "axolotl"])
def test_stacks_that_ship_with_recomputation_use_it_where_nothing_is_said(framework: str) -> None:
    tuned = {"kind": "lora", "model": "Llama 3.1 8B", "gpu": "A100-80GB", "gpus": 1, "seq": 2048, "mbs": 2}
    assert one(**tuned, framework=framework) == one(**tuned, framework=framework, recompute="full")


def test_a_trainer_with_an_engine_named_beside_it_generates_with_the_engine() -> None:
    learnt = {
        "kind": "ppo",
        "model": "Qwen2.5-7B",
        "gpu": "H100",
        "gpus": 8,
        "samples_per_step": 512,
        "isl": 256,
        "osl": 1024,
    }
    slow, fast = (
        one(**learnt, framework=framework, metric="ppo_generate_time_s")
        for framework in ("PyTorch FSDP", "PyTorch FSDP + vLLM")
    )
    assert fast < slow
    assert math.isfinite(fast)


def test_one_replica_of_a_sharded_group_is_no_tensor_parallelism() -> None:
    wide = {"kind": "pretrain", "model": "Llama 3.1 8B", "gpu": "H100", "gpus": 512, "seq": 8192, "mbs": 1}
    sharded = wide | {"framework": "torchtitan", "shard": "fsdp", "metric": "tokens_per_s_per_gpu"}
    assert one(**sharded, dp=1) == one(**sharded)


def test_a_need_of_answering_beyond_the_device_is_not_cut() -> None:
    long = SERVED | {"framework": "transformers", "gpu": "A100-80GB", "isl": 32768, "osl": 2048, "mbs": 512}
    peak = one(**long | {"metric": "peak_mem_gib", "dtype": "bf16"}) * 2**30
    assert peak > accelerator_of(row(gpu="A100-80GB")).memory_bytes


@pytest.mark.parametrize("framework", ["verl", "OpenRLHF", "NeMo RL", "TRL"])
def test_phases_of_a_step_add_up_to_it(framework: str) -> None:
    learnt: dict[str, Any] = {"kind": "grpo", "model": "Qwen2.5-7B", "gpu": "H100", "gpus": 8, "samples_per_step": 512}
    learnt |= {"isl": 256, "osl": 1024, "framework": framework}
    phases = [one(**learnt, metric=f"ppo_{phase}_time_s") for phase in ("generate", "train", "other")]
    assert sum(phases) == pytest.approx(one(**learnt, metric="step_time_s"), rel=1e-3)


def test_a_run_that_states_its_samples_is_no_pretraining() -> None:
    run: dict[str, Any] = {"kind": "run_total", "metric": "gpu_hours", "model": "Qwen2.5-7B", "gpu": "H100", "gpus": 8}
    samples, tokens = (
        one(**run, notes=notes) for notes in ("52k samples, 2 epochs, batch of 128 sequences", "53M tokens")
    )
    assert samples == pytest.approx(tokens, rel=0.05)
    whole = one(**run)
    assert whole > 1000 * samples
    assert one(**run, notes="batch of 1024 sequences, 8 samples per device") == whole
