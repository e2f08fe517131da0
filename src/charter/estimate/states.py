"""Parameters, gradients and optimizer state of one rank under TP, PP, EP and ZeRO."""

from dataclasses import dataclass

from charter.estimate.parameters import (
    ParameterCount,
    attention_parameters,
    count_parameters,
    layer_norm_parameters,
    mlp_parameters,
)
from charter.estimate.precision import ZERO_PAPER, TrainingPrecision
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, ZeroStage


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """Bytes per accelerator, before activations and temporary buffers."""

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """All three."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


def model_state(
    num_parameters: float,
    *,
    data_parallel: int,
    zero: ZeroStage,
    precision: TrainingPrecision = ZERO_PAPER,
) -> ModelState:
    """Model state of `num_parameters` replicated or sharded over a data-parallel group, as ZeRO does.

    Stage 1 divides the optimizer state by the group, stage 2 the gradients too, stage 3 the parameters too.
    Source: Rajbhandari et al. 2020 (arXiv:1910.02054), section 3.1, section 5 and figure 1.

    >>> round(model_state(7.5e9, data_parallel=64, zero=ZeroStage.GRADIENTS).total_bytes / 1e9, 1)
    16.6
    """

    def shard(bytes_per_parameter: float, once: ZeroStage) -> float:
        return bytes_per_parameter * num_parameters / (data_parallel if zero >= once else 1)

    return ModelState(
        parameter_bytes=shard(precision.parameter_bytes, ZeroStage.PARAMETERS),
        gradient_bytes=shard(precision.gradient_bytes, ZeroStage.GRADIENTS),
        optimizer_bytes=shard(precision.optimizer_bytes, ZeroStage.OPTIMIZER),
    )


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

    @property
    def largest_unit(self) -> float:
        """The larger of the two: the most gradients that wait for their reduction at once."""
        return max(self.layer_unit, self.end_unit)


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
    """Parameters on one rank of a pipeline stage.

    Tensor parallelism divides every matrix and the embedding, not the norms; expert parallelism divides the routed
    experts. The first stage holds the embedding, the last the output projection (a tied one has its own copy when
    the two are on different ranks). A scalar head (reward, value) replaces the output projection.
    Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3; Narayanan et al. 2021, section 2.
    """
    a, count = architecture, count_parameters(architecture)
    layers = layers_of_stage(a, layout, stage)
    share = layers / a.num_layers
    first, last = stage == 0, stage == layout.pipeline - 1
    norms = count.norms * share
    matrices = share * (count.attention + count.dense_mlp + count.router + count.shared_experts)
    ends = _end_parameters(a, count, first=first, last=last, scalar_head=scalar_head)
    experts = count.experts * share / (layout.tensor * layout.expert)
    return RankParameters(
        dense=norms + (matrices + ends) / layout.tensor,
        experts=experts,
        layer_unit=_layer_unit(a, layout),
        end_unit=ends / layout.tensor,
        layers=layers,
    )


def _end_parameters(
    architecture: Architecture, count: ParameterCount, *, first: bool, last: bool, scalar_head: bool
) -> float:
    table = count.embedding
    ends = (table + count.positions) if first else 0.0
    if not last:
        return ends
    if scalar_head:
        return ends + architecture.hidden_size
    own_copy = not architecture.tied_embeddings or not first
    return ends + (table if own_copy else 0.0)


def _layer_unit(architecture: Architecture, layout: Layout) -> float:
    """Parameters of the largest layer on a rank."""
    a = architecture
    mlp = float(mlp_parameters(a, a.intermediate_size))
    if a.mixture:
        expert = mlp_parameters(a, a.mixture.expert_intermediate_size)
        routed = expert * (a.mixture.num_experts / layout.expert + a.mixture.num_shared_experts)
        mlp = max(mlp if a.mixture.num_dense_layers else 0.0, routed)
    return (attention_parameters(a) + mlp + layer_norm_parameters(a)) / layout.tensor
