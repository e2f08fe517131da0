"""One measured run: a row of a table of published measurements, with typed cells.

Blank means that the source does not say. Columns are those of `docs/reference/measurements.md`.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from charter.errors import DataError
from charter.validation.rows.memory_texts import also_held_in, needs_extras, probe_in

_KINDS: tuple[tuple[str, str], ...] = (
    (r"pre-?train\w*|training", "pretrain"),
    (r"(full[- ])?fine-?tun\w*|full[- ]ft|dpo|orpo|kto|simpo|ipo|cpo", "sft"),
    (r"q?lora|peft|q?dora", "lora"),
    (r"reward([- _]model\w*)?", "rm"),
    (r"(dr\.? ?)?grpo|dapo|gspo|cispo|vapo|rlhf|rl|rloo|rlvr|remax|reinforce\S*", "ppo"),
    (r"serving|generation|infer", "inference"),
    (r"run([- ]total)?|total", "run_total"),
)
_ALGORITHMS = re.compile(r"dpo|orpo|kto|simpo|ipo|cpo|grpo|dapo|gspo|cispo|vapo|rloo|remax|reinforce")
_ADAPTERS: tuple[tuple[str, str], ...] = (
    (r"q-?[ld]ora", "qlora"),
    (r"lora|dora|\bpeft\b|ia3|adapter", ""),
    (r"^(full|none|no|fft|ft|sft|all|freeze)\b|full[- _]?(param|fine|ft)|galore|lomo|badam|apollo|q-?galore", "full"),
)
"""The first pattern found decides; an empty spelling keeps the word, in small letters (`lora`, `adapter_v2`)."""
_NOTHING = re.compile(r"(none|no|off|false|disabled|0|without)\b")
_EVERYTHING = re.compile(r"(yes|on|true|1|enabled|gc|ac|(gradient|activation)?[- _]*checkpoint(ing)?|full [ag]c|all)$")
_SAVES_SOME = re.compile(r"\bsac\b")
_HOST = re.compile(
    r"cpu[- _]?offload|zero[- ]?offload|zero[- ]?infinity|(?<!no )(?<!without )offload(?!\w*\s*(none|no))"
)
_UNSAID_HOST = re.compile(r"(cpu|host|ram|nvme|disk|yes|true|1|on|all|full|enabled)(?![- ]?adam)\b")


def kind_of(printed: str) -> str:
    """The kind of a row, which an algorithm may follow.

    >>> kind_of("GRPO"), kind_of("full fine-tuning"), kind_of("lora+dpo")
    ('ppo', 'sft', 'lora')
    """
    plain = printed.casefold().partition("+")[0].strip()
    return next((kind for words, kind in _KINDS if re.fullmatch(words, plain)), plain or "pretrain")


def adapter_of(printed: str, *, kind: str) -> str:
    """Return what is trained: `full`, `lora`, `qlora` or the adapter's own name; rows of kind lora train adapters.

    >>> adapter_of("QLoRA (nf4)", kind="lora"), adapter_of("Full-parameter", kind="sft")
    ('qlora', 'full')
    >>> adapter_of("", kind="lora"), adapter_of("DoRA", kind="lora"), adapter_of("", kind="sft")
    ('lora', 'lora', '')
    """
    plain = printed.casefold().strip()
    if not plain:
        return "lora" if kind == "lora" else ""
    spelling = next((spelt for words, spelt in _ADAPTERS if re.search(words, plain)), "")
    if spelling:
        return spelling
    return "lora" if re.search(r"lora|dora", plain) else plain


def recompute_of(printed: str) -> str:
    """The policy: `full` and `none` for the many ways of saying yes and no, everything else as printed.

    >>> recompute_of("gradient checkpointing"), recompute_of("None (flash)"), recompute_of("block 4")
    ('full', 'none', 'block 4')
    """
    plain = printed.casefold().strip()
    if _NOTHING.match(plain):
        return "none"
    if _SAVES_SOME.search(plain):
        return f"selective {plain}"
    return "full" if _EVERYTHING.match(plain) else printed


def offload_of(printed: str, *, shard: str, framework: str) -> str:
    """Return what is in host memory; a bare yes or `cpu` is the optimizer, with parameters where those are sharded.

    >>> offload_of("cpu", shard="zero3", framework=""), offload_of("", shard="ZeRO-Offload", framework="")
    ('optimizer+params', 'optimizer')
    >>> offload_of("no", shard="zero3", framework=""), offload_of("", shard="zero2", framework="DeepSpeed")
    ('none', '')
    """
    plain = printed.casefold().strip()
    where = f"{shard} {framework}".casefold()
    if _NOTHING.match(plain):
        return "none"
    bare = bool(_UNSAID_HOST.match(plain)) or (not plain and bool(_HOST.search(where)))
    if bare:
        sharded = re.search(r"(zero|stage)[-_ ]*3|fsdp|infinity|full_shard", where)
        return "optimizer+params" if sharded or plain.startswith(("all", "full")) else "optimizer"
    return "optimizer" if re.search(r"cpu[- _]?adam", plain) else plain


def respelt(cells: Mapping[str, str]) -> dict[str, str]:
    """The cells of a row that have one spelling, in it; a kind that names an algorithm leaves it with the framework."""
    kind, named = kind_of(cells["kind"]), _ALGORITHMS.search(cells["kind"].casefold())
    return {
        "kind": kind,
        "framework": f"{cells['framework']} {named[0]}".strip() if named else cells["framework"],
        "adapter": adapter_of(cells["adapter"], kind=kind),
        "recompute": recompute_of(cells["recompute"]),
        "offload": offload_of(cells["offload"], shard=cells["shard"], framework=cells["framework"]),
    }


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


_DTYPE = re.compile(r"unknown|none|tf32|bf16|(nv|mx)?fp\d+|int\d+|nf4|w\d+a\d+")
_ODD_TIME = re.compile(r"(us|\u00b5s|\u03bcs|ns|micro\w+|nano\w+|m|min|minutes?|h|hr|hours?|d|days?)\b")
_ODD_NAME = re.compile(r"(latency|ttft|tpot|itl|time|ppo)(_\w+)?_(us|ns|min|minutes?|h|hr|hours?)$")
_ODD_RATE = re.compile(r"(k|m|thousand|million)[- ]?(tok|seq|sample|req)|/ ?(min|h|hr|hour|day)|per (min|hour|day)")
_OF_MEMORY = re.compile(r"peak_mem\w*?_([kmgt])i?b")


def misread(cells: Mapping[str, Any]) -> list[str]:
    """Units and number formats in which nothing is predicted, so that a figure would be read in another.

    >>> misread({"metric": "ttft", "unit": "us"}), misread({"metric": "ttft", "unit": "ms"})
    (["column unit: 'us' of ttft; times are read in s or ms"], [])
    """
    metric, unit, problems = str(cells.get("metric", "")), str(cells.get("unit", "")).strip().casefold(), []
    is_rate = "_per_s" in metric or "_per_gpu_per_s" in metric
    is_whole = kind_of(str(cells.get("kind", ""))) == "run_total" or metric in TOTALS
    memory = _OF_MEMORY.match(metric)
    if is_rate and _ODD_RATE.search(unit):
        problems.append(f"column unit: {unit!r} of {metric}; rates are read per second, without k or M")
    elif memory and (printed := re.match(r"([kmgt])i?b\b", unit)) and printed[1] != memory[1]:
        problems.append(f"column unit: {unit!r} of {metric}; the metric names another unit")
    elif not is_rate and not is_whole and not metric.startswith(("peak_mem", "wall", "gpu_h")):
        if _ODD_NAME.search(metric):
            problems.append(f"column metric: {metric}; times are read in s or ms")
        elif re.search(r"latency|ttft|tpot|itl|time", metric) and _ODD_TIME.match(unit):
            problems.append(f"column unit: {unit!r} of {metric}; times are read in s or ms")
    dtype = str(cells.get("compute_dtype", "")).strip().casefold()
    if dtype and not _DTYPE.fullmatch(dtype):
        problems.append(f"column compute_dtype: {dtype!r} is no number format that Charter knows")
    return problems


def settled(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row with free text written from its typed columns, where it has them.

    >>> row = settled({"id": "X-1", "stack": "hf-trainer", "framework": "DeepSpeed!", "shard_kind": "zero2"})
    >>> row["framework"], row["shard"]
    ('hf trainer', 'zero2')
    """
    values = dict(cells)
    metric, notes = str(values.get("metric", "")), values.get("notes", "")
    measures_memory = metric.startswith("peak_mem")
    if measures_memory and not values.get("memory_probe"):
        values["memory_probe"] = probe_in(values.get("unit", ""), notes)
    if needs_extras(metric, values.get("adapter", "")) and not values.get("also_held"):
        values["also_held"] = also_held_in(notes)
    if not values.get("stack"):
        return values
    for name, word in _texts({key: value for key, value in values.items() if value != "unknown"}).items():
        if not any(values.get(typed) for typed in TEXTS[name]):
            continue  # nobody typed it: what is printed stays, and `inferred` says so
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


