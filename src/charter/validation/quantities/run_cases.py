"""From a measured whole run to its steps, with every gap filled by a stated rule."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.physics.shapes import count_parameters
from charter.physics.step_time import UpdateJob, update_seconds
from charter.spec.architecture import Architecture
from charter.validation.quantities.rl_cases import RlCase, rl_case_of, together_in_training
from charter.validation.quantities.rl_layout import best_layout, in_node_of, printed_layout, recompute_of
from charter.validation.quantities.rl_setting import RlSetting, rl_setting
from charter.validation.quantities.run_facts import amount, batch_tokens_of, tokens_of, usd_per_accelerator_hour
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.metrics import run_metric
from charter.validation.stacks import bits_of, update_stack

PRETRAINING_BATCH, SMALL_BATCH, LARGE_BATCH, TUNING_BATCH = 4.0e6, 1.0e6, 16e6, 1.3e5
"""Tokens of a global batch where none is printed: of pretraining, below 3B, above 200B, of fine-tuning. Judgement."""
SMALL_MODEL, SHARDED_MODEL, LARGE_MODEL = 3e9, 1.5e10, 2e11
"""Parameters below which batches are smaller, from which tensor parallelism is expected, and batches are larger."""
DEVICES_PER_BILLION = 16
"""Accelerators where none are printed, per 10^9 parameters; accelerator-hours hardly depend on it. Judgement."""
MOST_PAIRS = 1024
TUNING_WORK = {"sft": 60_000 * 3.0, "lora": 60_000 * 3.0, "rm": 130_000 * 2.0}
"""Sequences of a fine-tuning that prints no amount: three epochs of 60,000 conversations, one of 130,000 pairs.
Judgement: the middle of common instruction and preference sets (Alpaca 52k, ShareGPT 70k; Anthropic HH 161k pairs)."""
TUNING_SEQUENCE = 512
SMALL_SET = 0.25
"""Of that, where the row calls its data small (judgement)."""


@dataclass(frozen=True, kw_only=True)
class RunCase:
    """One run: its training steps or its reinforcement-learning steps."""

    stack: str
    train_seconds: float
    """Of one optimizer step; 0 where `rl` stands for the step."""
    rl: RlCase | None
    steps: float
    devices: int
    usd_per_hour: float
    ideal: bool
    metric: str
    scale: float = 1.0
    """From hours (days, dollars) to the row's unit."""


def run_case(row: Measurement) -> RunCase:
    """The run behind a row; raises Refusal where its model, accelerator or amount of work is unknown."""
    if (run_metric(row) or ("", 1.0))[0] == "cost_usd":
        price = usd_per_accelerator_hour(row, accelerator_of(row))
        if price is None:
            raise Refusal(f"no price of {row.gpu} is in the catalog or in the row")
    else:
        price = 0.0
    if row.kind == "ppo":
        return _rl_run(row, price)
    return _training_run(row, price)


def _training_run(row: Measurement, price: float) -> RunCase:
    architecture = architecture_of(row)
    metric, scale = run_metric(row) or (row.metric, 1.0)
    accelerator = in_node_of(accelerator_of(row), row.gpus_per_node)
    seq = int(row.seq or row.mean_len or _usual_length(row, architecture))
    tokens = _work(row, seq)
    devices = row.gpus or _devices_in_notes(row) or _devices(architecture)
    batch = _batch_sequences(row, architecture, seq, tokens, devices)
    layout = printed_layout(row, devices, batch)
    if layout is not None and _is_plain_data_parallel(row):
        layout = None
    job = _update_job(row, architecture, accelerator, seq, tensor=layout is not None and layout.tensor > 1)
    if layout is None:
        _, seconds, _ = best_layout(job, devices, batch, recompute_of(row.recompute) if row.recompute else None)
    else:
        seconds, _ = update_seconds(job, [layout]).at(0)
    return RunCase(
        stack="run" if row.kind == "run_total" else _tuning_stack(row),
        train_seconds=seconds,
        rl=None,
        steps=tokens / (batch * seq),
        devices=devices,
        usd_per_hour=price,
        ideal=_is_ideal(row),
        metric=metric,
        scale=scale,
    )


def _update_job(
    row: Measurement, architecture: Architecture, accelerator: Accelerator, seq: float, *, tensor: bool
) -> UpdateJob:
    adapted = row.adapter in ("lora", "qlora")
    return UpdateJob(
        architecture=architecture,
        accelerator=accelerator,
        profile=update_stack(row, tensor=tensor or count_parameters(architecture).total > SHARDED_MODEL),
        seq_len=seq,
        bits=bits_of(row.dtype),
        adapter_rank=float(row.lora_rank or 16) if adapted else 0.0,
        base_bits=4.0 if row.adapter == "qlora" else 16.0,
        per_node=row.gpus_per_node,
    )


