"""Typed columns of a measured row: read in place of the free text that says the same in many ways.

A row that has a `stack` is typed. Its `framework`, `dtype`, `gpu`, `shard`, `recompute` and `flash` are then written
from the typed columns, one spelling for each value, and its `notes` are not read: whatever a source prints there
decides nothing. Whole runs keep their notes, since tokens and epochs of a run have no column. A row without `stack` is
read from its free text, and `inferred` names what was.
"""

import re
from collections.abc import Mapping
from typing import Any

PROBES = ("active", "allocated", "reserved", "nvidia_smi", "unknown")
"""Counters of memory, the smallest first; a plan's peak is that of `nvidia_smi`: reserved, with the CUDA context."""
_PROBE_WORDS = (
    (r"nvidia-smi|nvml|gpustat", "nvidia_smi"),
    (r"\breserved|max_memory_reserved|max_reserved", "reserved"),
    (r"\bactive\b", "active"),
    (r"allocated|maxmemalloc|max_alloc", "allocated"),
)
TOTALS = ("wall_hours", "wall_days", "gpu_hours", "cost_usd")
TEXTS = {
    "framework": ("stack", "stack_version"),
    "gpu": ("accelerator",),
    "dtype": ("compute_dtype", "parameter_dtype"),
    "recompute": ("recompute_kind",),
    "flash": ("attention_kernel",),
    "shard": ("shard_kind",),
}
"""Columns of free text, and the typed ones that stand in their place."""
TYPED = (*(name for names in TEXTS.values() for name in names), "gradient_dtype", "optimizer_dtype", "master_dtype")
BYTES_PER_VALUE = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "int8": 1.0} | {
    "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16, "fp4": 0.5 + 1 / 16, "int4": 0.5 + 2.5 / 128, "nf4": 4.127 / 8
} | {"none": 0.0}  # fmt: skip
"""Bytes of one value that stays in memory, with scales (`charter.physics.precision.STORED_FORMATS`)."""
_FRAMEWORKS = {
    "composer-fsdp": "composer fsdp",
    "hf-trainer": "hf trainer",
    "deepspeed": "hf deepspeed",
    "transformers": "hf transformers",
}
"""Names that the profiles know under other words."""
_RECOMPUTE = ("none", "selective", "partial", "full")
_SHARDS = {"none": "none", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "hsdp": "hsdp", "fsdp1": "fsdp"}
_STORED = {"int4": "gptq-int4", "int8": "gptq-int8", "nf4": "bnb.nf4"}


def probe_in(unit: str, notes: str) -> str:
    """The counter that a unit or a note names.

    >>> probe_in("GiB max_memory_reserved, worst rank", ""), probe_in("GiB active", ""), probe_in("GB", "bs 2")
    ('reserved', 'active', 'unknown')
    """
    text = f"{unit} {notes}".casefold()
    return next((probe for words, probe in _PROBE_WORDS if re.search(words, text)), "unknown")


def settled(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row with free text written from its typed columns, where it has them.

    >>> row = settled({"id": "X-1", "stack": "hf-trainer", "framework": "DeepSpeed!", "shard_kind": "zero2"})
    >>> row["framework"], row["shard"]
    ('hf trainer', 'zero2')
    """
    values = dict(cells)
    measures_memory = str(values.get("metric", "")).startswith("peak_mem")
    if measures_memory and not values.get("memory_probe"):
        values["memory_probe"] = probe_in(values.get("unit", ""), values.get("notes", ""))
    if not values.get("stack"):
        return values
    for name, word in _texts({key: value for key, value in values.items() if value != "unknown"}).items():
        values.pop(name, None)
        if word is not None and word != "":
            values[name] = word
    if values.get("kind") != "run_total" and values.get("metric") not in TOTALS:
        values.pop("notes", None)
    if measures_memory:
        values.pop("unit", None)
    for old, new in (("isl", "prompt_tokens"), ("osl", "response_tokens_mean")):
        if values.get(new):
            values[old] = values[new]
    return values


def _texts(cells: Mapping[str, Any]) -> dict[str, Any]:
    """One spelling of each column of free text; None where the typed column says `unknown`."""
    stack = str(cells.get("stack", ""))
    kernel = cells.get("attention_kernel")
    name = _FRAMEWORKS.get(stack, stack)
    return {
        "framework": f"{name} {cells.get('stack_version', '')}".strip() if name else "",
        "gpu": cells.get("accelerator", ""),
        "dtype": _dtype(cells),
        "recompute": recompute if (recompute := str(cells.get("recompute_kind", ""))) in _RECOMPUTE else "",
        "flash": None if not kernel else int(kernel != "unfused"),
        "shard": _SHARDS.get(str(cells.get("shard_kind", "")), ""),
    }


def _dtype(cells: Mapping[str, Any]) -> str:
    """The type of the products, or that of quantised weights, which says more.

    >>> _dtype({"compute_dtype": "bf16", "parameter_dtype": "nf4"}), _dtype({"compute_dtype": "w4a16"})
    ('bnb.nf4', 'gptq-int4')
    """
    stored, computed = str(cells.get("parameter_dtype", "")), str(cells.get("compute_dtype", ""))
    if stored in _STORED:
        return _STORED[stored]
    return {"w4a16": "gptq-int4", "w8a16": "gptq-int8"}.get(computed, computed)


def unknowns(cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Typed columns of a row that say `unknown`: assumptions of whatever is predicted of it."""
    return tuple(name for name in (*TYPED, "memory_probe", "logits_kernel") if cells.get(name) == "unknown")


def inferred(cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of free text from which an untyped row was read."""
    return () if cells.get("stack") else tuple(name for name in (*TEXTS, "notes") if cells.get(name))
