"""Rows of the classic table of Megatron training steps, in the columns of the calibration file."""

from collections.abc import Iterator, Mapping

_SAME = ("layers", "heads", "kv_heads", "ffn", "vocab", "seq", "gpus", "tp", "pp", "dp", "vpp", "mbs", "gbs", "dtype")
_FRAMEWORKS = {
    "kor22": "Megatron-LM 2022",
    "nar21": "Megatron-LM 2021",
    "mtnlg": "Megatron-DeepSpeed 2021",
}


def from_classic(cells: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """One row per measured quantity: the step time, and the memory where it is given.

    >>> row = {"id": "kor22-t5-22b-full", "model_hidden": "6144", "gpu": "a100-80g", "recompute": "selective",
    ...        "seqpar": "1", "zero_stage": "0", "measured_step_s": "1.42", "measured_mem_gib": ""}
    >>> [(made["metric"], made["recompute"], made["framework"]) for made in from_classic(row)]
    [('step_time_s', 'selective+sp', 'Megatron-LM 2022')]
    """
    parallel = cells.get("seqpar") == "1"
    base = {name: cells.get(name) or "" for name in _SAME}
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