def _is_plain_data_parallel(row: Measurement) -> bool:
    """A row that prints degrees of 1 and no sharding has left the layout to the stack."""
    return not row.shard and not row.mbs and all((degree or 1) == 1 for degree in (row.tp, row.pp, row.cp))


def _work(row: Measurement, seq: int) -> float:
    """Tokens of the run: stated, or from steps, or from rows and epochs."""
    tokens = tokens_of(row)
    epochs = amount(row.notes, "epochs?") or 1.0
    if tokens:
        return tokens * (epochs if re.search(r"tokens? (?:per|an|each) epoch", row.notes) else 1.0)
    steps = amount(row.notes, "steps|iterations|updates")
    if steps and row.gbs:
        return steps * row.gbs * (row.mean_len or seq)
    rows = amount(
        row.notes,
        "samples|examples|prompts|conversations|pairs|instructions|rows|sequences|questions|demonstrations|dialogues",
    )
    if rows:
        each = row.mean_len or min(seq, 512)
        return rows * epochs * each * (2 if re.search(r"pairs", row.notes) and row.kind == "rm" else 1)
    if row.kind in TUNING_WORK:
        return TUNING_WORK[row.kind] * min(seq, TUNING_SEQUENCE) * (SMALL_SET if "small" in row.notes else 1.0)
    raise Refusal("the row says neither tokens nor steps nor samples of the run, and the model's are not known")


def _usual_length(row: Measurement, a: Architecture) -> int:
    """Sequence length of a run that prints none: of pretraining what the model was made for, at most 8192."""
    return min(8192, a.max_position_embeddings) if row.kind == "run_total" else 2048


def _devices_in_notes(row: Measurement) -> int | None:
    match = re.search(r"\b(\d{2,5})\s*(?:x\s*)?(?:A100|H100|H800|H200|B200|V100|MI250X|MI300X|GPUs?\b|TPU)", row.notes)
    return int(match[1]) if match else None


def _devices(architecture: Architecture) -> int:
    wanted = DEVICES_PER_BILLION * count_parameters(architecture).total / 1e9
    return int(min(8192, max(8, 2 ** round(math.log2(max(wanted, 8.0))))))


def _batch_sequences(row: Measurement, a: Architecture, seq: int, tokens: float, devices: int) -> float:
    if row.gbs:
        return row.gbs
    stated = batch_tokens_of(row)
    size = count_parameters(a).total
    usual = SMALL_BATCH if size < SMALL_MODEL else LARGE_BATCH if size > LARGE_MODEL else PRETRAINING_BATCH
    if row.kind != "run_total":
        usual = TUNING_BATCH
    batch = max(1.0, (stated or min(usual, tokens / 10)) / seq)
    return float(max(devices, devices * round(batch / devices)) if batch > devices / 2 else round(batch))


def _tuning_stack(row: Measurement) -> str:
    return "deepspeed-chat tuning" if re.search(r"deepspeed[- ]?chat", row.framework, re.I) else "tuning"


def _is_ideal(row: Measurement) -> bool:
    return bool(re.search(r"ideal|without faults|no failures|steady[- ]state|extrapolated", row.notes, re.I))


def _rl_run(row: Measurement, price: float) -> RunCase:
    setting = rl_setting(row)
    metric, scale = run_metric(row) or (row.metric, 1.0)
    total = _answers(row, setting)
    stated = row.samples_per_step or row.gbs or (setting.samples if setting.stack.resharding else None)
    samples = stated or _largest_step(row, setting, total)
    setting = rl_setting(row, samples=min(samples, total))
    return RunCase(
        stack=setting.stack.label,
        train_seconds=0.0,
        rl=rl_case_of(row, setting),
        steps=max(1.0, total / setting.samples),
        devices=setting.devices,
        usd_per_hour=price,
        ideal=_is_ideal(row),
        metric=metric,
        scale=scale,
    )


def _answers(row: Measurement, setting: RlSetting) -> float:
    """Answers of the whole run: prompts x answers per prompt x epochs, or steps x answers per step, or tokens."""
    epochs = amount(row.notes, "epochs?") or 1.0
    prompts = amount(row.notes, "prompts|questions|queries|problems")
    if prompts:
        return prompts * epochs * (row.n_generations or 1)
    steps = amount(row.notes, "steps|iterations|updates")
    if steps:
        return steps * setting.samples
    episodes = amount(row.notes, "episodes|samples|rollouts|answers|responses|pairs")
    if episodes:
        return episodes * epochs
    tokens = tokens_of(row)
    if tokens:
        return tokens / setting.mean_len
    raise Refusal("the row says neither prompts nor steps nor tokens of the run")


def _largest_step(row: Measurement, setting: RlSetting, total: float) -> float:
    """Answers that all accelerators work on together: what fits, at most the limit that the notes state."""
    stated = amount(row.notes.replace("max global batch", ""), "pairs") or MOST_PAIRS
    each = together_in_training(setting, setting.devices)
    return float(min(stated, total, max(1, round(each)) * setting.devices))
