"""Setting of a row of reinforcement learning: algorithm, lengths, batch, machines, and the layout behind them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from charter.catalog import accelerators
from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Layouts
from charter.physics.generation import USUAL_SPREAD, ResponseLengths
from charter.physics.memory import training_memory_table
from charter.physics.memory_profiles import NATIVE, AdapterUse, MemoryJob
from charter.physics.memory_shape import MemoryShape
from charter.physics.precision import FSDP_MIXED, MEGATRON
from charter.physics.runs import Algorithm, RlStack, rl_stack_named
from charter.physics.shapes import count_parameters
from charter.physics.step_time import UpdateJob, update_seconds
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.validation.rows.accelerator import accelerator_of, in_node_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.metrics import algorithm_of
from charter.validation.stacks import printed_zero

LONG_MODEL = 1e11
"""Parameters from which sequences are tried in parts (context parallelism)."""
ROOM = 0.92
"""Share of a device's memory that a layout may take in the search. Judgement: the rest is context and fragments."""


def recompute_of(printed: str) -> Recompute:
    """The mode behind the column; blank is none.

    >>> recompute_of("full"), recompute_of("selective+sp"), recompute_of("")
    (<Recompute.FULL: 'full'>, <Recompute.SELECTIVE: 'selective'>, <Recompute.NONE: 'none'>)
    """
    lowered = printed.casefold()
    if re.search(r"full|block|1\b|true|yes|uniform", lowered):
        return Recompute.FULL
    return Recompute.SELECTIVE if re.search(r"select|attn|attention|core", lowered) else Recompute.NONE


