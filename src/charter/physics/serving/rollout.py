"""Seconds to generate text and to score it, for one configuration: named terms over the formulas of `serving`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.arrays import array
from charter.physics.serving.constants import ServingConstants
from charter.physics.serving.decode import decode_terms, issue_of, prefill_terms
from charter.physics.serving.device import ServingDevice
from charter.physics.serving.engines import NATIVE, SERVER, Engine
from charter.physics.serving.model import ServedModel
from charter.physics.serving.passes import Issue, Pass, pass_terms
from charter.physics.serving.weight_format import weight_format
from charter.physics.terms import Breakdown, Interval, Term, TermTable
from charter.physics.training.step_time import BASE_SIGMA, UNUSUAL_SIGMA
from charter.spec.architecture import Architecture

__all__ = [
    "NATIVE",
    "SERVER",
    "Engine",
    "GenerationTime",
    "decode_step",
    "forward_pass_seconds",
    "generation",
]


@dataclass(frozen=True, kw_only=True)
class GenerationTime(Breakdown):
    """Seconds to answer all prompts; `total` is the median."""

    sequences: float
    generated_tokens: float
    prompt_tokens: float
    concurrency: int
    """Sequences decoded together on one replica."""
    sigma: float

    @property
    def seconds(self) -> Interval:
        """10th, 50th and 90th percentile."""
        return Interval.around(self.total, sigma=self.sigma)


def generation(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    sequences: float,
    prompt_tokens: float,
    new_tokens: float,
    longest_new_tokens: float | None = None,
    concurrency: int = 64,
    tensor: int = 1,
    replicas: int = 1,
    weights: str = "bf16",
    engine: Engine = SERVER,
    cached_prompt_tokens: float = 0.0,
    constants: ServingConstants | None = None,
) -> GenerationTime:
    """Answer `sequences` prompts of `prompt_tokens` with `new_tokens` each, on `replicas` groups of `tensor` devices.

    Prefill: a forward pass over the prompts, less a prefix of `cached_prompt_tokens` that a former request left in the
    cache (a critique round reads what the answer round has read). Decode: per step the weights and the cached keys and
    values are read once; `t >= max(bytes / bandwidth, 2 N batch / flops rate)`. Without continuous batching each batch
    runs to its longest answer. Source: roofline; Chen 2022 ("Transformer inference arithmetic"). `concurrency` must fit
    in memory. Speculative decoding is not modelled.

    >>> from charter.catalog import accelerators, models
    >>> llama, a100 = models.get("Llama-3.1-8B").architecture, accelerators.get("A100-80GB")
    >>> one = generation(llama, a100, sequences=1, prompt_tokens=1, new_tokens=100, concurrency=1)
    >>> 50 < one.generated_tokens / one.total < 125  # 16 GB of weights at 2 TB/s would be 127
    True
    """
    per_replica = math.ceil(sequences / replicas)
    batch = max(1, min(concurrency, per_replica))
    steps = new_tokens if engine.continuous else (longest_new_tokens or new_tokens)
    waves = per_replica / batch if engine.continuous else math.ceil(per_replica / batch)
    waves = max(waves, 1.0)
    model, group, issue = _columns(architecture, accelerator, tensor, weights, engine)
    first = prefill_terms(
        model,
        group,
        issue,
        constants or ServingConstants(),
        sequences=array(batch),
        prompt=array(max(prompt_tokens, 1.0)),
        cached=cached_prompt_tokens,
    )
    step = decode_step(
        architecture,
        accelerator,
        batch=batch,
        context=prompt_tokens + steps / 2,
        tensor=tensor,
        weights=weights,
        engine=engine,
        constants=constants,
    )
    rounds = per_replica / batch
    prefill = f"{rounds:.4g} batches x {batch} prompts of {prompt_tokens:,.0f} tokens x"
    terms = _scaled(first.at(), rounds, prefill)
    terms += _scaled(step.terms, steps * waves, f"{waves:.4g} waves x {steps:,.0f} steps x")
    return _generation_time(terms, sequences, prompt_tokens, new_tokens, batch, engine, accelerator)


def decode_step(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    batch: float,
    context: float,
    tensor: int = 1,
    weights: str = "bf16",
    engine: Engine = SERVER,
    constants: ServingConstants | None = None,
) -> Breakdown:
    """Seconds of one decode step of `batch` sequences that hold `context` tokens each."""
    model, group, issue = _columns(architecture, accelerator, tensor, weights, engine)
    table = decode_terms(
        model, group, issue, constants or ServingConstants(), sequences=array(batch), context=array(context)
    )
    return Breakdown(terms=table.at())


def forward_pass_seconds(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    tokens: float,
    seq_len: float,
    tensor: int = 1,
    head_positions: float = 0.0,
    dtype: str = "bf16",
    engine: Engine = NATIVE,
    constants: ServingConstants | None = None,
) -> float:
    """Seconds of a forward pass without gradients over `tokens` tokens: prefill, scoring, log-probabilities.

    `head_positions` is the number of positions whose logits are needed (all for log-probabilities, 0 for a reward).
    """
    sequences = tokens / max(seq_len, 1.0)
    model, group, issue = _columns(architecture, accelerator, tensor, dtype, engine)
    work = Pass(
        sequences=array(sequences),
        tokens=array(max(seq_len, 1.0)),
        before=array(0.0),
        logits=array(head_positions / max(sequences, 1e-30)),
        decode=False,
    )
    table: TermTable = pass_terms(model, group, issue, work, constants or ServingConstants())
    return float(table.total)


def _columns(
    architecture: Architecture, accelerator: Accelerator, tensor: int, weights: str, engine: Engine
) -> tuple[ServedModel, ServingDevice, Issue]:
    group = ServingDevice.of(accelerator, weights=weight_format(weights), tensor=tensor)
    return ServedModel.of(architecture), group, issue_of(engine)


def _scaled(terms: tuple[Term, ...], factor: float, label: str) -> list[Term]:
    return [replace(term, value=term.value * factor, formula=f"{label} ({term.formula})") for term in terms]


def _generation_time(
    terms: list[Term],
    sequences: float,
    prompt_tokens: float,
    new_tokens: float,
    batch: int,
    engine: Engine,
    accelerator: Accelerator,
) -> GenerationTime:
    unusual = UNUSUAL_SIGMA if engine.eager or accelerator.kind == "cpu" else 0.0
    return GenerationTime(
        terms=tuple(term for term in terms if term.value),
        sequences=sequences,
        generated_tokens=sequences * new_tokens,
        prompt_tokens=sequences * prompt_tokens,
        concurrency=batch,
        sigma=math.hypot(BASE_SIGMA, unusual),
    )
