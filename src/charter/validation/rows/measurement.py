"""One measured run: a row of a table of published measurements, with typed cells.

Blank means that the source does not say. Columns are those of `docs/reference/measurements.md`.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from charter.errors import DataError
from charter.validation.rows.spellings import respelt
from charter.validation.rows.typed import settled


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
    problems: tuple[str, ...] = ()
    """Cells that could not be read; a row that has any is refused, with them as the reason."""

    def __post_init__(self) -> None:
        """Cells that sources spell in many ways get one spelling."""
        printed = {name: getattr(self, name) for name in ("kind", "adapter", "recompute", "offload")}
        for name, value in respelt(printed | {"shard": self.shard, "framework": self.framework}).items():
            object.__setattr__(self, name, value)

    @property
    def prefix(self) -> str:
        """The source family: what stands before the first dash of the id, in capitals of at most three letters.

        >>> Measurement(id="KOR-0001", metric="step_time_s", value=1.0).prefix
        'KOR'
        """
        return self.id.partition("-")[0][:3].upper()


_TYPES = get_type_hints(Measurement)
_COLUMNS = tuple(field.name for field in fields(Measurement) if field.name != "problems")
_NEEDED = ("id", "metric", "value")
_CLASSIC = (
    *("layers", "heads", "kv_heads", "ffn", "vocab", "seq", "dtype"),
    *("gpus", "tp", "pp", "dp", "vpp", "mbs", "gbs"),
)
_FRAMEWORKS = {
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
    table = csv.DictReader(text.splitlines())
    columns = set(table.fieldnames or ())
    if {"id", "metric", "value"} <= columns:
        return parse(table, str(path))
    if {"id", "model_hidden", "measured_step_s"} <= columns:
        return parse((row for cells in table for row in from_classic(cells)), str(path))
    raise DataError(
        f"{path}: expected columns id, metric, value, ... (or id, model_hidden, measured_step_s, ...), "
        f"found {', '.join(sorted(columns)) or 'none'}"
    )


def parse(rows: Iterable[Mapping[str, Any]], file: str) -> tuple[Measurement, ...]:
    """Typed rows. A row without id, metric or value is an error (all of a file at once); other bad cells go with it."""
    typed, errors = [], []
    for number, cells in enumerate(rows, start=2):
        values: dict[str, Any] = {}
        problems = []
        for column in _COLUMNS:
            try:
                value = _cell(column, cells.get(column))
            except ValueError as error:
                problems.append(f"line {number}, column {column}: {error}")
                continue
            if value is not None:
                values[column] = value
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
    number = float(stripped)
    if int not in kinds:
        return number
    if number != int(number):
        raise ValueError(f"{stripped!r} is not a whole number")
    return int(number)


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
    return "DeepSpeed 2021" if zero == "3" else _FRAMEWORKS.get(name.partition("-")[0], "Megatron-LM")
