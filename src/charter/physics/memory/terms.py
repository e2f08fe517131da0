"""The terms of a training step's memory, over arrays of layouts: each names its formula and its source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.memory.activations import SOURCE as ACTIVATION_SOURCE
from charter.physics.memory.activations import in_flight
from charter.physics.memory.constants import TrainingMemoryConstants
from charter.physics.memory.shape import MemoryShape
from charter.physics.memory.states import RankColumns, Stage
from charter.physics.terms import Term, TermColumn
from charter.spec.layout import Recompute
from charter.units import GIB

CPU_PROCESS_BYTES = 0.6 * GIB
"""Resident size of a process that imported torch and transformers: assumption."""
ZERO_SOURCE = "Rajbhandari et al. 2020, figure 1"
ASSUMED = "assumption (memory/constants.py), moved by calibration"


@dataclass(frozen=True, kw_only=True)
class ExplainedColumn(TermColumn):
    """A column whose formula can be filled with the numbers of one configuration."""

    numbers: Mapping[str, Array] = field(default_factory=dict)

    def at(self, index: int | tuple[int, ...] = ()) -> Term:
        """The addend of one configuration, its formula with numbers."""
        if index == () and not self.values.shape:
            value = float(self.values)
            filled = {name: float(number) for name, number in self.numbers.items()}
        else:
            shape = self.values.shape
            value = float(self.values[index])
            filled = {name: float(np.broadcast_to(number, shape)[index]) for name, number in self.numbers.items()}
        formula = self.formula.format(**filled)
        return Term(name=self.name, part=self.part, value=value, unit=self.unit, formula=formula, source=self.source)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One pipeline stage of many layouts: what most terms need."""

    shape: MemoryShape
    layouts: Layouts
    constants: TrainingMemoryConstants
    parameters: RankColumns
    stage: Stage

    @cached_property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one rank."""
        return array(self.layouts.micro_batch * self.shape.seq_len / self.layouts.context)

    @cached_property
    def group(self) -> Array:
        """Ranks over which ZeRO shards."""
        return array(self.layouts.shards)

    @property
    def gathers(self) -> Array:
        """1 where weights are gathered before use."""
        return array(((self.layouts.zero >= 3) & (self.group > 1)) | (self.layouts.offload_parameters > 0))

    @cached_property
    def held(self) -> Array:
        """Micro-batches in flight."""
        index = {"first": array(0.0), "middle": array(1.0), "last": self.layouts.pipeline - 1}[self.stage]
        index = np.minimum(index, self.layouts.pipeline - 1)
        return in_flight(self.layouts.pipeline, self.layouts.interleave, self.layouts.accumulation, index)

    def sharded(self, dense: Array, experts: Array, stage: int) -> Array:
        """Parameters a rank owns of something that ZeRO shards from `stage` on."""
        on = self.layouts.zero >= stage
        expert_group = np.maximum(1.0, np.floor(self.group / self.layouts.expert))
        return array(dense / np.where(on, self.group, 1.0) + experts / np.where(on, expert_group, 1.0))


def column(name: str, part: str, values: Array, formula: str, source: str, **numbers: Array) -> ExplainedColumn:
    """A column in bytes."""
    return ExplainedColumn(
        name=name, part=part, values=array(values), unit="bytes", formula=formula, source=source, numbers=numbers
    )


def trained_parameters(rank: Rank) -> tuple[Array, Array]:
    """Trained parameters of a rank before ZeRO shards them: dense ones and routed experts."""
    s, p = rank.shape, rank.parameters
    small = s.adapter_parameters * p.layers / s.model.layers / rank.layouts.tensor + s.trained_ends * p.end_unit
    return array(np.where(s.adapter > 0, small, p.dense)), array(np.where(s.adapter > 0, 0.0, p.experts))


def state_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Weights, gradients and optimizer state; with adapters a frozen base and a small trained part."""
    s, lay, states = rank.shape, rank.layouts, rank.constants.states
    dense, experts = trained_parameters(rank)
    owned = {stage: rank.sharded(dense, experts, stage) for stage in (1, 2, 3)}
    total = array(dense + experts)
    device = {"parameters": 1 - lay.offload_parameters, "optimizer": 1 - lay.offload_optimizer}
    # Sharded gradients are where their optimizer steps: ZeRO-Offload (Ren et al. 2021, section 4.2) and FSDP2's
    # `CPUOffloadPolicy` move each to the host once it is reduced.
    away = np.maximum(lay.offload_parameters, lay.offload_optimizer) * (lay.zero >= 2) * (s.adapter == 0)
    over = "N_rank {total:,.0f}, ZeRO-{zero:.0f} over {group:.0f}"
    # Beside a pipeline gradients are reduced once, after the last micro-batch, and are whole until then.
    summed = np.where((rank.gathers > 0) & (lay.pipeline > 1), total, owned[2])
    numbers = {"total": total, "zero": lay.zero, "group": rank.group}
    source = f"{s.source or 'bytes per parameter of the stack'}; ZeRO: {ZERO_SOURCE}"
    base = _frozen_base(rank) * device["parameters"] * states
    return {
        "base": base_column(rank, base),
        "weights": column(
            "weights",
            "parameters",
            s.parameter_bytes * owned[3] * device["parameters"] * states,
            "{size:g} B x " + over,
            source,
            size=s.parameter_bytes,
            **numbers,
        ),
        "gradients": column(
            "gradients",
            "gradients",
            s.gradient_bytes * summed * (1 - away) * states,
            "{size:g} B x {held:,.0f} of " + over,
            source,
            size=s.gradient_bytes,
            held=array(summed),
            **numbers,
        ),
        "optimizer": column(
            "optimizer",
            "optimizer",
            s.optimizer_bytes * owned[1] * device["optimizer"] * states,
            "{size:g} B x " + over,
            source,
            size=s.optimizer_bytes,
            **numbers,
        ),
    }


