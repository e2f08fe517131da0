"""Stack profile of a framework and stage of sharding, from their names as sources print them."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from charter.physics.stacks import PROFILES, StackProfile
from charter.spec.layout import ZeroStage
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.measurement import Refusal

if TYPE_CHECKING:
    from charter.catalog.accelerators import Accelerator
    from charter.validation.rows.measurement import Measurement

_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bcharter\b", "native"),
    (r"maxtext|maxdiffusion|\bjax\b|paxml|\bpax\b|praxis|t5x|levanter|easylm|\btpu\b", "maxtext"),
    (r"megatron[- ]?deepspeed|gpt-?neox|bloom", "megatron-deepspeed"),
    (r"megatron[- ]?bridge.*\b(?:26\.(?:0[5-9]|1\d)|2[7-9]\.)", "megatron-bridge-2026"),
    (r"megatron[- ]?bridge", "megatron-bridge"),
    (r"\bnemo\b", "nemo"),
    (
        r"megatron[- ]?core|mcore|megatron.*(?:\b|core_)r?0\.\d+|pai-?megatron|megatron-?swift|primus|modellink|"
        r"mindspeed",
        "megatron-core",
    ),
    (r"unsloth", "unsloth"),
    (r"ya-?fsdp", "yafsdp"),
    (r"nanotron", "nanotron"),
    (r"torchtitan|fsdp2|picotron|torchtune|modalities|olmo-?core", "torchtitan"),
    (r"litgpt|lit-gpt|lit-llama|lightning|fabric", "litgpt"),
    (r"composer|llm-?foundry|mosaic", "composer"),
    (r"\bolmo|metaseq|fairscale|tinyllama", "fsdp"),
    (
        r"transformers|hugging|\bhf\b|\btrl\b|peft|qlora|axolotl|llama-?factory|accelerate|swift|firefly|"
        r"xtuner|alpaca|fastchat|bitsandbytes|open-?instruct|tulu",
        "huggingface",
    ),
    (r"deepspeed|zero-?[123]|openrlhf|colossal|trlx", "deepspeed-zero"),
    (r"fsdp", "fsdp"),
)
"""The first pattern found in the framework's name decides."""
_MEGATRON_YEARS = ((2020, "megatron-2020"), (2021, "megatron-2021"), (2023, "megatron-2022"))
_OLD_DEVICES = ("v100", "a100", "a800")


def profile_of(row: "Measurement") -> StackProfile:
    """The profile of a row's framework; a nameless one with tensor or pipeline parallelism works like Megatron.

    >>> from charter.validation.rows.measurement import Measurement
    >>> row = Measurement(id="X-1", metric="step_time_s", value=1.0, framework="Megatron-LM 2021", gpu="A100")
    >>> profile_of(row).name
    'megatron-2021'
    """
    gpu = _catalog_name(row)
    name = stack_name(row.framework, gpu=gpu, dtype=row.dtype, flash=row.flash, shard=row.shard)
    if name == "generic" and max(row.tp or 1, row.pp or 1) > 1:
        name = _megatron("", gpu, row.dtype, row.flash)
    return PROFILES[name]


def _catalog_name(row: "Measurement") -> str:
    """The device as the catalog calls it, however the row spells it (Trillium, `p4d.24xlarge`); else as printed."""
    try:
        return accelerator_of(row).name
    except Refusal:
        return row.gpu


def stack_name(framework: str, *, gpu: str = "", dtype: str = "", flash: int | None = None, shard: str = "") -> str:
    """Name of the profile; Megatron-LM without a release is dated by its device and number format.

    >>> stack_name("HF Trainer + DeepSpeed"), stack_name("Megatron-LM", gpu="B200", dtype="bf16"), stack_name("")
    ('huggingface', 'megatron-lm', 'generic')
    """
    text = framework.casefold()
    if "tpu" in gpu.casefold():
        return "maxtext"
    for pattern, name in _NAMES:
        if re.search(pattern, text):
            return name
    if "megatron" in text:
        return _megatron(text, gpu, dtype, flash)
    if "fsdp" in shard.casefold():
        return "fsdp"
    return "deepspeed-zero" if "zero" in shard.casefold() else "generic"