_CACHE = re.compile(r"\b(int8|fp8|8-bit)[ -]*kv\b")
_TWICE = re.compile(r"\bdq\b|double[- ]quant", re.IGNORECASE)
_SERVED = {("16", form): "w8a16 fp8" if "8" in form else f"w4a16 {form}" for form in ("fp8", "mxfp8", "nvfp4", "mxfp4")}
_SERVED |= {("int8", "int8"): "w8a8 int8"}
"""Types of products and of weights that engines read as neither alone says: weights of few bits that kernels expand."""


def _dtype(cells: Mapping[str, Any]) -> str:
    """The type of the products, or that of quantised weights, which says more; with what has no typed column: the type
    of keys and values, and that scales are quantised as well.

    >>> _dtype({"kind": "inference", "parameter_dtype": "nf4", "dtype": "nf4-dq"}), _dtype({"compute_dtype": "w4a16"})
    ('bnb.nf4-dq', 'gptq-int4')
    >>> _dtype({"compute_dtype": "bf16", "parameter_dtype": "bf16", "dtype": "bf16 + INT8 KV"})
    'bf16 + int8 KV'
    >>> _dtype({"kind": "inference", "compute_dtype": "bf16", "parameter_dtype": "fp8"})
    'w8a16 fp8'
    """
    stored, computed = str(cells.get("parameter_dtype", "")), str(cells.get("compute_dtype", ""))
    name = _STORED.get(stored) or {"w4a16": "gptq-int4", "w8a16": "gptq-int8"}.get(computed, computed)
    if kind_of(str(cells.get("kind", ""))) == "inference":
        name = _SERVED.get(("16" if computed in ("bf16", "fp16") else computed, stored), name)
        name += "-dq" if stored == "nf4" and _TWICE.search(str(cells.get("dtype"))) else ""
    cache = _CACHE.search(str(cells.get("dtype", "")).casefold())
    return f"{name} + {cache[1]} KV" if cache and name else name


