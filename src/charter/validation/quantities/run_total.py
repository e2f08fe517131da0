"""Hours and cost of whole runs: from a row over its stages to wall time and USD."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.catalog.price_book import Market, offers
from charter.physics.columns import Array, array
from charter.physics.runs import RlPhases, Run, RunConstants, rl_step_terms, run_hours, run_usd
from charter.physics.shapes import count_parameters
from charter.physics.step_time import UpdateJob, update_seconds
from charter.spec.architecture import Architecture
from charter.validation.quantities.rl_setting import (
    RlSetting,
    best_layout,
    printed_layout,
    recompute_of,
    rl_setting,
)
from charter.validation.quantities.rl_step import RlCase, phases_of, rl_case_of, together_in_training
from charter.validation.rows.accelerator import accelerator_of, in_node_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.metrics import run_metric
from charter.validation.stacks import bits_of, update_stack

_UNITS = {"": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "billion": 1e9, "t": 1e12}
_UNITS |= {"trillion": 1e12}
_UNIT = r"(k|m|b|t|thousand|million|billion|trillion)?"
_NUMBER = rf"(\d[\d,]*(?:\.\d+)?)\s*{_UNIT}\+?"

KNOWN_TOKENS: tuple[tuple[str, float], ...] = (
    (r"codellama.*70", 1.0e12),
    (r"codellama", 5.0e11),
    (r"tinyllama", 3.0e12),
    (r"open-?llama", 1.0e12),
    (r"llama[- ]?2(?!\d)", 2.0e12),
    (r"llama[- ]?3\.2.*\b[13]b", 9.0e12),
    (r"llama[- ]?3\.[123]", 15.0e12),
    (r"llama[- ]?4.*scout", 40e12),
    (r"llama[- ]?4.*maverick", 22e12),
    (r"llama[- ]?3(?!\d)", 15.0e12),
    (r"llama[^\d]*(30|33|65)b", 1.4e12),
    (r"llama[^\d]*(7|13)b", 1.0e12),
    (r"opt-?175", 3.0e11),
    (r"\bopt-", 1.8e11),
    (r"bloom", 3.66e11),
    (r"pythia", 3.0e11),
    (r"gpt-?neox-?20", 4.72e11),
    (r"gpt-?j", 4.02e11),
    (r"gpt-?3.*175|gpt-?175", 3.0e11),
    (r"mpt-?(7|30)b", 1.0e12),
    (r"falcon.*180", 3.5e12),
    (r"falcon.*40", 1.0e12),
    (r"falcon-?7", 1.5e12),
    (r"deepseek[- ]?v3(?!\.\d)", 14.8e12),
    (r"deepseek[- ]?v2.*lite", 5.7e12),
    (r"deepseek[- ]?v2", 8.1e12),
    (r"deepseek.*(7|67)b", 2.0e12),
    (r"olmo[- ]?2.*32", 6.0e12),
    (r"olmo[- ]?2.*13", 5.0e12),
    (r"olmo[- ]?2", 4.0e12),
    (r"olmoe", 5.1e12),
    (r"olmo", 2.5e12),
    (r"qwen[- ]?3(?!\.\d)", 36e12),
    (r"qwen[- ]?2\.5", 18e12),
    (r"qwen[- ]?2(?!\.\d)", 7e12),
    (r"gemma[- ]?3.*27", 14e12),
    (r"gemma[- ]?3.*12", 12e12),
    (r"gemma[- ]?3.*4", 4e12),
    (r"gemma[- ]?3.*1", 2e12),
    (r"gemma[- ]?2.*27", 13e12),
    (r"gemma[- ]?2.*9", 8e12),
    (r"gemma[- ]?2.*2b", 2e12),
    (r"gemma.*7", 6e12),
    (r"phi-?2", 1.4e12),
    (r"phi-?3.*mini", 3.3e12),
    (r"phi-?3.*(small|medium)", 4.8e12),
    (r"phi-?4(?!.*mini)", 9.8e12),
    (r"dbrx", 12e12),
    (r"smollm[- ]?3", 11.2e12),
    (r"smollm[- ]?2.*1\.7", 11e12),
    (r"starcoder(?![- ]?2)", 1.0e12),
    (r"starcoder[- ]?2.*15", 4.0e12),
    (r"stablelm.*(4e1t|3b)", 4.0e12),
    (r"redpajama.*7b", 1.0e12),
    (r"redpajama.*3b", 8.0e11),
    (r"nemotron-?4.*340", 9e12),
    (r"nemotron-?4.*15", 8e12),
    (r"nemotron-?h.*56", 20e12),
    (r"nemotron-?h.*8", 15e12),
    (r"\byi-?(6|9|34)", 3.1e12),
    (r"\bamber", 1.26e12),
    (r"\bk2-?65", 1.4e12),
    (r"kimi[- ]?k2", 15.5e12),
    (r"glm-?130", 4.0e11),
    (r"apertus", 15e12),
    (r"\bpalm", 7.8e11),
    (r"chinchilla", 1.4e12),
    (r"gopher", 3.0e11),
    (r"mt-?nlg|megatron-?turing", 2.7e11),
    (r"baichuan[- ]?2", 2.6e12),
    (r"internlm[- ]?2", 2.6e12),
    (r"cerebras-?gpt.*13", 2.57e11),
    (r"granite-?3.*8", 12e12),
    (r"dclm.*7", 2.6e12),
    (r"xgen", 1.5e12),
)
"""Training tokens that model cards and papers state; used where a row names a model and no tokens. From memory."""


def amount(text: str, noun: str) -> float | None:
    """The number in front of a noun: `1.4T tokens`, `131.9k prompts`, `15 trillion tokens`.

    >>> amount("131.9k prompts x (256 in + 256 out fixed), 1 epoch, 135M tokens", "tokens")
    135000000.0
    >>> amount("trained on 15 trillion tokens", "tokens"), amount("no number", "steps")
    (15000000000000.0, None)
    """
    match = re.search(rf"{_NUMBER}\s*(?:of\s+|training\s+|optimizer\s+|unique\s+)*(?:{noun})\b", text, re.I)
    if not match:
        return None
    return float(match[1].replace(",", "")) * _UNITS[(match[2] or "").casefold()]


def tokens_of(row: Measurement) -> float | None:
    """Tokens of the whole run: from the notes, else what is publicly known of the model (pretraining only)."""
    return _said_tokens(row) or _known_tokens(row)


def _said_tokens(row: Measurement) -> float | None:
    said = amount(_without_rates(row.notes), "tokens|tok") or amount(row.model, "tokens|tok")
    return said if said and said > 1e6 else None


def _known_tokens(row: Measurement) -> float | None:
    if row.kind != "run_total":
        return None
    named = re.sub(r"[_ ]+", "-", row.model.casefold())
    if re.search(r"distill|deepseek-r1", named):
        return None
    return next((tokens for pattern, tokens in KNOWN_TOKENS if re.search(pattern, named)), None)


def _without_rates(notes: str) -> str:
    """Notes without batches (`batch 4M tokens`) and rates (`380 tok/s`)."""
    notes = re.sub(r"batch(?: size)?(?: of)?\s*[~=:]?\s*" + _NUMBER + r"\s*tok\w*", "", notes, flags=re.I)
    notes = re.sub(r"~?" + _NUMBER + r"\s*tok(?:ens)?\s*/\s*\S+", "", notes, flags=re.I)
    return re.sub(_NUMBER + r"\s*tok(?:ens)?\s*(?:per|a)\s+\w+", "", notes, flags=re.I)


def batch_tokens_of(row: Measurement) -> float | None:
    """Tokens of a global batch as the notes say it.

    >>> batch_tokens_of(Measurement(id="X-1", metric="gpu_hours", value=1.0, notes="seq 2048, batch 4M tokens"))
    4000000.0
    """
    match = re.search(r"batch(?: size)?(?: of)?\s*[~=:]?\s*" + _NUMBER + r"\s*tok", row.notes, re.I)
    return float(match[1].replace(",", "")) * _UNITS[(match[2] or "").casefold()] if match else None


def usd_per_accelerator_hour(row: Measurement, accelerator: Accelerator) -> float | None:
    """A price the row states, else the on-demand price of the cloud it names, else the median over clouds.

    The price of a cloud is that of its cheapest region; a price that a note derives from the cost itself is not read.
    """
    devices = "GPU|accelerator|chip|device"
    stated = re.search(rf"(?<!about )\$\s?(\d+(?:\.\d+)?)\s*(?:per|/)\s*(?:{devices})[- ]?h", row.notes)
    if stated:
        return float(stated[1])
    prices: dict[str, float] = {}
    for offer in offers(accelerator.name, market=Market.ON_DEMAND):
        price = offer.usd_per_accelerator_hour(Market.ON_DEMAND)
        if price is not None:
            prices[offer.cloud] = min(price, prices.get(offer.cloud, price))
    text = f"{row.notes} {row.source} {row.interconnect}".casefold()
    named = [price for cloud, price in prices.items() if cloud in text]
    if named:
        return named[0]
    return median(prices.values()) if prices else None


_ROWS = "samples|examples|prompts|conversations|pairs|instructions|rows|sequences|questions|demonstrations|dialogues"
"""What tables count where they do not count tokens."""
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
    accelerator = in_node_of(row, accelerator_of(row))
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
    """Tokens of the run: stated, or from steps, or from rows and epochs; else what its model, or its kind, usually has.

    A run that states its samples is no pretraining of its model, though it is listed among whole runs.
    """
    tokens, epochs = _said_tokens(row), amount(row.notes, "epochs?") or 1.0
    if tokens:
        return tokens * (epochs if re.search(r"tokens? (?:per|an|each) epoch", row.notes) else 1.0)
    steps = amount(row.notes, "steps|iterations|updates")
    if steps and row.gbs:
        return steps * row.gbs * (row.mean_len or seq)
    rows = amount(_without_batches(row.notes), _ROWS)
    if rows:
        each = row.mean_len or min(seq, 512)
        return rows * epochs * each * (2 if re.search(r"pairs", row.notes) and row.kind == "rm" else 1)
    if tokens := _known_tokens(row):
        return tokens
    if row.kind in TUNING_WORK:
        return TUNING_WORK[row.kind] * min(seq, TUNING_SEQUENCE) * (SMALL_SET if "small" in row.notes else 1.0)
    raise Refusal("the row says neither tokens nor steps nor samples of the run, and the model's are not known")


def _without_batches(notes: str) -> str:
    """Notes without batches of samples (`batch of 1024 sequences`, `8 samples per device`)."""
    notes = re.sub(r"batch(?:es)?(?: size)?(?: of)?\s*[~=:]?\s*" + _NUMBER + r"\s*\w*", "", notes, flags=re.I)
    return re.sub(_NUMBER + rf"\s*(?:{_ROWS})\s*(?:/|per\b|a\b)\s*\w+", "", notes, flags=re.I)


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


METRICS = ("wall_hours", "wall_days", "gpu_hours", "cost_usd")
HOURS_PER_DAY = 24.0


@dataclass(frozen=True, kw_only=True)
class PreparedRuns:
    """Runs as columns; phases are zero for runs that only train."""

    run: Run
    phases: RlPhases
    is_rl: Array
    metric: Array
    scale: Array
    """From the unit of the metric's family to the row's."""


class RunTotal:
    """Whole runs; see `charter.validation.score.Quantity`."""

    name = "run total"
    constants = RunConstants

    def accepts(self, row: Measurement) -> bool:
        """Rows with hours, days, accelerator-hours or dollars, of any kind but inference."""
        return run_metric(row) is not None and row.kind != "inference"

    def case(self, row: Measurement) -> RunCase:
        """The run behind a row."""
        return run_case(row)

    def stack(self, case: RunCase) -> str:
        """The framework of reinforcement learning, or the kind of run."""
        return case.stack

    def prepare(self, cases: Sequence[RunCase]) -> PreparedRuns:
        """Cases as columns."""
        is_rl = array([case.rl is not None for case in cases])
        return PreparedRuns(
            run=Run(
                step_seconds=array([case.train_seconds for case in cases]),
                steps=array([case.steps for case in cases]),
                accelerators=array([case.devices for case in cases]),
                usd_per_accelerator_hour=array([case.usd_per_hour for case in cases]),
                ideal=array([case.ideal for case in cases]),
            ),
            phases=_phases([case.rl for case in cases]),
            is_rl=is_rl,
            metric=array([METRICS.index(case.metric) for case in cases]),
            scale=array([case.scale for case in cases]),
        )

    def predict(self, prepared: PreparedRuns, constants: RunConstants) -> Array:
        """Totals in the unit of each row."""
        step = rl_step_terms(prepared.phases, constants).total
        plain = prepared.run.step_seconds * constants.training_factor
        run = replace(prepared.run, step_seconds=array(np.where(prepared.is_rl > 0, step, plain)))
        hours = run_hours(run, constants)
        totals = (hours, hours / HOURS_PER_DAY, hours * run.accelerators, run_usd(run, hours))
        return array(prepared.scale * np.choose(prepared.metric.astype(int), totals))


def _phases(cases: Sequence[RlCase | None]) -> RlPhases:
    """Phases of those that have any, spread over all rows."""
    places = [index for index, case in enumerate(cases) if case is not None]
    phases = phases_of([case for case in cases if case is not None]) if places else None
    columns = {}
    for name in RlPhases.__dataclass_fields__:
        column = np.zeros(len(cases))
        if phases is not None:
            column[places] = getattr(phases, name)
        columns[name] = array(column)
    return RlPhases(**columns)


RUN_TOTAL = RunTotal()
