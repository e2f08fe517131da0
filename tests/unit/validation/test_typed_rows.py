"""Typed columns decide; free text of a typed row decides nothing."""

import subprocess
import sys
from dataclasses import replace

import pytest

from charter.physics.fitted import Fitted
from charter.validation.quantities.memory import TRAINING_MEMORY, out_of_memory
from charter.validation.quantities.training_time import TRAINING_TIME
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.measurement import Measurement, inferred, parse, unknowns
from charter.validation.score import cases_of, predict

CELLS = {
    "id": "ABC-0001",
    "kind": "sft",
    "model": "Llama-3.1-8B",
    "seq": "4096",
    "gpus": "8",
    "mbs": "2",
    "gbs": "64",
    "metric": "step_time_s",
    "value": "5.0",
    "stack": "hf-trainer",
    "stack_version": "4.50",
    "accelerator": "H100-SXM-80GB",
    "compute_dtype": "bf16",
    "parameter_dtype": "bf16",
    "gradient_dtype": "bf16",
    "optimizer_dtype": "fp32",
    "master_dtype": "fp32",
    "recompute_kind": "full",
    "attention_kernel": "flash2",
    "logits_kernel": "full",
    "shard_kind": "zero3",
    "memory_probe": "reserved",
    "also_held": "none",
}
TEXTS = {
    "id": ("KOR-9", "zzz"),
    "framework": ("Megatron-LM 2021", "our trainer (fsdp)", ""),
    "dtype": ("FP8", "fp32", "amp_bf16"),
    "gpu": ("A100", "V100-32GB", "a fast one"),
    "shard": ("zero1", "none", "fsdp-shard_grad_op"),
    "recompute": ("none", "block 4", "selective+sp"),
    "flash": ("0", "1", ""),
    "notes": ("adamw_8bit; reserved; EMA; 64 GPUs; LoRA", "nvidia-smi, SGD"),
    "source": ("elsewhere",),
}


def row_of(**cells: str) -> Measurement:
    return parse([CELLS | cells], "memory.csv")[0]


def prediction(row: Measurement) -> float:
    quantity = TRAINING_TIME if TRAINING_TIME.accepts(row) else TRAINING_MEMORY
    cases, refused = cases_of(quantity, [row])
    assert not refused
    return float(predict(quantity, cases, Fitted())[0])


@pytest.mark.parametrize("metric", ["step_time_s", "peak_mem_gib"])
@pytest.mark.parametrize(("column", "text"), [(column, text) for column in TEXTS for text in TEXTS[column]])
def test_free_text_of_a_typed_row_decides_nothing(metric, column, text):
    assert prediction(row_of(metric=metric, **{column: text})) == prediction(row_of(metric=metric))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("compute_dtype", "fp8"),
        ("accelerator", "A100-SXM-80GB"),
        ("shard_kind", "zero1"),
        ("recompute_kind", "none"),
        ("attention_kernel", "unfused"),
        ("stack", "megatron-lm"),
    ],
)
def test_each_typed_column_of_time_decides(column, text):
    assert prediction(row_of(**{column: text})) != prediction(row_of())


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("parameter_dtype", "fp32"),
        ("gradient_dtype", "fp32"),
        ("optimizer_dtype", "int8"),
        ("master_dtype", "none"),
        ("logits_kernel", "chunked"),
        ("memory_probe", "allocated"),
    ],
)
def test_each_typed_column_of_memory_decides(column, text):
    assert prediction(row_of(metric="peak_mem_gib", **{column: text})) != prediction(row_of(metric="peak_mem_gib"))


def test_a_blank_probe_is_filled_from_the_notes():
    row = row_of(metric="peak_mem_gib", notes="max_memory_allocated", memory_probe="")
    assert row.memory_probe == "allocated"
    assert row_of(metric="peak_mem_gib", memory_probe="").memory_probe == "unknown"


def test_what_is_held_beside_adapters_is_filled_from_the_notes():
    adapted = {"kind": "lora", "adapter": "lora", "metric": "peak_mem_gib"}
    row = row_of(**adapted, notes="LoRA (emb)", also_held="")
    assert row.also_held == "ends"
    assert prediction(row) > prediction(row_of(**adapted, also_held="")) == prediction(row_of(**adapted))
    assert row_of(metric="step_time_s", notes="LoRA (emb)", also_held="").also_held == ""


def test_a_typed_device_replaces_the_catalogs_figures():
    typed = {"device_hbm_gb": "96", "device_hbm_tb_per_s": "2.4", "device_power_watts": "500"}
    device, usual = accelerator_of(row_of(**typed)), accelerator_of(row_of())
    assert (device.memory_bytes, device.memory_bytes_per_second, device.tdp_watts) == (96e9, 2.4e12, 500)
    assert device.dense_flops_per_second["bf16"] < usual.dense_flops_per_second["bf16"]


def test_unknown_columns_are_named_as_assumptions():
    row = row_of(recompute_kind="unknown", master_dtype="unknown")
    assert unknowns(vars(row)) == ("recompute_kind", "master_dtype")
    assert not unknowns(vars(row_of()))


def test_an_untyped_row_names_what_was_inferred():
    untyped = parse([{"id": "A-1", "metric": "step_time_s", "value": "1", "dtype": "bf16", "gpu": "A100"}], "x.csv")[0]
    assert inferred(vars(untyped)) == ("gpu", "dtype")
    assert not inferred(vars(row_of()))


def test_fits_probability_falls_as_the_need_grows():
    row = replace(row_of(metric="oom", value="1"), gpus=8)
    chances = [out_of_memory(replace(row, seq=seq)).fits_probability for seq in (2048, 16_384, 131_072)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.5 > chances[-1]


def test_a_plan_imports_no_reader_of_rows():
    listing = "import sys, charter.cli.plan, charter.plan.make; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    readers = ("charter.validation.rows", "charter.validation.score", "charter.validation.validate")
    assert "charter.physics.fitted" in loaded
    assert not [name for name in loaded if name.startswith(readers)]


def test_a_need_beyond_the_device_is_not_cut():
    row = row_of(metric="peak_mem_gib", seq="131072", recompute_kind="none")
    assert prediction(row) > 2 * 80
    assert out_of_memory(replace(row, metric="oom", value=1.0)).fits_probability < 0.01


def test_kernels_of_a_chunked_loss_keep_less_than_its_logits():
    long = {"metric": "peak_mem_gib", "seq": "65536", "mbs": "1", "stack": "deepspeed"}
    fused, chunked = (prediction(row_of(logits_kernel=kernel, **long)) for kernel in ("fused", "chunked"))
    case = TRAINING_MEMORY.case(row_of(logits_kernel="chunked", **long))
    assert chunked < fused
    assert case.job.profile.implementation == "triton"