def unknowns(cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Typed columns of a row that say `unknown`: assumptions of whatever is predicted of it."""
    return tuple(name for name in (*TYPED, "memory_probe", "logits_kernel") if cells.get(name) == "unknown")


def inferred(cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of free text from which a row was read: all of an untyped row, and those whose typed ones are blank."""
    if not cells.get("stack"):
        return tuple(name for name in (*TEXTS, "notes") if cells.get(name))
    return tuple(name for name, typed in TEXTS.items() if cells.get(name) and not any(map(cells.get, typed)))


class Refusal(Exception):
    """A row that cannot be predicted, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measured configuration and quantity; every attribute is a column, None where the cell is blank."""

    id: str
    metric: str
    value: float
    unit: str = ""
    source: str = ""
    kind: str = "pretrain"
    """pretrain, sft, lora, rm, ppo, inference or run_total."""
    model: str = ""
    params_b: float | None = None
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    moe: str = ""
    seq: int | None = None
    gpu: str = ""
    mem_gb: float | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    interconnect: str = ""
    framework: str = ""
    dtype: str = ""
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    shard: str = ""
    mbs: float | None = None
    gbs: float | None = None
    recompute: str = ""
    flash: int | None = None
    isl: float | None = None
    osl: float | None = None
    notes: str = ""
    head_dim: int | None = None
    expert_ffn: int | None = None
    n_experts: int | None = None
    n_active_experts: int | None = None
    n_shared_experts: int | None = None
    dense_first_layers: int | None = None
    attention: str = ""
    tied_embeddings: int | None = None
    adapter: str = ""
    lora_rank: int | None = None
    mean_len: float | None = None
    offload: str = ""
    critic_params_b: float | None = None
    reward_params_b: float | None = None
    samples_per_step: float | None = None
    gen_tp: int | None = None
    gen_dp: int | None = None
    rl_mode: str = ""
    n_generations: float | None = None
    seqpar: int | None = None
    config_id: str = ""
    weight: float = 1.0
    stack: str = ""
    """Family of the software; this and what follows are the typed columns, blank in a row that has none."""
    stack_version: str = ""
    accelerator: str = ""
    device_hbm_gb: float | None = None
    device_hbm_tb_per_s: float | None = None
    device_power_watts: float | None = None
    compute_dtype: str = ""
    parameter_dtype: str = ""
    gradient_dtype: str = ""
    optimizer_dtype: str = ""
    master_dtype: str = ""
    recompute_kind: str = ""
    attention_kernel: str = ""
    logits_kernel: str = ""
    shard_kind: str = ""
    prompt_tokens: float | None = None
    response_tokens_mean: float | None = None
    response_tokens_cap: float | None = None
    memory_probe: str = ""
    """active, allocated, reserved, nvidia_smi or unknown."""
    also_held: str = ""
    """Held beside what kind and adapter say: ends, norms and average, joined by plus signs, or none."""
    problems: tuple[str, ...] = ()
    """Cells that could not be read; a row that has any is refused, with them as the reason."""

    def __post_init__(self) -> None:
        """Cells that sources spell in many ways get one spelling."""
        printed = {name: getattr(self, name) for name in ("kind", "adapter", "recompute", "offload")}
        for name, value in respelt(printed | {"shard": self.shard, "framework": self.framework}).items():
            object.__setattr__(self, name, value)

    @property
    def prefix(self) -> str:
        """The source family: three letters before the first dash of the id, in capitals; `KOR` of kor-0001."""
        return self.id.partition("-")[0][:3].upper()

    @property
    def extras(self) -> list[str]:
        """Return what is trained or held beside what kind and adapter say: of `also_held`, or as the notes name it."""
        return (self.also_held or also_held_in(self.notes)).split("+")

    @property
    def is_bound(self) -> bool:
        """Return True if the value is an upper bound: what was measured is not above it."""
        return self.metric.endswith("_upper")

    def error_of(self, predicted: float) -> float:
        """Predicted over measured, less one; 0 where a prediction agrees with a bound."""
        error = predicted / self.value - 1
        return max(error, 0.0) if self.is_bound else error

    @property
    def says_lengths(self) -> bool:
        """Return False for a step of reinforcement learning whose answers may have any length up to a limit."""
        return self.kind != "ppo" or bool(self.osl or self.mean_len)


_TYPES = get_type_hints(Measurement)
COLUMNS = tuple(field.name for field in fields(Measurement) if field.name != "problems")
_NEEDED = ("id", "metric", "value")
_CLASSIC = (
    *("layers", "heads", "kv_heads", "ffn", "vocab", "seq", "dtype"),
    *("gpus", "tp", "pp", "dp", "vpp", "mbs", "gbs"),
)
_OTHER_NAMES = {
    other: name
    for name, others in {
        "gpus": "num_gpus n_gpus ngpus gpu_count num_devices devices world_size accelerators",
        "gpu": "gpu_type gpu_name device device_name hardware",
        "gbs": "global_batch_size global_batch batch_size_global train_batch_size",
        "mbs": "micro_batch_size micro_batch per_device_train_batch_size per_device_batch_size",
        "seq": "seq_len seq_length sequence_length max_seq_len max_seq_length context_length",
        "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp_size",
        "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp_size",
        "dp": "data_parallel data_parallel_size dp_size",
        "cp": "context_parallel context_parallel_size cp_size",
        "ep": "expert_parallel expert_parallel_size expert_model_parallel_size ep_size",
        "n_experts": "num_experts experts num_local_experts",
        "isl": "input_len input_length input_tokens prompt_len prompt_length",
        "osl": "output_len output_length output_tokens max_new_tokens",
        "dtype": "precision datatype data_type torch_dtype",
        "model": "model_name model_id model_name_or_path",
        "metric": "metric_name",
        "unit": "units",
        "layers": "num_layers n_layers num_hidden_layers",
        "hidden": "hidden_size d_model",
        "heads": "num_heads n_heads num_attention_heads",
        "recompute": "gradient_checkpointing activation_checkpointing",
    }.items()
    for other in others.split()
}
"""What other tools call a column; a row without it would be predicted as one that does not say."""
_MAY_BE_ZERO = {
    *(
        "value",
        "weight",
        "flash",
        "tied_embeddings",
        "seqpar",
        "n_shared_experts",
        "dense_first_layers",
        "lora_rank",
        "vpp",
    ),
    *("critic_params_b", "reward_params_b", "n_experts", "n_active_experts", "isl", "osl", "prompt_tokens", "mean_len"),
}
"""Numbers that say no by 0; everything else counts or measures something that is there."""
MOST = 1e12
"""No cell but a value is larger; tokens of a run are, and no column holds them."""
_CLASSIC_FRAMEWORKS = {
    "kor22": "Megatron-LM 2022",
    "nar21": "Megatron-LM 2021",
    "mtnlg": "Megatron-DeepSpeed 2021",
}


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """Rows of a CSV file in the layout of the calibration file, or in that of the classic table of training steps.

    Raises DataError with every bad cell of the file at once.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give a CSV of measured runs") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; give a CSV of measured runs") from error
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [_column(name) for name in table.fieldnames or ()]
        table.fieldnames = columns
        if problems := misnamed(columns):
            raise DataError("\n".join(f"{path}: {problem}" for problem in problems))
        if {"id", "metric", "value"} <= set(columns):
            return parse(table, str(path))
        if {"id", "model_hidden", "measured_step_s"} <= set(columns):
            return parse((row for cells in table for row in from_classic(cells)), str(path))
    except csv.Error as error:
        raise DataError(f"{path}, line {table.line_num}: {error}; give a CSV of measured runs") from error
    raise DataError(
        f"{path}: expected columns id, metric, value, ... (or id, model_hidden, measured_step_s, ...), "
        f"found {', '.join(sorted(columns)) or 'none'}"
    )


def _column(name: str) -> str:
    """Spaces around a name and its capitals mean nothing, unless it has none of ours."""
    plain = name.strip().casefold()
    return plain if plain in COLUMNS else name.strip()


def misnamed(columns: Sequence[str]) -> list[str]:
    """Reasons that keep a header from being read: names twice, or of other tools for a column of ours.

    >>> misnamed(["id", "value", "value", "num_gpus"])
    ['column value stands twice', "column num_gpus: write 'gpus' if it means the same, else another name"]
    >>> misnamed(["id;metric;value"])
    ["columns are divided by ';'; divide them by commas"]
    """
    if len(columns) == 1 and (divider := re.search(r"[;\t|]", columns[0])):
        return [f"columns are divided by {divider[0]!r}; divide them by commas"]
    twice = [name for name in dict.fromkeys(columns) if name in COLUMNS and columns.count(name) > 1]
    problems = [f"column {name} stands twice" for name in twice]
    for name in columns:
        meant = _OTHER_NAMES.get(re.sub(r"[-. ]", "_", name.casefold()))
        if meant and meant not in columns:
            problems.append(f"column {name}: write {meant!r} if it means the same, else another name")
    return problems


def parse(rows: Iterable[Mapping[str, Any]], file: str) -> tuple[Measurement, ...]:
    """Typed rows. A row without id, metric or value is an error (all of a file at once); other bad cells go with it."""
    typed, errors = [], []
    for number, cells in enumerate(rows, start=2):
        values: dict[str, Any] = {}
        problems = []
        for column in COLUMNS:
            try:
                value = _cell(column, cells.get(column))
            except ValueError as error:
                problems.append(f"line {number}, column {column}: {error}")
                continue
            if value is not None:
                values[column] = value
        problems += [f"line {number}, {problem}" for problem in misread(values)]
        if surplus := cells.get(None):  # type: ignore[call-overload]
            problems.append(f"line {number}: {len(surplus)} cells more than the header has names")
        missing = [column for column in _NEEDED if column not in values]
        if missing:
            errors += problems or [f"line {number}: {', '.join(missing)} missing"]
        else:
            typed.append(Measurement(**settled(values), problems=tuple(problems)))
    if errors:
        raise DataError("\n".join(f"{file}, {error}" for error in errors))
    return tuple(typed)


def _cell(column: str, text: Any) -> Any:
    stripped = str(text if text is not None else "").strip()
    if not stripped:
        return None
    kind = _TYPES[column]
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if str in kinds:
        return stripped
    number = _number(stripped)
    if column != "value" and not 0 <= number <= MOST:
        raise ValueError(f"{stripped!r} is not between 0 and {MOST:g}")
    if number == 0 and column not in _MAY_BE_ZERO:
        raise ValueError("0 says nothing; leave the cell blank where nobody knows")
    if int not in kinds:
        return number
    if number != int(number):
        raise ValueError(f"{stripped!r} is not a whole number")
    return int(number)


def _number(text: str) -> float:
    """A finite number as computers write it, since `1,024` and `3,1` mean two things each."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number; write digits and a point, without unit and commas") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no finite number")
    return number


