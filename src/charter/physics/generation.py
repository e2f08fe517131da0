"""Seconds to answer prompts: lengths of answers, how a batch drains, prefill, decoding; for columns and one setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, array
from charter.physics.constants import ServingConstants
from charter.physics.serving_devices import NATIVE, SERVER, GenerationEngine, ServingDevice, weight_format
from charter.physics.serving_passes import Issue, Pass, ServingModel, pass_terms
from charter.physics.step_time import BASE_SIGMA, UNUSUAL_SIGMA
from charter.physics.terms import Breakdown, Interval, Term, TermColumn, TermTable
from charter.spec.architecture import Architecture

# -------- Lengths of generated answers: their distribution, the longest of a batch, and how a batch drains.
#
# A batch that starts together ends with its longest answer; an engine that admits waiting requests at once is only held
# by the tail at the end of the work. Both follow from the survival function of the length.

QUANTILES = 24
"""Points at which a distribution is read when a batch drains."""
_LEVELS = tuple((index + 0.5) / QUANTILES for index in range(QUANTILES))
_NORMAL = NormalDist()
USUAL_SPREAD = 0.6
"""Standard deviation over mean of answer lengths where nobody measured them. Judgement: between a geometric length (1)
and answers that mostly run into their limit (0)."""


@dataclass(frozen=True, kw_only=True)
class ResponseLengths:
    """Lognormal lengths with a mean and a spread, cut at a limit; spread 0 is a fixed length.

    The mean is the one measured, after the cut: what lies above the limit is moved to the limit, and the body is
    stretched until the mean is kept. Where it stops being true: lengths with two humps (short refusals, long proofs).

    >>> lengths = ResponseLengths(mean=500.0, limit=1000.0, spread=0.6)
    >>> round(lengths.longest_of(1)), round(lengths.longest_of(8)), round(lengths.longest_of(1000))
    (500, 883, 1000)
    >>> ResponseLengths.fixed(256.0).longest_of(64)
    256.0
    """

    mean: float
    limit: float = math.inf
    spread: float = 0.0

    @classmethod
    def fixed(cls, tokens: float) -> ResponseLengths:
        """Every answer has the same length (`ignore_eos`)."""
        return cls(mean=tokens, limit=tokens)

    @property
    def quantiles(self) -> Array:
        """Lengths at the middle of `QUANTILES` equal shares, rising; their mean is `mean`."""
        if self.spread <= 0 or self.mean >= self.limit:
            return np.full(QUANTILES, min(self.mean, self.limit))
        body = self._body(_LEVELS)
        return np.minimum(self._stretch(body) * body, self.limit)

    @property
    def _sigma(self) -> float:
        return math.sqrt(math.log1p(self.spread**2))

    def _stretch(self, body: Array) -> float:
        """The factor that keeps the mean once long answers are cut."""
        low, high = 0.0, self.limit / float(body[0])
        for _ in range(60):
            middle = (low + high) / 2
            short = float(np.mean(np.minimum(middle * body, self.limit))) < self.mean
            low, high = (middle, high) if short else (low, middle)
        return (low + high) / 2

    def longest_of(self, count: float) -> float:
        """Expected length of the longest of `count` answers: the mean of the quantiles at `u^(1/count)`, u even."""
        if self.spread <= 0 or self.mean >= self.limit:
            return min(self.mean, self.limit)
        body = self._body(_LEVELS)
        top = self._body([min(level ** (1 / max(count, 1.0)), 1 - 1e-12) for level in _LEVELS])
        return float(np.mean(np.minimum(self._stretch(body) * top, self.limit)))

    def _body(self, levels: Sequence[float]) -> Array:
        """Quantiles before the cut, for a median of 1."""
        return np.exp(self._sigma * array([_NORMAL.inv_cdf(level) for level in levels]))


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A batch that empties: for `steps` decode steps `alive` of it is still running, at `position` generated tokens.

    Arrays have one row per configuration and one column per piece.
    """

    steps: Array
    alive: Array
    position: Array

    @classmethod
    def of(cls, lengths: Sequence[ResponseLengths], counts: Sequence[float]) -> Drain:
        """The drain of batches of `counts` answers that start together; the last piece ends at their longest.

        Shares that stand for less than one answer are not counted: the smallest share alive is one answer.
        """
        ends = np.stack([_ends(one, count) for one, count in zip(lengths, counts, strict=True)])
        starts = np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1)
        floor = 1 / np.maximum(array(counts), 1.0)
        share = 1 - np.arange(ends.shape[1]) / QUANTILES
        alive = np.maximum(np.minimum(share, 1.0)[None, :], floor[:, None])
        alive[:, -1] = floor
        return cls(steps=ends - starts, alive=alive, position=(starts + ends) / 2)


