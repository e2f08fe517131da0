"""Typed columns that a prediction reads: the attention kernel, the policy of recomputation, who keeps what gathered."""

import dataclasses

import pytest

from charter.physics.memory import job_memory
from charter.spec.layout import Recompute
from charter.validation.quantities.memory_cases import profile_of
from charter.validation.quantities.memory_cases import training_case as memory_case
from charter.validation.quantities.training_time import TRAINING_TIME, training_case
from charter.validation.rows.measurement import Measurement, settled

ROW = {
    "id": "X-1", "metric": "step_time_s", "value": 1.0, "kind": "pretrain", "model": "Llama 3.1 8B", "gpus": 64,
    "seq": 8192,
    "mbs": 1, "gbs": 64, "stack": "torchtitan", "accelerator": "H100-SXM-80GB", "compute_dtype": "bf16",
    "shard_kind": "zero3", "recompute_kind": "full", "parameter_dtype": "fp32", "gradient_dtype": "fp32",
    "optimizer_dtype": "fp32", "master_dtype": "none", "logits_kernel": "full",
}  # fmt: skip


def row(**changes):
    return Measurement(**settled(ROW | changes))


def peak(**changes):
    case = memory_case(row(metric="peak_mem_gib", **changes))
    return job_memory(case.job, case.layout)


@pytest.mark.parametrize(
    ("kernel", "generation"),
    [("flash1", "flash1"), ("triton", "flash1"), ("flash2", "flash2"), ("flash3", "flash3"), ("flash4", "flash3")],
)
def test_the_named_attention_kernel_is_the_one_that_is_timed(kernel, generation):
    assert training_case(row(attention_kernel=kernel)).profile.attention == generation


def test_attention_of_packed_samples_ends_with_the_sample():
    def attention(**changes):
        case = training_case(row(**({"kind": "sft"} | changes)))
        return float(TRAINING_TIME.prepare([case]).work.attention[0])

    masked, plain = attention(attention_kernel="flex"), attention(attention_kernel="flash2")
    assert masked == attention(attention_kernel="flex", mean_len=512)
    assert plain / 16 < masked < plain / 4
    assert attention(attention_kernel="flex", kind="pretrain") == plain


def test_a_partial_policy_repeats_half_of_the_layers():
    case = training_case(row(recompute_kind="partial"))
    assert (case.layout.recompute, case.recompute_share) == (Recompute.FULL, 0.5)
    assert memory_case(row(metric="peak_mem_gib", recompute_kind="partial")).job.recompute_share == 0.5


def test_weights_and_gradients_stay_whole_beside_a_pipeline():
    pipelined = {term.name: term for term in peak(pp=4, gbs=256).terms}
    assert pipelined["gathered weights"].value > 2 * 8.03e9 / 4 * 0.8
    assert pipelined["gradients"].value > 4 * 8.03e9 / 4 * 0.8


def test_gradients_are_where_their_optimizer_steps():
    def gradients(**changes):
        return [term for term in peak(**changes).phases["end of backward"] if term.name == "gradients" and term.value]

    assert (len(gradients()), gradients(offload="optimizer+params")) == (1, [])


def test_a_quantised_base_is_gathered_as_it_is_stored():
    tuned = {"kind": "lora", "adapter": "qlora", "stack": "torchtune", "gpus": 8, "master_dtype": "none"}

    def gathered(**changes):
        layers = peak(**tuned | changes).phases["backward"]
        return next(term.value for term in layers if term.name == "gathered weights")

    assert gathered(parameter_dtype="nf4") < gathered(adapter="lora", parameter_dtype="bf16") / 3


def test_a_chunked_loss_of_liger_keeps_less_than_lean_layers():
    case = memory_case(row(metric="peak_mem_gib", stack="deepspeed", logits_kernel="chunked"))
    lean = dataclasses.replace(case.job, profile=dataclasses.replace(case.job.profile, implementation="lean"))

    def kept(job):
        return sum(term.value for term in job_memory(job, case.layout).phases["backward"])

    assert kept(case.job) < kept(lean)


def test_a_loss_that_overwrites_its_logits_is_no_copy_of_them():
    """MPT-350m at 18 x 2,048 tokens ran on 40 GB (llm-foundry's table): a 32-bit copy of its logits would not fit."""
    mpt = {"stack": "composer-fsdp", "model": "MPT-350m", "seq": 2048, "mbs": 18, "gbs": 2304, "gpus": 128}
    logits = {term.name: term.value for term in peak(**mpt, recompute_kind="none").phases["loss"]}["logits and loss"]
    assert logits < 4 * 18 * 2048 * 50_432


def test_a_trainer_with_master_weights_is_deepspeed():
    masters = {"stack": "hf-trainer", "shard_kind": "none", "parameter_dtype": "bf16", "gpus": 1}
    assert profile_of(row(**masters, master_dtype="fp32")).name == "deepspeed"
    assert profile_of(row(**masters, master_dtype="none")).name == "huggingface"
