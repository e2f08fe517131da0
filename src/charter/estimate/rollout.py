"""Seconds to generate text and to score it: prefill, decode by memory bandwidth, and plain forward passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.estimate.collectives import all_reduce_seconds, link_between
from charter.estimate.flops import score_width
from charter.estimate.kernels import (
    OPS_PER_LAYER_FORWARD,
    SECONDS_PER_OP,
    attention_flops_per_second,
    experts_used,
    forward_seconds,
    matmul_flops_per_second,
    memory_bytes_per_second,
)
from charter.estimate.kv_cache import kv_cache_bytes
from charter.estimate.parameters import count_parameters
from charter.estimate.precision import WEIGHT_BYTES
from charter.estimate.step_time import BASE_SIGMA, UNUSUAL_SIGMA
from charter.estimate.terms import Breakdown, Interval, Term
from charter.spec.architecture import Architecture

GRAPH_SECONDS_PER_STEP = 1.5e-3
"""Scheduling and graph launch of one decode step in a serving engine; assumption, to be calibrated."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How a generation engine issues work."""

    name: str
    eager: bool
    """Every operation is issued from Python at every step."""
    continuous: bool
    """A finished sequence makes room at once; otherwise the batch waits for its longest answer."""


NATIVE = Engine(name="native torch", eager=True, continuous=False)
SERVER = Engine(name="serving engine (vLLM-like)", eager=False, continuous=True)


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

    @property
    def generated_tokens_per_second(self) -> float:
        """Generated tokens per second over all replicas."""
        return self.generated_tokens / self.total if self.total else math.inf


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
) -> GenerationTime:
    """Answer `sequences` prompts of `prompt_tokens` with `new_tokens` each, on `replicas` groups of `tensor` devices.

    Prefill: a forward pass over the prompts. Decode: per step the weights and the cached keys and values are read
    once; `t >= max(bytes / bandwidth, 2 N batch / flops rate)`. Without continuous batching each batch runs to its
    longest answer. Source: roofline; Chen 2022 ("Transformer inference arithmetic"). `concurrency` must fit in
    memory (`memory.largest_batch`). Speculative decoding and prefix caching are not modelled.

    >>> from charter.catalog import accelerators, models
    >>> llama, a100 = models.get("Llama-3.1-8B").architecture, accelerators.get("A100-80GB")
    >>> one = generation(llama, a100, sequences=1, prompt_tokens=1, new_tokens=100, concurrency=1)
    >>> 50 < one.generated_tokens_per_second < 125  # 16 GB of weights at 2 TB/s would be 127
    True
    """
    per_replica = math.ceil(sequences / replicas)
    batch = max(1, min(concurrency, per_replica))
    steps = new_tokens if engine.continuous else (longest_new_tokens or new_tokens)
    waves = per_replica / batch if engine.continuous else math.ceil(per_replica / batch)
    waves = max(waves, 1.0)
    prefill = forward_pass_seconds(
        architecture, accelerator, tokens=per_replica * prompt_tokens, seq_len=prompt_tokens, tensor=tensor
    )
    step = decode_step(
        architecture,
        accelerator,
        batch=batch,
        context=prompt_tokens + steps / 2,
        tensor=tensor,
        weights=weights,
        engine=engine,
    )
    terms = [_seconds("prefill", "prefill", prefill, f"{per_replica * prompt_tokens:,.0f} prompt tokens", "roofline")]
    terms += [
        _seconds(
            term.name,
            term.part,
            term.value * steps * waves,
            f"{waves:.4g} waves x {steps:,.0f} steps x {term.formula}",
            term.source,
        )
        for term in step.terms
    ]
    unusual = UNUSUAL_SIGMA if engine.eager or accelerator.kind == "cpu" else 0.0
    return GenerationTime(
        terms=tuple(term for term in terms if term.value),
        sequences=sequences,
        generated_tokens=sequences * new_tokens,
        prompt_tokens=sequences * prompt_tokens,
        concurrency=batch,
        sigma=math.hypot(BASE_SIGMA, unusual),
    )


