"""Rows in the layout of docs/reference/measurements.md, which `charter validate` reads."""

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from charter.units import GB
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.measurement import Measurement, Refusal

from .grid import AMP, PURE, Case

COLUMNS = tuple(field.name for field in fields(Measurement) if field.name != "problems")
UNITS = {"out_tokens_per_s": "tok/s"}
PRECISIONS = {
    AMP: "bf16 autocast over fp32 weights, gradients and moments (as the engine trains)",
    PURE: "weights, gradients and moments in bf16, no master copy",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of the rows."""

    device: str
    name: str
    memory_bytes: int
    devices: int
    torch: str
    transformers: str
    cuda: str | None

    def accelerator(self) -> tuple[str, str]:
        """The catalog's name and nominal GB of what torch calls `name`; torch's own name where the catalog has none.

        >>> h200 = Machine(device="cuda", name="NVIDIA H200", memory_bytes=150_000_000_000, devices=1, torch="",
        ...     transformers="", cuda=None)
        >>> h200.accelerator()[0]
        'H200-SXM-141GB'
        """
        if self.device == "cpu":
            return "cpu", ""
        question = Measurement(id="X", metric="step_time_s", value=1.0, gpu=self.name.removeprefix("Tesla "))
        try:
            entry = accelerator_of(question)
        except Refusal:
            return self.name, f"{self.memory_bytes / GB:.0f}"
        printed = re.search(r"-(\d+)GB$", entry.name)
        return entry.name, printed[1] if printed else f"{entry.memory_bytes / GB:.0f}"


def rows_of(case: Case, found: Mapping[str, Any], machine: Machine) -> list[dict[str, str]]:
    """One row per quantity of a case; a case that ran out of memory is one `oom` row."""
    shared = _configuration(case, machine) | {"notes": _notes(case, found, machine)}
    for column in ("params_b", "critic_params_b", "reward_params_b"):
        if column in found:
            shared[column] = f"{found[column]:.6g}"
    if found["status"] == "oom":
        return [shared | {"metric": "oom", "value": "1", "unit": "bool"}]
    rows = [
        shared | {"metric": metric, "value": f"{value:.6g}", "unit": UNITS.get(metric, "s")}
        for metric, value in found["metrics"].items()
    ]
    return [
        *rows,
        shared | {"metric": "peak_mem_gib", "value": f"{found['peak_gib']:.6g}", "unit": found["memory_unit"]},
    ]


def write_rows(path: Path, rows: Iterable[Mapping[str, str]], prefix: str) -> None:
    """The whole file, at once; ids are numbered in order."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for number, row in enumerate(rows, start=1):
            name = f"{prefix}-{row['config_id']}"
            writer.writerow({**row, "id": f"{prefix}-{number:04d}", "config_id": name})
    os.replace(temporary, path)


def _configuration(case: Case, machine: Machine) -> dict[str, str]:
    gpu, memory = machine.accelerator()
    kind = case.kind
    row: dict[str, Any] = {
        "source": f"benchmarks/measure_steps.py, {date.today().isoformat()}",
        "kind": kind,
        "model": case.model,
        **_shape(case),
        "gpu": gpu,
        "mem_gb": memory,
        "gpus": 1,
        "gpus_per_node": machine.devices,
        "framework": f"charter native (HF + torch {machine.torch.partition('+')[0]})",
        "dtype": case.precision,
        **dict.fromkeys(("tp", "pp", "vpp", "cp", "dp"), 1),
        "mbs": case.micro_batch,
        "flash": 1,
        "seqpar": 0,
        "offload": "none",
        "config_id": hashlib.sha256(repr((case, gpu)).encode()).hexdigest()[:10],
        "weight": 1,
    }
    row |= _typed(case, gpu, machine)
    if kind != "inference":
        row |= {"seq": case.seq, "mean_len": case.seq, "gbs": case.global_batch, "shard": "none"}
        row |= {"recompute": "full" if case.recompute else "none", "adapter": "lora" if case.lora_rank else "full"}
    if case.lora_rank:
        row["lora_rank"] = case.lora_rank
    if case.answer_tokens:
        row |= {"isl": case.prompt_tokens, "osl": case.answer_tokens}
    if kind == "ppo":
        row |= {"samples_per_step": case.rollout_batch, "n_generations": 1, "gen_tp": 1, "gen_dp": 1, "rl_mode": "sync"}
    return {column: str(value) for column, value in row.items()}


def _typed(case: Case, gpu: str, machine: Machine) -> dict[str, Any]:
    """The columns that say in words of their own what `framework`, `dtype` and `notes` say in prose."""
    weights = "bf16" if case.precision == PURE else "fp32"
    typed = {
        "stack": "charter",
        "stack_version": f"torch {machine.torch.partition('+')[0]}",
        "accelerator": gpu,
        "compute_dtype": "bf16",
        "parameter_dtype": "bf16" if case.lora_rank else weights,
        "gradient_dtype": weights,
        "optimizer_dtype": weights,
        "master_dtype": "none",
        "recompute_kind": "full" if case.recompute else "none",
        "attention_kernel": "sdpa",
        "logits_kernel": "none" if case.kind == "rm" else "chunked",
        "shard_kind": "none",
    }
    if case.kind == "inference":
        typed |= dict.fromkeys(("gradient_dtype", "optimizer_dtype", "master_dtype", "recompute_kind"), "none")
        typed["logits_kernel"] = "none"
    if case.answer_tokens:
        typed |= {"prompt_tokens": case.prompt_tokens, "response_tokens_mean": case.answer_tokens}
        typed["response_tokens_cap"] = case.answer_tokens
    return typed


def _shape(case: Case) -> dict[str, Any]:
    a = case.architecture
    return {
        "hidden": a.hidden_size,
        "layers": a.num_layers,
        "heads": a.num_heads,
        "kv_heads": a.kv_heads,
        "head_dim": a.head_size,
        "ffn": a.intermediate_size,
        "vocab": a.vocab_size,
        "attention": "mha" if a.kv_heads == a.num_heads else "mqa" if a.kv_heads == 1 else "gqa",
        "tied_embeddings": int(a.tied_embeddings),
    }


def _notes(case: Case, found: Mapping[str, Any], machine: Machine) -> str:
    said = [
        f"torch {machine.torch}, transformers {machine.transformers}, CUDA {machine.cuda}",
        "sdpa attention, deterministic kernels, random weights, no padding",
        f"{case.precision}: {PRECISIONS[case.precision]}",
    ]
    if case.kind == "rm":
        said.append(f"one sample = chosen + rejected (2 sequences of {case.seq}); scalar head, no logits")
    if case.kind == "ppo":
        said.append(
            f"policy, value, reference and reward of one shape; 1 epoch, a minibatch of {case.micro_batch} is an "
            "optimizer step; other = reward, old and reference log-probabilities, values"
        )
    if case.kind == "lora":
        said.append("adapters on all projections of the layers, in the dtype of the weights")
    if case.kind == "inference":
        said.append("the engine's own sampling loop, prefill included, dense cache")
    if found["status"] != "ok":
        return "; ".join([*said, str(found.get("detail", ""))])
    low, high = found["spread"]
    said.append(f"median of {found['steps']} (fastest {low:.4g} s, slowest {high:.4g} s)")
    said.append(f"resident GiB: {_listed(found['resident_gib'])}")
    if "phase_peak_gib" in found:
        said.append(f"peak GiB by phase: {_listed(found['phase_peak_gib'])}")
    if found.get("reserved_gib") is not None:
        said.append(f"reserved {found['reserved_gib']:.3f} GiB")
    if found.get("ratio_is_checked") is False:
        said.append("kernels did not repeat bit for bit: the engine's check of the first ratio was left out")
    return "; ".join(said)


def _listed(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size:.3f}" for name, size in sizes.items())
