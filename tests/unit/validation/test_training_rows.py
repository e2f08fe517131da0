"""Rows of measured training steps as configurations: every gap filled, every framework with a profile."""

from dataclasses import replace

import pytest

from charter.physics.fitted import Fitted, bundled
from charter.physics.matrix_products import ProductColumns
from charter.physics.stacks import PROFILES
from charter.spec.layout import Recompute, ZeroStage
from charter.validation.quantities.memory_cases import training_case as memory_case
from charter.validation.quantities.rl_setting import printed_layout, rl_setting
from charter.validation.quantities.training_time import TRAINING_TIME, recompute_of, training_case
from charter.validation.rows.accelerator import node_network, scaleup_domain
from charter.validation.rows.measurement import Measurement
from charter.validation.score import cases_of, predict
from charter.validation.stacks import stack_name

LLAMA = {"model": "Llama-3.1-8B", "seq": 4096, "gpu": "H100", "gpus": 8}


def row(**columns) -> Measurement:
    return Measurement(id="ZZZ-1", **{"metric": "step_time_s", "value": 1.0, **LLAMA, **columns})


@pytest.mark.parametrize(
    ("framework", "profile"),
    [
        ("Megatron-LM 2020", "megatron-2020"),
        ("Megatron-LM Jan-2021", "megatron-2021"),
        ("Megatron-LM 2022", "megatron-2022"),
        ("Megatron-DeepSpeed 2021", "megatron-deepspeed"),
        ("GPT-NeoX", "megatron-deepspeed"),
        ("Megatron-Core r0.8", "megatron-core"),
        ("megatron-lm core_r0.8", "megatron-core"),
        ("NeMo 24.07", "nemo"),
        ("Megatron-Bridge 25.11", "megatron-bridge"),
        ("Megatron-Bridge 26.06.01", "megatron-bridge-2026"),
        ("Composer/PyTorch FSDP", "composer"),
        ("PyTorch FSDP", "fsdp"),
        ("torchtitan", "torchtitan"),
        ("nanotron", "nanotron"),
        ("YaFSDP", "yafsdp"),
        ("MaxText", "maxtext"),
        ("HF Trainer + DeepSpeed", "huggingface"),
        ("TRL + PEFT", "huggingface"),
        ("axolotl", "huggingface"),
        ("LLaMA-Factory", "huggingface"),
        ("torchtune", "torchtitan"),
        ("Unsloth", "unsloth"),
        ("DeepSpeed-Chat 2023-04", "deepspeed-zero"),
        ("OpenRLHF", "deepspeed-zero"),
        ("LitGPT", "litgpt"),
        ("charter native (HF + torch 2.13)", "native"),
        ("something of our own", "generic"),
        ("", "generic"),
    ],
)
def test_every_framework_has_a_profile(framework, profile):
    assert stack_name(framework, gpu="H100", dtype="bf16") == profile
    assert profile in PROFILES


def test_every_family_with_fitted_constants_is_that_of_a_profile():
    fitted = bundled().quantities[TRAINING_TIME.name].fitted.stacks
    assert set(fitted) <= {profile.family for profile in PROFILES.values()}
    assert {"megatron-classic", "megatron-recent", "fsdp", "huggingface"} <= set(fitted)


def test_megatron_without_a_release_is_dated_by_its_device_and_format():
    assert stack_name("Megatron-LM", gpu="A100-SXM-80GB", dtype="fp16") == "megatron-2022"
    assert stack_name("Megatron-LM", gpu="B200", dtype="bf16") == "megatron-lm"
    assert training_case(row(framework="", tp=8, pp=1)).profile.name == "megatron-lm"


def test_blank_degrees_multiply_to_the_accelerators():
    case = training_case(row(gpus=64, tp=4, pp=2, gbs=128, framework="NeMo 24.07"))
    layout = case.layout
    assert (layout.data, layout.zero, layout.sequence_parallel) == (8, ZeroStage.OPTIMIZER, True)
    assert layout.interleave > 1
    assert layout.micro_batch * layout.accumulation * layout.data == 128
    nameless = training_case(row(model="Llama-3.1-70B", gpus=64, gbs=128, framework="Megatron-LM")).layout
    assert nameless.tensor * nameless.pipeline > 1
    assert nameless.num_accelerators == 64