def decode_step(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    batch: float,
    context: float,
    tensor: int = 1,
    weights: str = "bf16",
    engine: Engine = SERVER,
) -> Breakdown:
    """Seconds of one decode step of `batch` sequences that hold `context` tokens each."""
    a, stream = architecture, memory_bytes_per_second(accelerator)
    read = WEIGHT_BYTES[weights] * weights_read(a, batch) / tensor
    flops = 2 * count_parameters(a).active * batch / tensor
    matmul = flops / matmul_flops_per_second(accelerator, "bf16")
    value = 4.0 if accelerator.kind == "cpu" else 2.0
    cache = batch * kv_cache_bytes(a, context, bytes_per_value=value, tensor=tensor)
    scores = 2.0 * a.num_layers * score_width(a) * context * batch / tensor
    keys = max(cache / stream, scores / attention_flops_per_second(accelerator))
    reduce = all_reduce_seconds(2.0 * batch * a.hidden_size, tensor, link_between(accelerator, span=tensor))
    weight_time, formula = (
        max(read / stream, matmul),
        f"max({read / 1e9:.3g} GB / bandwidth, {flops / 1e9:.3g} GFLOP / rate)",
    )
    host = a.num_layers * OPS_PER_LAYER_FORWARD * SECONDS_PER_OP
    busy = weight_time + keys + 2 * a.num_layers * reduce
    waits = host if accelerator.kind == "cpu" else max(0.0, host - busy)
    launch = waits if engine.eager else GRAPH_SECONDS_PER_STEP
    return Breakdown(
        terms=(
            _seconds("decode, weights", "decode", weight_time, formula, "roofline: weights read once per step"),
            _seconds(
                "decode, keys and values", "decode", keys, f"{cache / 1e9:.3g} GB of cache / bandwidth", "roofline"
            ),
            _seconds(
                "decode, tensor parallel",
                "communication",
                2 * a.num_layers * reduce,
                "2 all-reduces per layer",
                "Shoeybi et al. 2019",
            ),
            _seconds("decode, issue", "launch", launch, engine.name, "assumption (rollout.py)"),
        )
    )


def weights_read(architecture: Architecture, batch: float) -> float:
    """Parameters read in one decode step: all but the embedding table and the experts that no token reaches."""
    count = count_parameters(architecture)
    read = count.total - count.experts - (0 if architecture.tied_embeddings else count.embedding)
    if architecture.mixture and count.experts:
        read_share = experts_used(architecture, batch) / architecture.mixture.num_experts
        return read + count.experts * read_share
    return float(read)


def forward_pass_seconds(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    tokens: float,
    seq_len: float,
    tensor: int = 1,
    head_positions: float = 0.0,
    dtype: str = "bf16",
) -> float:
    """Seconds of a forward pass without gradients over `tokens` tokens: prefill, scoring, log-probabilities.

    `head_positions` is the number of positions whose logits are needed (all for log-probabilities, 0 for a reward).
    """
    cpu = accelerator.kind == "cpu"
    found = forward_seconds(
        architecture,
        accelerator,
        tokens=tokens,
        seq_len=seq_len,
        layers=architecture.num_layers,
        tensor=tensor,
        head_positions=head_positions,
        dtype="fp32" if cpu else dtype,
        value_bytes=4.0 if cpu else 2.0,
    )
    size = 2.0 * tokens * architecture.hidden_size
    reduce = all_reduce_seconds(size, tensor, link_between(accelerator, span=tensor))
    busy = found.busy + 2 * architecture.num_layers * reduce
    return busy + found.launch if cpu else max(busy, found.launch)


def _seconds(name: str, part: str, value: float, formula: str, source: str) -> Term:
    return Term(name=name, part=part, value=value, unit="seconds", formula=formula, source=source)