def printed_layout(row: Measurement, devices: int, sequences: float) -> Layout | None:
    """The layout as far as the row prints one; None where it prints no degree at all."""
    if not any((row.tp, row.pp, row.cp, row.dp, row.shard)):
        return None
    tensor, pipeline, context = row.tp or 1, row.pp or 1, row.cp or 1
    data = row.dp or max(1, devices // (tensor * pipeline * context))
    micro = int(row.mbs or 1)
    micro = max(1, min(micro, int(sequences // data) or 1))
    usual = ZeroStage.OPTIMIZER if tensor * pipeline > 1 else ZeroStage.PARAMETERS
    printed = printed_zero(row.shard)
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=row.ep or 1,
        sequence_parallel=bool(row.seqpar) or tensor > 1,
        zero=usual if printed is None else printed,
        micro_batch=micro,
        accumulation=max(1, math.ceil(sequences / (data * micro))),
        recompute=recompute_of(row.recompute),
        interleave=row.vpp or 1,
        offload_optimizer="optim" in row.offload,
        offload_parameters="param" in row.offload,
    )


@lru_cache(maxsize=256)
def _memories(
    architecture: Architecture, name: str, layouts: tuple[Layout, ...], seq_len: int, rank: int, base_bits: int
) -> tuple[float, ...]:
    """Return the bytes that each layout needs: those of one implementation and kind of pipeline in one table."""
    sizes = [0.0] * len(layouts)
    groups: dict[tuple[bool, bool], list[int]] = {}
    for index, layout in enumerate(layouts):
        groups.setdefault((layout.tensor > 1, layout.pipeline > 1), []).append(index)
    for (is_tensor, _), indices in groups.items():
        job = MemoryJob(
            architecture=architecture,
            seq_len=seq_len,
            precision=MEGATRON if is_tensor else FSDP_MIXED,
            profile=replace(NATIVE, implementation="megatron" if is_tensor else "huggingface"),
            adapter=AdapterUse.of(Adapter(rank=rank, base_bits=base_bits)) if rank else None,
            accelerator=accelerators.get(name),
        )
        table = training_memory_table(MemoryShape.of(job), Layouts.of([layouts[index] for index in indices]))
        totals = np.broadcast_to(table.total, len(indices))
        for index, total in zip(indices, totals, strict=True):
            sizes[index] = float(total)
    return tuple(sizes)


def best_layout(
    job: UpdateJob, devices: int, sequences: float, recompute: Recompute | None = None
) -> tuple[Layout, float, float]:
    """The quickest of a few usual layouts that fits, with its seconds per step and per forward pass.

    Candidates: sharded data parallelism with 1-8 sequences per micro-batch, and tensor parallelism inside a node with
    a pipeline across nodes; each with and without recomputation. Stands for "a team that tuned its stack". Where
    nothing fits, the leanest.
    """
    layouts = _candidates(job.architecture, job.accelerator, devices, sequences, recompute)
    seconds = update_seconds(job, layouts)
    sizes = _memories(
        job.architecture,
        job.accelerator.name,
        tuple(layouts),
        round(job.seq_len),
        round(job.adapter_rank),
        round(job.base_bits),
    )
    quickest_first = sorted(range(len(layouts)), key=lambda index: float(seconds.step[index]))
    room = ROOM * job.accelerator.memory_bytes
    fitting = (index for index in quickest_first if sizes[index] <= room)
    best = next(fitting, None)
    if best is None:
        best = min(quickest_first, key=lambda index: sizes[index])
    return (layouts[best], *seconds.at(best))


def _candidates(
    architecture: Architecture,
    accelerator: Accelerator,
    devices: int,
    sequences: float,
    recompute: Recompute | None,
) -> list[Layout]:
    modes = (Recompute.NONE, Recompute.FULL) if recompute is None else (recompute,)
    contexts = (1, 2, 4) if count_parameters(architecture).total > LONG_MODEL else (1,)
    layouts: list[Layout] = []
    for (tensor, pipeline), context in product(_degrees(architecture, accelerator, devices), contexts):
        data = devices // (tensor * pipeline * context)
        for micro in (1, 2, 4, 8):
            if data < 1 or data * micro > max(sequences, data) or (context > 1 and tensor == 1):
                continue
            base = Layout(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                interleave=_chunks(architecture, pipeline),
                expert=_experts(architecture, data),
                sequence_parallel=tensor > 1,
                zero=ZeroStage.OPTIMIZER if tensor * pipeline > 1 else ZeroStage.PARAMETERS,
                micro_batch=micro,
                accumulation=max(1, math.ceil(sequences / (data * micro))),
            )
            layouts += [replace(base, recompute=mode) for mode in modes]
    return layouts


def _chunks(architecture: Architecture, pipeline: int) -> int:
    """Chunks per stage of an interleaved schedule, of two layers or more each, at most five; 1 without a pipeline."""
    return 1 if pipeline == 1 else max(1, min(5, architecture.num_layers // pipeline // 2))


def _degrees(architecture: Architecture, accelerator: Accelerator, devices: int) -> list[tuple[int, int]]:
    """Tensor and pipeline degrees: none; a node with a pipeline across nodes; for experts a pipeline alone."""
    size = count_parameters(architecture).total
    node = max(1, accelerator.devices_per_node)
    tensors = {1, min(node, devices)} | ({2, 4} if size < 4e10 else set())
    pipelines = [1, 2, 4, 8, 16] if size > 1.5e10 else [1]
    return [
        (tensor, pipeline)
        for tensor in sorted(tensors)
        for pipeline in pipelines
        if devices % (tensor * pipeline) == 0
        and architecture.num_heads % tensor == 0
        and pipeline <= architecture.num_layers
        and (tensor > 1 or pipeline == 1 or architecture.mixture is not None)
    ]


def _experts(architecture: Architecture, data: int) -> int:
    if architecture.mixture is None:
        return 1
    return math.gcd(architecture.mixture.num_experts, min(data, 64))


PROMPT_SHARE = 0.15
"""Of a sequence, that the prompt takes where only prompt + answer is printed. Judgement: questions of 100-200
tokens."""
SHORTEST_MEAN = 256.0
"""Tokens of prompt and answer below which means are rare; judgement. Where only the limit of a sequence is printed, the
mean is taken as the median of a log-uniform draw from here to the limit: limits are set for the longest answers."""
LONGEST_OVER_MEAN = 4.0
"""Limit of an answer over the mean where only the mean is printed. Judgement: with the usual spread one answer in 200
would be longer."""
USUAL_PROMPTS = 512.0
"""Prompts per step where nothing is printed, each with as many answers as the row says. DAPO's (arXiv:2503.14476,
section 4.1) among recipes of 32 to 1,024: judgement."""


@dataclass(frozen=True, kw_only=True)
class RlSetting:
    """Step of reinforcement learning as a row describes it, gaps filled."""

    architecture: Architecture
    accelerator: Accelerator
    stack: RlStack
    algorithm: Algorithm
    devices: int
    samples: float
    prompt: float
    lengths: ResponseLengths
    seq_limit: float

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and answer."""
        return self.prompt + self.lengths.mean


def rl_setting(row: Measurement, *, samples: float | None = None) -> RlSetting:
    """Return the setting of a step, as the row describes it."""
    architecture = architecture_of(row)
    accelerator = in_node_of(row, accelerator_of(row))
    devices = row.gpus or _devices_in(row)
    stack = rl_stack_named(row.framework)
    prompt, lengths, limit = _lengths(row)
    return RlSetting(
        architecture=architecture,
        accelerator=accelerator,
        stack=stack,
        algorithm=algorithm_of(row),
        devices=devices,
        samples=samples or _samples(row),
        prompt=prompt,
        lengths=lengths,
        seq_limit=limit,
    )


def _devices_in(row: Measurement) -> int:
    match = re.search(r"\b(\d{1,5})\s*x?\s*(?:A100|H100|H800|H200|B200|GB200|V100|MI300X|GPUs?\b|TPU)", row.notes)
    if match:
        return int(match[1])
    degrees = [row.tp, row.pp, row.cp, row.dp]
    if any(degrees):
        return math.prod(degree or 1 for degree in degrees)
    raise Refusal("the row does not say how many accelerators it ran on (gpus is blank)")


def _samples(row: Measurement) -> float:
    """Answers per step: as printed, else the optimizer's batch, else those of a batch of prompts."""
    if row.samples_per_step:
        return row.samples_per_step
    if row.gbs:
        return row.gbs
    match = re.search(r"(?:rollout|train|global)?\s*batch(?: size)?\s*(?:of|=|:)?\s*(\d[\d,]*)", row.notes, re.I)
    prompts = float(match[1].replace(",", "")) if match else 0.0
    return (prompts or USUAL_PROMPTS) * (row.n_generations or 1)


def _lengths(row: Measurement) -> tuple[float, ResponseLengths, float]:
    """Prompt, answers and longest sequence: means where they are printed, else split from mean_len, else from seq."""
    if row.response_tokens_mean:
        return _of_mean(row, row.response_tokens_mean, row.response_tokens_cap)
    if row.isl and row.osl:
        lengths = ResponseLengths.fixed(row.osl)
        if row.mean_len and row.mean_len < row.isl + row.osl:
            lengths = ResponseLengths(mean=max(1.0, row.mean_len - row.isl), limit=row.osl, spread=USUAL_SPREAD)
        return row.isl, lengths, row.isl + row.osl
    if row.osl and not (row.mean_len or row.seq):
        return _of_mean(row, row.osl, None)
    total = row.mean_len or (math.sqrt(min(SHORTEST_MEAN, row.seq) * row.seq) if row.seq else 0.0) or 1024.0
    limit = float(row.seq or 2 * total)
    prompt = row.isl or PROMPT_SHARE * total
    most = row.osl or max(1.0, limit - prompt)
    mean = min(most, max(1.0, total - prompt))
    return prompt, ResponseLengths(mean=mean, limit=most, spread=USUAL_SPREAD), limit


def _of_mean(row: Measurement, mean: float, cap: float | None) -> tuple[float, ResponseLengths, float]:
    """Lengths around a mean that is printed, cut at the limit of an answer or of a sequence where a row has one."""
    beside = row.mean_len - mean if row.mean_len and row.mean_len > mean else mean * PROMPT_SHARE / (1 - PROMPT_SHARE)
    prompt = row.isl or beside
    cap = cap or (row.seq - prompt if row.seq and row.seq - prompt > mean else LONGEST_OVER_MEAN * mean)
    if cap <= mean:
        return prompt, ResponseLengths.fixed(mean), prompt + mean
    return prompt, ResponseLengths(mean=mean, limit=cap, spread=USUAL_SPREAD), prompt + cap
