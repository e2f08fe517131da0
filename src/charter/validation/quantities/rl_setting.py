"""Setting of a step of reinforcement learning, from its row: model, algorithm, lengths, answers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.physics.generation import USUAL_SPREAD, ResponseLengths
from charter.physics.runs import GRPO, PPO, Algorithm, RlStack, algorithm_named, rl_stack_named
from charter.spec.architecture import Architecture
from charter.validation.quantities.rl_layout import in_node_of
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal

PROMPT_SHARE = 0.15
"""Of a sequence, that the prompt takes where only prompt + answer is printed. Judgement: questions of 100-200
tokens."""
SHORTEST_MEAN = 256.0
"""Tokens of prompt and answer below which means are rare; judgement. Where only the limit of a sequence is printed, the
mean is taken as the median of a log-uniform draw from here to the limit: limits are set for the longest answers."""
USUAL_SAMPLES = 512.0
"""Answers per step where nothing is printed. Judgement."""


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
    accelerator = in_node_of(accelerator_of(row), row.gpus_per_node)
    devices = row.gpus or _devices_in(row)
    algorithm = algorithm_named(row.notes, row.framework, row.model)
    if algorithm is None:
        algorithm = GRPO if row.critic_params_b == 0 or (row.n_generations or 1) > 1 else PPO
    stack = rl_stack_named(row.framework)
    prompt, lengths, limit = _lengths(row)
    return RlSetting(
        architecture=architecture,
        accelerator=accelerator,
        stack=stack,
        algorithm=algorithm,
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
    """Answers per step: as printed, else the optimizer's batch, else from the notes, else a usual number."""
    if row.samples_per_step:
        return row.samples_per_step
    if row.gbs:
        return row.gbs
    match = re.search(r"(?:rollout|train|global)?\s*batch(?: size)?\s*(?:of|=|:)?\s*(\d[\d,]*)", row.notes, re.I)
    prompts = float(match[1].replace(",", "")) if match else 0.0
    return prompts * (row.n_generations or 1) if prompts else USUAL_SAMPLES


def _lengths(row: Measurement) -> tuple[float, ResponseLengths, float]:
    """Prompt, answers and longest sequence: isl and osl where printed, else split from mean_len, else from seq."""
    if row.isl and row.osl:
        lengths = ResponseLengths.fixed(row.osl)
        if row.mean_len and row.mean_len < row.isl + row.osl:
            lengths = ResponseLengths(mean=max(1.0, row.mean_len - row.isl), limit=row.osl, spread=USUAL_SPREAD)
        return row.isl, lengths, row.isl + row.osl
    total = row.mean_len or (math.sqrt(min(SHORTEST_MEAN, row.seq) * row.seq) if row.seq else 0.0) or 1024.0
    limit = float(row.seq or 2 * total)
    prompt = row.isl or PROMPT_SHARE * total
    most = row.osl or max(1.0, limit - prompt)
    mean = min(most, max(1.0, total - prompt))
    return prompt, ResponseLengths(mean=mean, limit=most, spread=USUAL_SPREAD), limit