def _ends(lengths: ResponseLengths, count: float) -> Array:
    longest = lengths.longest_of(count)
    return array(np.maximum.accumulate(np.append(np.minimum(lengths.quantiles, longest), longest)))


# -------- Seconds to answer a set of prompts with one engine replica, for many configurations at once.

Columns = TypeVar("Columns")


def issue_of(engines: GenerationEngine | list[GenerationEngine]) -> Issue:
    """Return how engines issue work, as columns.

    >>> from charter.physics.serving_devices import NATIVE, VLLM
    >>> issue_of([NATIVE, VLLM]).eager.tolist()
    [1.0, 0.0]
    """
    if isinstance(engines, GenerationEngine):
        return _issue(lambda name: getattr(engines, name))
    return _issue(lambda name: [getattr(one, name) for one in engines])


def _issue(read: Callable[[str], Any]) -> Issue:
    return Issue(**{name: array(read(name)) for name in Issue.__dataclass_fields__})


def prefill_terms(
    model: ServingModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    prompt: Array,
    cached: Array | float = 0.0,
) -> TermTable:
    """The prompts of all sequences read once; `cached` leading tokens of each are in the prefix cache already."""
    hit = np.minimum(array(cached), np.maximum(prompt - 1, 0.0))
    work = Pass(sequences=sequences, tokens=prompt - hit, before=hit, logits=array(1.0), decode=False)
    return pass_terms(model, group, issue, work, constants)


def decode_terms(
    model: ServingModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    context: Array,
    joined: Array | float = 0.0,
    prompt: Array | float = 0.0,
) -> TermTable:
    """One decode step of `sequences` sequences that hold `context` tokens each.

    For each sequence `joined` prompts of `prompt` tokens are read in the same pass.
    """
    work = Pass(
        sequences=sequences,
        tokens=array(1.0),
        before=context,
        logits=array(1.0),
        decode=True,
        joined=array(joined),
        joined_tokens=array(prompt),
    )
    return pass_terms(model, group, issue, work, constants)


def served_terms(
    model: ServingModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    prompt: Array,
    new_tokens: Array,
    waiting: Array,
) -> TermTable:
    """`sequences` prompts read and answered together, while a share `waiting` of all prompts wait for a free place.

    Where the engine mixes phases, a waiting prompt is read in passes that decode others: `new_tokens` passes answer one
    prompt of each sequence, so each pass reads `1 / new_tokens` of one. The others have a pass of their own before.
    """
    mixed = array(issue.mixed * waiting)
    first = prefill_terms(model, group, issue, constants, sequences=sequences, prompt=prompt)
    step = decode_terms(
        model,
        group,
        issue,
        constants,
        sequences=sequences,
        context=prompt + new_tokens / 2,
        joined=mixed / new_tokens,
        prompt=prompt,
    )
    columns = (*_times(first, 1.0 - mixed, "share read apart x "), *_times(step, new_tokens, "tokens x "))
    return TermTable(columns=columns)


def rollout_terms(
    model: ServingModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    limit: Array,
    prompt: Array,
    mean_tokens: Array,
    drain: Drain,
) -> TermTable:
    """`sequences` prompts that all wait at the start, at most `limit` decoded together, until the last answer ends.

    While prompts wait the engine stays full: `(sequences / limit - 1)` mean answers at full batch. Then the batch
    drains, and the tail of the length distribution holds the replica. An engine that mixes phases reads the prompts
    that wait in the passes that decode others (`served_terms`).
    """
    together = np.maximum(np.minimum(sequences, limit), 1.0)
    waves = np.maximum(sequences / together - 1, 0.0)
    apart = np.where(issue.mixed > 0, 1 / (1 + waves), 1.0)
    first = prefill_terms(model, group, issue, constants, sequences=sequences, prompt=prompt)
    full = decode_terms(
        model,
        group,
        issue,
        constants,
        sequences=together,
        context=prompt + mean_tokens / 2,
        joined=issue.mixed / mean_tokens,
        prompt=prompt,
    )
    tail = decode_terms(
        _wide(model),
        _wide(group),
        _wide(issue),
        _wide(constants),
        sequences=np.maximum(together[..., None] * drain.alive, 1.0),
        context=prompt[..., None] + drain.position,
    )
    drained = tuple(
        replace(
            column,
            name=f"{column.name}, draining",
            values=array((column.values * drain.steps).sum(axis=-1)),
            formula=f"sum over the tail of steps x ({column.formula})",
        )
        for column in tail.columns
    )
    full_columns = _times(full, waves * mean_tokens, "waves x tokens x ")
    return TermTable(columns=(*_times(first, apart, "share read apart x "), *full_columns, *drained))


