"""A table of measurements in typed columns: written from free text for its owner to confirm, or made fit to hand on.

Typed columns are what a prediction reads (`docs/reference/measurements.md`). What the text of a row does not say is
`unknown` here and stays so until its owner knows better: an unknown widens the interval, a guess would hide in it.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from charter.errors import DataError
from charter.units import GB
from charter.validation.rows.accelerator import accelerator_of, node_network
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.memory_texts import also_held_in, needs_extras, probe_in
from charter.validation.rows.metrics import printed_kind
from charter.validation.rows.shapes import model_named

_STACKS: tuple[tuple[str, str], ...] = (
    (r"megatron[- ]?deepspeed", "megatron-deepspeed"),
    (r"megatron[- ]?bridge", "megatron-bridge"),
    (r"nemo[- ]?aligner", "nemo-aligner"),
    (r"nemo[- ]?rl", "nemo-rl"),
    (r"\bnemo\b", "nemo"),
    (r"verl", "verl"),
    (r"deepspeed[- ]?chat", "deepspeed-chat"),
    (r"torchtitan", "torchtitan"),
    (r"torchtune", "torchtune"),
    (r"nanotron", "nanotron"),
    (r"intern-?evo|internlm", "internevo"),
    (r"composer|llm-?foundry|mosaic", "composer-fsdp"),
    (r"lit-?gpt", "litgpt"),
    (r"maxtext", "maxtext"),
    (r"sglang", "sglang"),
    (r"vllm", "vllm"),
    (r"tensorrt|trt-?llm", "tensorrt-llm"),
    (r"faster-?transformer", "fastertransformer"),
    (r"gpt-?neox", "gpt-neox"),
    (r"metaseq", "metaseq"),
    (r"megatron", "megatron-lm"),
    (r"\btrl\b|(hf|hugging ?face|transformers)[- ]?trainer|axolotl|llama-?factory|peft", "hf-trainer"),
    (r"transformers|hugging ?face|\bhf\b", "transformers"),
    (r"deepspeed", "deepspeed"),
)
"""The first pattern found decides. Transformers that train run the Trainer."""
_VERSION = re.compile(r"\b(?:v|r|release )?(20[12]\d|\d+\.\d+[\w.]*)\b", re.IGNORECASE)
_PRODUCTS: tuple[tuple[str, str], ...] = (
    (r"mx[- _]?fp8|fp8[- _]?mx", "mxfp8"),
    (r"nvfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp8|float8|e4m3", "fp8"),
    (r"gptq[- _]?int8|w8a16", "w8a16"),
    (r"awq|gptq|w4a16|int4", "w4a16"),
    (r"fp4", "fp4"),
    (r"int8", "int8"),
    (r"bf16|bfloat", "bf16"),
    (r"fp16|float16|\bhalf\b", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32", "fp32"),
)
_STORED: tuple[tuple[str, str], ...] = (
    (r"nf4", "nf4"),
    (r"gptq[- _]?int8|w8a16|int8", "int8"),
    (r"awq|gptq|w4a16|int4", "int4"),
)
_AUTOCAST = re.compile(r"\bamp|autocast|mixed")
"""Casts each product to 16 bits or less; the weights stay in 32 (PyTorch, `torch.amp`)."""
_CACHE = re.compile(r"\+?\s*\w+[- ]?kv\b.*")
"""The type of a cache beside that of the weights: `bf16 + int8 KV`."""
_KERNELS: tuple[tuple[str, str], ...] = (
    (r"fa-?4|flash[- _]?(attention|attn)?[- _]?4", "flash4"),
    (r"fa-?3|flash[- _]?(attention|attn)?[- _]?3", "flash3"),
    (r"fa-?2|flash[- _]?(attention|attn)?[- _]?2", "flash2"),
    (r"cudnn", "cudnn"),
    (r"\bsdpa\b", "sdpa"),
    (r"flex[- _]?att", "flex"),
)
_SHARDS: tuple[tuple[str, str], ...] = (
    (r"hsdp|hybrid[- _]?shard", "hsdp"),
    (r"(zero|stage)[-_ ]*3|fsdp[- _]?2|full[- _]?shard", "zero3"),
    (r"(zero|stage)[-_ ]*2|shard[- _]?grad", "zero2"),
    (r"(zero|stage)[-_ ]*1|dist\w*[- _]?opt", "zero1"),
    (r"fsdp", "fsdp1"),
    (r"^(none|no|ddp|0|zero[-_ ]*0)$", "none"),
)
_STATES = ("gradient_dtype", "optimizer_dtype", "master_dtype")
_TRAINS = ("pretrain", "sft", "lora", "rm", "ppo")
UNKNOWN = "unknown"
MOST_NAMED = 20
"""Cells of a file that are named in an error."""
PRIVATE = ("source", "notes", "framework", "gpu", "dtype", "recompute", "flash", "shard", "interconnect")
"""Columns of free text, in which names of people, places and machines may stand."""


def first_of(patterns: Iterable[tuple[str, str]], text: str) -> str:
    """The word of the first pattern that a text holds, or `unknown`.

    >>> first_of(_SHARDS, "FSDP full_shard"), first_of(_PRODUCTS, "BF16-mixed"), first_of(_KERNELS, "")
    ('zero3', 'bf16', 'unknown')
    """
    lowered = text.casefold()
    return next((word for pattern, word in patterns if re.search(pattern, lowered)), UNKNOWN)


def typed_cells(row: Measurement) -> dict[str, str]:
    """Typed columns from the free text of a row; a column that the row has already is left as it is.

    >>> cells = typed_cells(Measurement(id="X-1", metric="step_time_s", value=1.0, framework="HF Trainer 4.40",
    ...                                 gpu="A100 80GB", dtype="bfloat16", shard="ZeRO-3", recompute="yes"))
    >>> [cells[name] for name in ("stack", "stack_version", "accelerator", "compute_dtype", "shard_kind")]
    ['hf-trainer', '4.40', 'A100-SXM-80GB', 'bf16', 'zero3']
    >>> cells["recompute_kind"], cells["attention_kernel"], cells["master_dtype"]
    ('full', 'unknown', 'unknown')
    """
    trains, dtype = row.kind in _TRAINS, _CACHE.sub("", row.dtype.casefold())
    stack = first_of(_STACKS, row.framework)
    if trains and stack == "transformers":
        stack = "hf-trainer"
    version = _VERSION.search(row.framework)
    cells = {
        "stack": stack,
        "stack_version": version[1] if version else "",
        "accelerator": _accelerator(row),
        "compute_dtype": first_of(_PRODUCTS, dtype),
        "parameter_dtype": _stored(dtype, trains=trains),
        "attention_kernel": _kernel(row),
        "memory_probe": probe_in(row.unit, row.notes) if row.metric.startswith("peak_mem") else "",
        "also_held": also_held_in(row.notes) if needs_extras(row.metric, row.adapter) else "",
    }
    if trains:
        cells |= dict.fromkeys(_STATES, UNKNOWN)
        cells |= {
            "recompute_kind": _recompute(row.recompute),
            "shard_kind": "none" if row.gpus == 1 else first_of(_SHARDS, row.shard or row.framework),
            "logits_kernel": "chunked" if re.search(r"liger|cut[- _]?cross", row.framework.casefold()) else UNKNOWN,
        }
    else:
        cells |= dict.fromkeys(_STATES, "none") | {"logits_kernel": "none", "shard_kind": "none"}
    return {name: str(getattr(row, name) or word) for name, word in cells.items()}


def _kernel(row: Measurement) -> str:
    """The kernel that the text names; `fused` where it says no more than that one is used."""
    if row.flash == 0:
        return "unfused"
    named = first_of(_KERNELS, f"{row.framework} {row.notes}")
    return "fused" if named == UNKNOWN and row.flash else named


def _accelerator(row: Measurement) -> str:
    try:
        return accelerator_of(row).name
    except Refusal:
        return row.gpu or UNKNOWN


def _stored(dtype: str, *, trains: bool) -> str:
    """The type in which weights stay in memory, where the text says it.

    >>> _stored("bnb.nf4-dq", trains=True), _stored("amp_bf16", trains=True), _stored("bf16", trains=True)
    ('nf4', 'fp32', 'unknown')
    """
    quantised = first_of(_STORED, dtype)
    if quantised != UNKNOWN or not trains:
        return quantised if quantised != UNKNOWN else first_of(_PRODUCTS, dtype)
    return "fp32" if _AUTOCAST.search(dtype) else UNKNOWN


def _recompute(policy: str) -> str:
    word = policy.casefold()
    if word in ("none", "full"):
        return word
    if not word:
        return UNKNOWN
    return "selective" if word.startswith("selective") else "partial"


@dataclass(frozen=True, kw_only=True)
class TypedTable:
    """A table with its typed columns, and what was read from free text on the way."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    inferences: Mapping[str, int] = field(default_factory=dict)
    """`column = word, from TEXT`, and in how many rows."""

    def csv(self) -> str:
        """The table as a file of comma-separated values."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


_TEXT_OF = {
    "stack": "framework", "stack_version": "framework", "accelerator": "gpu", "compute_dtype": "dtype",
    "parameter_dtype": "dtype", "recompute_kind": "recompute", "shard_kind": "shard", "memory_probe": "unit",
}  # fmt: skip


def converted(rows: Sequence[Measurement]) -> TypedTable:
    """All columns of the rows with the typed ones filled in; a row that has a `stack` is typed, and left as it is.

    Raises DataError for cells that could not be read: written without them, the row would say that nobody knows.
    """
    _all_read(rows)
    tables, inferences = [], dict[str, int]()
    for row in rows:
        cells = _printed(row)
        if not row.stack:
            typed = typed_cells(row)
            for name, word in typed.items():
                if word and not getattr(row, name):
                    text = str(getattr(row, _TEXT_OF.get(name, ""), "") or "")
                    origin = f", from {_TEXT_OF[name]} {text!r}" if text and word != UNKNOWN else ""
                    sentence = f"{name} = {word}{origin}"
                    inferences[sentence] = inferences.get(sentence, 0) + 1
            cells |= typed
        tables.append(cells)
    return TypedTable(columns=_columns(tables), rows=tuple(tables), inferences=inferences)


def _all_read(rows: Sequence[Measurement]) -> None:
    if unread := [problem for row in rows for problem in row.problems]:
        raise DataError("\n".join((*unread[:MOST_NAMED], *(["..."] if len(unread) > MOST_NAMED else []))))


def shared(rows: Sequence[Measurement], prefix: str) -> TypedTable:
    """Typed rows to hand on: numbered anew, without free text; a model has the name of the catalog, or none.

    A row whose model no catalog has keeps its shape (hidden, layers, ...), so give it one before.

    Raises Refusal for rows that are not typed, which nobody but their owner can confirm, and DataError for cells that
    could not be read.
    """
    _all_read(rows)
    untyped = [row.id for row in rows if not row.stack]
    if untyped:
        raise Refusal(f"{len(untyped)} rows have no typed columns ({', '.join(untyped[:3])} ...): convert them first")
    configurations: dict[str, str] = {}
    tables = []
    for number, row in enumerate(rows, start=1):
        config = configurations.setdefault(row.config_id or row.id, f"{prefix}-C{len(configurations) + 1:04}")
        cells = {name: text for name, text in _printed(row).items() if name not in PRIVATE}
        network = node_network(row.interconnect, row.gpus_per_node or 8) if row.interconnect else None
        cells |= {"id": f"{prefix}-{number:04}", "config_id": config}
        catalog_model = model_named(row.model) if row.model else None
        cells["model"] = catalog_model.name if catalog_model else ""
        if network:
            cells["interconnect"] = f"{network / GB * 8:g} Gbit/s per node"
        tables.append(cells)
    return TypedTable(columns=_columns(tables), rows=tuple(tables))


_NAMES = tuple(item.name for item in fields(Measurement) if item.name != "problems")


def _printed(row: Measurement) -> dict[str, str]:
    cells = {name: getattr(row, name) for name in _NAMES}
    texts = {name: f"{value:.12g}" if isinstance(value, float) else str(value) for name, value in cells.items()}
    texts["kind"] = printed_kind(row)
    return {name: text for name, text in texts.items() if cells[name] not in (None, "")}


def _columns(tables: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    used = {name for cells in tables for name in cells}
    return tuple(name for name in _NAMES if name in used)
