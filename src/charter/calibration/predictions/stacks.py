"""Stack profile of a framework, from its name as sources print it."""

import re
from typing import TYPE_CHECKING

from charter.physics.training.stack_profiles import PROFILES, StackProfile

if TYPE_CHECKING:
    from charter.calibration.rows.measurement import Measurement

_NAMES: tuple[tuple[str, str], ...] = (
    (r"\bcharter\b", "native"),
    (r"maxtext|maxdiffusion|\bjax\b|paxml|\bpax\b|praxis|t5x|levanter|easylm|\btpu\b", "maxtext"),
    (r"megatron[- ]?deepspeed|gpt-?neox|bloom", "megatron-deepspeed"),
    (r"megatron[- ]?bridge.*\b(?:26\.(?:0[5-9]|1\d)|2[7-9]\.)", "megatron-bridge-2026"),
    (r"megatron[- ]?bridge", "megatron-bridge"),
    (r"\bnemo\b", "nemo"),
    (
        r"megatron[- ]?core|mcore|megatron.*\br?0\.\d+|pai-?megatron|megatron-?swift|primus|modellink|mindspeed",
        "megatron-core",
    ),
    (r"unsloth", "unsloth"),
    (r"ya-?fsdp", "yafsdp"),
    (r"torchtitan|fsdp2|nanotron|picotron|torchtune|modalities|olmo-?core", "torchtitan"),
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

    >>> from charter.calibration.rows.measurement import Measurement
    >>> row = Measurement(id="X-1", metric="step_time_s", value=1.0, framework="Megatron-LM 2021", gpu="A100")
    >>> profile_of(row).name
    'megatron-2021'
    """
    name = stack_name(row.framework, gpu=row.gpu, dtype=row.dtype, flash=row.flash, shard=row.shard)
    if name == "generic" and max(row.tp or 1, row.pp or 1) > 1:
        name = _megatron("", row.gpu, row.dtype, row.flash)
    return PROFILES[name]


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