def _times(table: TermTable, factor: Array, label: str) -> tuple[TermColumn, ...]:
    return tuple(
        replace(column, values=array(column.values * factor), formula=f"{label}({column.formula})")
        for column in table.columns
    )


def _wide(columns: Columns) -> Columns:
    """Every column with one more axis, so that it broadcasts against the pieces of a drain."""
    values = {name: getattr(columns, name)[..., None] for name in columns.__dataclass_fields__}  # type: ignore[attr-defined]
    return replace(columns, **values)  # type: ignore[type-var]


# -------- Seconds to generate text and to score it, for one configuration: named terms over the formulas of `serving`.


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
    engine: GenerationEngine = SERVER,
    cached_prompt_tokens: float = 0.0,
    read_share: float = 1.0,
    constants: ServingConstants | None = None,
) -> GenerationTime:
    """Answer `sequences` prompts of `prompt_tokens` with `new_tokens` each, on `replicas` groups of `tensor` devices.

    Prefill: a forward pass over the prompts, less a prefix of `cached_prompt_tokens` that a former request left in the
    cache (a critique round reads what the answer round has read); of the prompts `read_share` is read, 1/n where n
    answers to each share its keys and values. Decode: per step the weights and the cached keys and
    values are read once; `t >= max(bytes / bandwidth, 2 N batch / flops rate)`. Without continuous batching each batch
    runs to its longest answer; with it, prompts that wait are read in passes that decode others (`served_terms`),
    which is why fewer batches of them are listed than there are. Source: roofline; Chen 2022 ("Transformer inference
    arithmetic"). `concurrency` must fit in memory. Speculative decoding is not modelled.

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
    mixed = 1 - 1 / waves if engine.mixed else 0.0
    model, group, issue = _columns(architecture, accelerator, tensor, weights, engine)
    first = prefill_terms(
        model,
        group,
        issue,
        constants or ServingConstants(),
        sequences=array(max(batch * read_share, 1.0)),
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
        joined=mixed * read_share / steps,
        prompt=max(prompt_tokens - cached_prompt_tokens, 1.0),
        constants=constants,
    )
    rounds = per_replica / batch * (1 - mixed)
    prefill = f"{rounds:.4g} batches x {max(batch * read_share, 1.0):,.5g} prompts of {prompt_tokens:,.0f} tokens x"
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
    engine: GenerationEngine = SERVER,
    joined: float = 0.0,
    prompt: float = 0.0,
    constants: ServingConstants | None = None,
) -> Breakdown:
    """Seconds of one decode step of `batch` sequences that hold `context` tokens each.

    For each sequence `joined` prompts of `prompt` tokens are read in the same pass.
    """
    model, group, issue = _columns(architecture, accelerator, tensor, weights, engine)
    table = decode_terms(
        model,
        group,
        issue,
        constants or ServingConstants(),
        sequences=array(batch),
        context=array(context),
        joined=joined,
        prompt=prompt,
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
    engine: GenerationEngine = NATIVE,
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
    architecture: Architecture, accelerator: Accelerator, tensor: int, weights: str, engine: GenerationEngine
) -> tuple[ServingModel, ServingDevice, Issue]:
    group = ServingDevice.of(accelerator, weights=weight_format(weights), tensor=tensor, attention=engine.attention)
    return ServingModel.of(architecture), group, issue_of(engine)


def _scaled(terms: tuple[Term, ...], factor: float, label: str) -> list[Term]:
    return [replace(term, value=term.value * factor, formula=f"{label} ({term.formula})") for term in terms]


def _generation_time(
    terms: list[Term],
    sequences: float,
    prompt_tokens: float,
    new_tokens: float,
    batch: int,
    engine: GenerationEngine,
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
