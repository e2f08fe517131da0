"""Parameters, gradients and optimizer state of one rank under TP, PP, EP and ZeRO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.shapes.parameters import (
    attention_parameters,
    count_parameters,
    layer_norm_parameters,
    mlp_parameters,
)
from charter.physics.shapes.state_space import state_space_parameters
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, ZeroStage

Stage = Literal["first", "middle", "last"]


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """Parameters of one tensor-, pipeline- and expert-parallel rank, before ZeRO shards them."""

    dense: float
    """Sharded by ZeRO over data * context."""
    experts: float
    """Routed experts; sharded by ZeRO over data * context / expert."""
    layer_unit: float
    """Parameters of the largest layer: what ZeRO-3 gathers at a time."""
    end_unit: float
    """Embedding and output projection: a unit of their own, gathered through the whole pass."""
    layers: int

    @property
    def total(self) -> float:
        """Dense and routed."""
        return self.dense + self.experts

    def held(self, layout: Layout) -> float:
        """Return the parameters that one rank keeps under ZeRO-3: routed experts over the rest of their smaller group.

        >>> rank = RankParameters(dense=8.0, experts=2.0, layer_unit=1.0, end_unit=1.0, layers=1)
        >>> rank.held(Layout(data=8, expert=4, zero=ZeroStage.PARAMETERS))
        2.0
        """
        group = layout.data * layout.context // layout.replicas if layout.zero >= ZeroStage.PARAMETERS else 1
        return self.dense / group + self.experts / max(1, group // layout.expert)

    @property
    def largest_unit(self) -> float:
        """The larger of the two: the most gradients that wait for their reduction at once."""
        return max(self.layer_unit, self.end_unit)


@dataclass(frozen=True, kw_only=True)
class ModelColumns:
    """Parameter counts of a model, or of many, as arrays that broadcast against layouts."""

    layers: Array
    norms: Array
    matrices: Array
    """Of all layers, routed experts aside."""
    experts: Array
    """Routed experts of all layers."""
    embedding: Array
    """Embedding, positions and the encoder in front: on the first stage."""
    head: Array
    """What the last stage adds when it is not the first: a tied head has a copy of its own there."""
    head_beside_embedding: Array
    """What the head adds when embedding and head are on one rank."""
    layer_matrices: Array
    """The largest layer without routed experts."""
    layer_experts: Array
    """Routed experts of one layer."""
    largest_matrix: Array
    """Elements of the largest single matrix of the layers."""

    @classmethod
    def of(cls, architecture: Architecture, *, scalar_head: bool = False) -> ModelColumns:
        """Counts of one model; a scalar head (reward, value) replaces the output projection."""
        a, count = architecture, count_parameters(architecture)
        table = float(count.head if not a.tied_embeddings else count.embedding + a.head_bias * a.vocab_size)
        end, beside = (table, 0.0 if a.tied_embeddings else table)
        if scalar_head:
            end = beside = float(a.hidden_size)
        mixture = a.mixture
        expert = mlp_parameters(a, mixture.expert_intermediate_size) if mixture else 0
        shared = mlp_parameters(a, mixture.shared_width) if mixture and mixture.shared_width else 0
        dense = mlp_parameters(a, a.intermediate_size) if not mixture or mixture.num_dense_layers else 0
        mixer = max(
            attention_parameters(a) if a.attention_layers else 0,
            state_space_parameters(a, a.state_space) if a.state_space else 0,
        )
        widths = [a.num_heads * a.head_size, a.intermediate_size if dense or not mixture else 0]
        widths += [mixture.expert_intermediate_size, mixture.shared_width] if mixture else []
        return cls(
            layers=array(a.num_layers),
            norms=array(count.norms),
            matrices=array(
                count.attention
                + count.dense_mlp
                + count.router
                + count.shared_experts
                + count.state_space
                + count.mtp_projections
            ),
            experts=array(count.experts),
            embedding=array(count.embedding + count.positions + count.encoder),
            head=array(end),
            head_beside_embedding=array(beside),
            layer_matrices=array(mixer + max(dense, shared) + layer_norm_parameters(a)),
            layer_experts=array(expert * mixture.num_experts if mixture else 0),
            largest_matrix=array(a.hidden_size * max(widths)),
        )

    @classmethod
    def stacked(cls, models: Sequence[ModelColumns]) -> ModelColumns:
        """Many models, one per configuration."""
        return cls(**{item.name: array([getattr(one, item.name) for one in models]) for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class RankColumns:
    """Parameters of one rank of many layouts at once; the fields of `RankParameters`."""

    dense: Array
    experts: Array
    layer_unit: Array
    end_unit: Array
    layers: Array
    matrices: Array
    """Of `dense` and `experts`, the matrices of the layers: what quantisation makes smaller."""

    @property
    def total(self) -> Array:
        """Dense and routed."""
        return array(self.dense + self.experts)

    @property
    def largest_unit(self) -> Array:
        """The larger of a layer and the ends."""
        return np.maximum(self.layer_unit, self.end_unit)


def rank_columns(model: ModelColumns, layouts: Layouts, *, stage: Stage, layers: Array) -> RankColumns:
    """Parameters of a rank of the first, a middle or the last pipeline stage, which holds `layers` layers.

    Tensor parallelism divides every matrix and the embedding, not the norms; expert parallelism divides the routed
    experts. The first stage holds the embedding, the last the output projection (a tied one has its own copy when
    the two are on different ranks). Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3; Narayanan et al. 2021,
    section 2.
    """
    m, tensor = model, layouts.tensor
    share = layers / m.layers
    alone = layouts.pipeline == 1
    own = {"first": m.embedding, "middle": array(0.0), "last": m.head}[stage]
    ends = np.where(alone, m.embedding + m.head_beside_embedding, own)
    experts = m.experts * share / (tensor * layouts.expert)
    matrices = m.matrices * share / tensor
    return RankColumns(
        dense=array(m.norms * share + matrices + ends / tensor),
        experts=array(experts),
        layer_unit=array((m.layer_matrices + m.layer_experts / layouts.expert) / tensor),
        end_unit=array(ends / tensor),
        layers=array(layers),
        matrices=array(matrices + experts),
    )


def stage_layers(num_layers: Array, pipeline: Array, stage: Stage) -> Array:
    """Layers of a stage: an even split, the remainder to the first stages."""
    even = np.floor(num_layers / pipeline)
    rest = num_layers - even * pipeline
    index = {"first": array(0.0), "middle": array(np.minimum(pipeline - 1, 1.0)), "last": array(pipeline - 1)}[stage]
    return even + np.where(index < rest, 1.0, 0.0)


def layers_of_stage(architecture: Architecture, layout: Layout, stage: int) -> int:
    """Layers of a pipeline stage: an even split, the remainder to the first stages.

    >>> from charter.catalog import models
    >>> [layers_of_stage(models.get("Llama-3.1-405B").architecture, Layout(pipeline=4), s) for s in range(4)]
    [32, 32, 31, 31]
    """
    even, rest = divmod(architecture.num_layers, layout.pipeline)
    return even + (stage < rest)


def rank_parameters(
    architecture: Architecture, layout: Layout, *, stage: int = 0, scalar_head: bool = False
) -> RankParameters:
    """Parameters on one rank of any pipeline stage, as `rank_columns` has them for the first and the last."""
    layers = layers_of_stage(architecture, layout, stage)
    columns, model = Layouts.of(layout), ModelColumns.of(architecture, scalar_head=scalar_head)
    where: Stage = "first" if stage == 0 else "last" if stage == layout.pipeline - 1 else "middle"
    rank = rank_columns(model, columns, stage=where, layers=array(layers))
    return RankParameters(
        dense=float(rank.dense),
        experts=float(rank.experts),
        layer_unit=float(rank.layer_unit),
        end_unit=float(rank.end_unit),
        layers=layers,
    )