def test_stacks_have_their_habits_of_sharding():
    def zero(**columns) -> ZeroStage:
        return training_case(row(**columns)).layout.zero

    assert zero(framework="HF Trainer + DeepSpeed", adapter="full", kind="sft") is ZeroStage.PARAMETERS
    assert zero(framework="HF Trainer + DeepSpeed", adapter="lora", kind="lora") is ZeroStage.GRADIENTS
    assert zero(framework="HF Trainer", gpus=1) is ZeroStage.NONE
    assert zero(framework="Megatron-LM 2021", dtype="fp16") is ZeroStage.NONE
    assert zero(shard="fsdp-full_shard") is ZeroStage.PARAMETERS
    assert zero(shard="distributed optimizer (ZeRO-1)") is ZeroStage.OPTIMIZER
    assert zero(shard="distopt") is ZeroStage.OPTIMIZER
    assert zero(shard="none") is ZeroStage.NONE


def test_recomputation_is_read_from_policies_as_printed():
    assert recompute_of("none", "fsdp") == (Recompute.NONE, 0.0, 1.0)
    assert recompute_of("selective+sp", "megatron-2022")[0] is Recompute.SELECTIVE
    assert recompute_of("full", "fsdp") == (Recompute.FULL, 0.0, 1.0)
    assert recompute_of("selective 2", "torchtitan") == (Recompute.FULL, 0.0, 0.5)
    assert recompute_of("gradient checkpointing", "huggingface")[0] is Recompute.FULL
    assert recompute_of("mlp,moe_act", "megatron-bridge")[1] > 0
    assert recompute_of("partial", "maxtext")[2] > recompute_of("partial", "fsdp")[2] == 0.5


def test_a_blank_policy_recomputes_where_nothing_else_fits():
    small = training_case(row(mbs=1, gbs=8, framework="FSDP", shard="fsdp", flash=1))
    large = training_case(row(mbs=8, gbs=64, framework="FSDP", shard="fsdp", flash=1))
    assert small.layout.recompute is Recompute.NONE
    assert large.layout.recompute is Recompute.FULL


@pytest.mark.parametrize(
    ("framework", "version", "early"),
    [
        ("hf trainer", "2023", 0.0), ("hf trainer", "2026", 1.0), ("hf trainer", "", 1.0), ("torchtitan", "", 1.0),
        ("torchtitan", "20.23", 1.0), ("Megatron-Core", "", 0.0), ("Composer/PyTorch FSDP", "", 0.0),
    ],
)  # fmt: skip
def test_recomputation_ends_early_since_torch_2_1(framework, version, early):
    assert training_case(row(framework=framework, stack_version=version)).profile.stops_early == early


def test_formats_and_adapters_are_read_from_their_spellings():
    assert training_case(row(dtype="MXFP8")).block_scaled
    assert training_case(row(dtype="float8")).bits == 8
    assert training_case(row(dtype="NVFP4")).bits == 4
    assert training_case(row(dtype="bf16/PURE")).profile.gradient_bytes == 2
    quantised = training_case(row(kind="lora", adapter="lora", dtype="nf4", lora_rank=8))
    assert (quantised.bits, quantised.base_bits, quantised.adapter_rank, quantised.frozen) == (16, 4, 8, True)


def test_real_tokens_count_where_batches_are_padded_to_their_longest():
    case = training_case(row(kind="sft", seq=2048, mean_len=300.0, mbs=4, gbs=32, framework="HF Trainer"))
    assert 300 < case.seq < 2048
    assert case.tokens == 300 * 32
    assert training_case(row(kind="pretrain", seq=2048, mean_len=300.0, mbs=4, gbs=32)).seq == 2048


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [
        ("4x100Gbps Omni-Path per node", 50),
        ("8x400Gb IB", 400),
        ("1600Gbps RoCE per node", 200),
        ("8x200Gbps HDR IB per node (Selene)", 200),
        ("3.2 Tbps InfiniBand", 400),
        ("NDR", 400),
        ("400 Gb/s per GPU", 400),
        ("400Gbps/GPU RDMA", 400),
        ("200 Gbit/s per accelerator", 200),
        ("NVLink 900GB/s", None),
        ("", None),
    ],
)
def test_networks_are_read_as_printed(text, gigabytes):
    found = node_network(text, 8)
    assert found is None if gigabytes is None else found == pytest.approx(gigabytes * 1e9)