def _megatron(text: str, gpu: str, dtype: str, flash: int | None) -> str:
    year = re.search(r"\b(20[12]\d)\b", text)
    if year:
        return next((name for last, name in _MEGATRON_YEARS if int(year[1]) <= last), "megatron-lm")
    old_device = any(name in gpu.casefold() for name in _OLD_DEVICES)
    return "megatron-2022" if old_device and "16" in dtype and "bf16" not in dtype and not flash else "megatron-lm"


def update_stack(row: "Measurement", *, tensor: bool = False) -> StackProfile:
    """The training stack of a row; where it names none, a recent Megatron for tensor parallelism, FSDP without.

    >>> from charter.validation.rows.measurement import Measurement
    >>> update_stack(Measurement(id="X-1", metric="step_time_s", value=1.0, framework="verl (FSDP + vLLM)")).name
    'fsdp'
    """
    text = re.sub(r"nemo[- ]?(rl|aligner)", "nemo", row.framework, flags=re.I)
    if re.search(r"verl|areal|slime|skyrl|\broll\b", text, re.I):
        text = "megatron-core" if "megatron" in text.casefold() else "fsdp"
    gpu = _catalog_name(row)
    name = stack_name(text, gpu=gpu, dtype=row.dtype, flash=row.flash, shard=row.shard)
    if name == "generic":
        name = stack_name(row.model, gpu=gpu, dtype=row.dtype, flash=row.flash)
    if name == "generic":
        name = "megatron-core" if tensor else "fsdp"
    profile = PROFILES[name]
    return replace(profile, attention="unfused") if row.flash == 0 else profile


def bits_of(printed: str) -> float:
    """Bits of the operands of training's matrix products; blank is 16.

    >>> bits_of("FP8-CS"), bits_of("bf16"), bits_of("fp32")
    (8.0, 16.0, 32.0)
    """
    lowered = printed.casefold()
    if "fp8" in lowered:
        return 8.0
    return 32.0 if re.search(r"fp32|tf32", lowered) and not re.search(r"bf16|fp16", lowered) else 16.0


_ZERO_WORDS: tuple[tuple[str, ZeroStage], ...] = (
    (r"grad_op|hybrid_?shard_?zero2", ZeroStage.GRADIENTS),
    (r"fsdp|hsdp|hybrid|full|zero\+\+", ZeroStage.PARAMETERS),
    (r"none|\bno\b|ddp|replic|data[- _]parallel", ZeroStage.NONE),
    (r"dist|optim", ZeroStage.OPTIMIZER),
    (r"shard", ZeroStage.PARAMETERS),
)
"""The first pattern found decides."""


def printed_zero(shard: str) -> ZeroStage | None:
    """The ZeRO stage that a column of sharding names: FSDP is stage 3, a distributed optimizer stage 1; None: nothing.

    >>> [printed_zero(text) for text in ("ZeRO-2", "fsdp", "distopt", "distributed data parallel", "")]
    [<ZeroStage.GRADIENTS: 2>, <ZeroStage.PARAMETERS: 3>, <ZeroStage.OPTIMIZER: 1>, <ZeroStage.NONE: 0>, None]
    """
    text = shard.casefold()
    number = re.search(r"(?:zero|stage)[-_ ]*(?:stage)?[-_ ]*(\d)", text)
    if number:
        return ZeroStage(min(3, int(number[1])))
    return next((stage for words, stage in _ZERO_WORDS if re.search(words, text)), None)


EVERYWHERE = 1e9
"""Ranks of a shard group that spans all data-parallel ranks."""


def shard_group(row: "Measurement", accelerator: "Accelerator | None") -> float:
    """Accelerators that share one copy of what is sharded: all, or those of a node under hybrid sharding."""
    if re.search(r"hybrid|hsdp", row.shard.casefold()):
        return float(row.gpus_per_node or (accelerator.devices_per_node if accelerator else 8))
    return EVERYWHERE