def from_classic(cells: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """One row per measured quantity: the step time, and the memory where it is given.

    >>> row = {"id": "kor22-t5-22b-full", "model_hidden": "6144", "gpu": "a100-80g", "recompute": "selective",
    ...        "seqpar": "1", "zero_stage": "0", "measured_step_s": "1.42", "measured_mem_gib": ""}
    >>> [(made["metric"], made["recompute"], made["framework"]) for made in from_classic(row)]
    [('step_time_s', 'selective+sp', 'Megatron-LM 2022')]
    """
    parallel = cells.get("seqpar") == "1"
    base = {name: cells.get(name) or "" for name in _CLASSIC}
    zero = cells.get("zero_stage") or "0"
    base |= {
        "id": cells["id"],
        "source": "classic table of training steps",
        "kind": "pretrain",
        "model": cells["id"],
        "hidden": cells["model_hidden"],
        "attention": "mha" if cells.get("heads") == cells.get("kv_heads") else "gqa",
        "gpu": cells["gpu"],
        "gpus_per_node": "8",
        "framework": _framework(cells["id"], zero),
        "tied_embeddings": "1",
        "flash": "0",
        "shard": "none" if zero == "0" else f"zero{zero}",
        "seqpar": "1" if parallel else "0",
        "recompute": (cells.get("recompute") or "") + ("+sp" if parallel else ""),
        "adapter": "full",
        "weight": "1",
    }
    for column, metric, unit in (("measured_step_s", "step_time_s", "s"), ("measured_mem_gib", "peak_mem_gib", "GiB")):
        if cells.get(column):
            suffix = "" if metric == "step_time_s" else ":memory"
            yield {**base, "id": cells["id"] + suffix, "metric": metric, "value": cells[column], "unit": unit}


def _framework(name: str, zero: str) -> str:
    """The stack of a row: ZeRO-3 rows of Narayanan 2021 ran DeepSpeed; the rest by the source of the row."""
    return "DeepSpeed 2021" if zero == "3" else _CLASSIC_FRAMEWORKS.get(name.partition("-")[0], "Megatron-LM")