def test_domains_are_read_as_printed():
    assert scaleup_domain("NVL72", "GB200") == 72
    assert scaleup_domain("PCIe", "A100") == 1
    assert scaleup_domain("", "H100") is None


def test_a_row_without_a_sequence_length_takes_a_usual_one():
    assert training_case(replace(row(), seq=None)).seq == 4096
    assert training_case(replace(row(), kind="sft", seq=None, isl=300, osl=200)).seq == 500


def test_every_metric_is_predicted_in_its_unit():
    rows = [
        row(metric=metric, gpus=8, gbs=8, mbs=1)
        for metric in ("step_time_s", "tokens_per_s_per_gpu", "tokens_per_s_total")
    ]
    cases, refused = cases_of(TRAINING_TIME, rows)
    seconds, each, total = predict(TRAINING_TIME, cases, Fitted())
    assert not refused
    assert total == pytest.approx(8 * 4096 / seconds)
    assert each == pytest.approx(total / 8)


def test_an_unseen_stack_on_an_unseen_device_is_never_absurd():
    """Utilisation of what the device could do stays between 3 and 75 per cent, whatever is left blank."""
    for gpu in ("H200", "MI300X", "TPU v5e", "TPU v5p", "TPU v6e", "A10G", "RTX 4090", "V100", "Gaudi2", "L4", "B200"):
        for framework in ("torchtitan", "MaxText", "NeMo", "DeepSpeed", "Unsloth", "HF Trainer", "unheard of"):
            for gpus in (1, 8, 512):
                cases, refused = cases_of(
                    TRAINING_TIME,
                    [row(gpu=gpu, framework=framework, gpus=gpus, metric="tokens_per_s_per_gpu", seq=2048)],
                )
                assert not refused
                rate = float(predict(TRAINING_TIME, cases, Fitted())[0])
                share = 6 * 8e9 * rate / cases[0].case.accelerator.peak_flops_per_second("bf16")
                assert 0.03 < share < 0.75, (gpu, framework, gpus, share)


def test_nanotron_hides_no_reduction_under_zero_1():
    hidden = {
        shard: training_case(row(framework="nanotron", dp=8, shard=shard)).profile.data_hidden
        for shard in ("none", "zero1")
    }
    assert hidden == {"none": 1.0, "zero1": 0.0}


@pytest.mark.parametrize(
    ("shard", "stage"),
    [
        ("distributed data parallel", ZeroStage.NONE),
        ("ZeRO++", ZeroStage.PARAMETERS),
        ("zero-stage 2", ZeroStage.GRADIENTS),
        ("optimizer states sharded", ZeroStage.OPTIMIZER),
    ],
)
def test_time_memory_and_rl_read_one_stage(shard, stage):
    printed = row(shard=shard, dp=8, tp=1, pp=1, mbs=1, gbs=64, framework="DeepSpeed", kind="sft")
    of_memory = memory_case(replace(printed, metric="peak_mem_gib")).layout.zero
    assert training_case(printed).layout.zero == of_memory == printed_layout(printed, 8, 64.0).zero == stage


def test_a_blank_batch_is_a_usual_number_of_prompts():
    step = replace(row(kind="ppo", framework="verl", mean_len=1000), metric="ppo_step_time_s")
    assert rl_setting(replace(step, n_generations=16)).samples == 16 * rl_setting(step).samples


def test_embeddings_beside_adapters_are_trained_too() -> None:
    """Of the output projection a third product, and Adam on both ends, as where everything is trained."""
    notes = {"LoRA": False, "LoRA (emb)": True}
    jobs = [row(kind="lora", adapter="lora", model="Qwen-1.8B", notes=note) for note in notes]
    cases = [training_case(job) for job in jobs]
    assert [case.trains_ends for case in cases] == list(notes.values())
    work = TRAINING_TIME.prepare(cases).work
    assert work.head_flops[2][0] == 0
    assert work.head_flops[2][1] == pytest.approx(work.head_flops[0][1], rel=0.1)  # another shape, other waves
    ends = float(ProductColumns.of(cases[0].architecture).end_parameters)
    assert work.trained[1] - work.trained[0] == pytest.approx(ends)
    assert not training_case(replace(jobs[1], adapter="full", kind="sft")).trains_ends