def base_column(rank: Rank, values: Array) -> ExplainedColumn:
    """The frozen base of adapters."""
    s, p = rank.shape, rank.parameters
    return column(
        "frozen base",
        "parameters",
        values,
        "{size:.3g} B x {matrices:,.0f} + 2 B x {rest:,.0f}, over {shards:.0f} (routed experts over {shards:.0f} / EP)",
        "Hu et al. 2021; Dettmers et al. 2023 (nf4: 4.127 bits with double quantisation, embeddings in 16)",
        size=s.base_bytes,
        matrices=p.matrices,
        rest=array(p.total - p.matrices),
        shards=_base_shards(rank),
    )


def _base_shards(rank: Rank) -> Array:
    return array(np.where(rank.layouts.zero >= 3, rank.group, 1.0))


def _frozen_base(rank: Rank) -> Array:
    s, p = rank.shape, rank.parameters
    head = s.quantises_head * s.model.head_beside_embedding / rank.layouts.tensor * (s.base_bytes < 2)
    dense = s.base_bytes * (p.matrices - p.experts + head) + 2.0 * (p.total - p.matrices - head)
    return array(np.where(s.adapter > 0, rank.sharded(dense, s.base_bytes * p.experts, 3), 0.0))


def activation_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Return the activations that the forward pass keeps on a pipeline stage, and one layer's in its backward pass."""
    return {**_kept_columns(rank), **_live_columns(rank)}


def _again(rank: Rank) -> Array:
    """Share of the layers that the backward pass computes once more."""
    return array(rank.layouts.recomputes(Recompute.FULL) * rank.shape.recompute_share)


def _sequence_group(rank: Rank) -> Array:
    """Ranks that share what tensor parallelism replicates."""
    return array(np.where(rank.layouts.sequence_parallel > 0, rank.layouts.tensor, 1.0))


def _kept_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay, layers = rank.shape, rank.layouts, rank.parameters.layers
    again, sequence = _again(rank), _sequence_group(rank)
    eager = s.keeps_scores * (lay.recompute == 0)
    sharded = np.where(lay.context > 1, s.sharded_ring, s.sharded)
    saved_bytes = s.replicated / sequence + (sharded + eager * s.scores) / lay.tensor
    inputs = s.compute_bytes * s.hidden / sequence
    on_device = rank.constants.activations * rank.tokens * layers * rank.held * (1 - s.offload_activations)
    shape = "{tokens:,.0f} tokens x {layers:.0f} layers x {held:.4g} micro-batches in flight"
    numbers = {"tokens": rank.tokens, "layers": layers, "held": rank.held}
    encoder = s.encoder_bytes * lay.micro_batch * (rank.stage == "first") * rank.held
    return {
        "kept": column(
            "kept activations",
            "activations",
            saved_bytes * on_device * (1 - again),
            "{kept:,.0f} B per token and layer x " + shape,
            ACTIVATION_SOURCE,
            kept=array(saved_bytes),
            **numbers,
        ),
        "inputs": column(
            "layer inputs",
            "activations",
            inputs * on_device * again,
            "{inputs:,.0f} B per token and layer x " + shape,
            "Korthikanti et al. 2022, table 2 (2 s b h per layer)",
            inputs=array(inputs),
            **numbers,
        ),
        "encoder": column(
            "encoder activations",
            "activations",
            array(encoder),
            "{encoder:,.0f} B per sequence",
            "the list of a plain layer, per token of the encoder",
            encoder=s.encoder_bytes,
        ),
    }


def _live_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay, sequence = rank.shape, rank.layouts, _sequence_group(rank)
    one = s.live_replicated / sequence + (s.live_sharded + s.keeps_scores * s.live_scores) / lay.tensor
    gradients = s.backward_replicated / sequence + (s.backward_sharded + s.keeps_scores * s.live_scores) / lay.tensor
    live = np.where((_again(rank) > 0) | (s.offload_activations > 0), 1.0, 0.0)
    return {
        "live": column(
            "one live layer",
            "activations",
            live * one * rank.tokens * rank.constants.activations,
            "{one:,.0f} B per token x {tokens:,.0f} tokens",
            ACTIVATION_SOURCE,
            one=array(one),
            tokens=rank.tokens,
        ),
        "backward": column(
            "gradients of one layer",
            "activations",
            gradients * rank.tokens * rank.constants.activations,
            "{gradients:,.0f} B per token x {tokens:,.0f} tokens",
            "inner values of the widest part of a layer, while its backward pass runs",
            gradients=array(gradients),
            tokens=rank.tokens,
        ),
    }


def logit_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Logits, probabilities and their gradients on the stage that has the output projection."""
    s, lay = rank.shape, rank.layouts
    positions = np.minimum(rank.tokens * s.loss_share, s.loss_rows)
    has_head = (lay.pipeline == 1) | (rank.stage == "last")
    value = s.loss_bytes * positions * s.vocabulary / lay.tensor * has_head * rank.constants.logits
    return {
        "logits": column(
            "logits and loss",
            "logits",
            array(value),
            "{per_logit:g} B x {positions:,.0f} positions x vocabulary {vocabulary:,.0f} / TP {tensor:.0f}",
            "bytes per logit of the cross-entropy in use (memory/profile.py)",
            per_logit=s.loss_bytes,
            positions=array(positions),
            vocabulary=s.vocabulary,
            tensor=lay.tensor,
        )
    }
