"""Which layouts a training stage is tried with, in a fixed order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import StageResources

PIPELINE_DEGREES = (2, 4, 8, 16)
RECOMPUTE_ORDER = (Recompute.NONE, Recompute.FULL)
"""Fused attention keeps no scores, so selective recomputation would change nothing; it is tried when asked for."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Layouts that differ only in micro-batch and recomputation."""

    data: int
    tensor: int
    pipeline: int
    zero: ZeroStage

    @property
    def label(self) -> str:
        """`zero3 dp8 tp2`."""
        parts = [f"zero{int(self.zero)}", f"dp{self.data}"]
        parts += [f"tp{self.tensor}"] if self.tensor > 1 else []
        parts += [f"pp{self.pipeline}"] if self.pipeline > 1 else []
        return " ".join(parts)


def families(
    architecture: Architecture,
    *,
    num_accelerators: int,
    per_node: int,
    batch: int,
    unit: int,
    fixed: StageResources | None,
    pipelines: bool,
) -> Iterator[Family]:
    """Every split of the accelerators into data, tensor and pipeline parallelism, times the ZeRO stages.

    Tensor parallelism stays inside a node and divides the attention heads; pipeline stages divide the layers; every
    replica gets at least one sequence. `pipelines` asks for the splits with more than one pipeline stage.
    """
    for pipeline in _pipeline_degrees(architecture, fixed, pipelines):
        for tensor in _tensor_degrees(architecture, per_node, fixed):
            if num_accelerators % (tensor * pipeline):
                continue
            data = num_accelerators // (tensor * pipeline)
            if data * unit > batch:
                continue
            for zero in _zero_stages(data, pipeline, fixed):
                yield Family(data=data, tensor=tensor, pipeline=pipeline, zero=zero)


def levels(family: Family, *, batch: int, unit: int, fixed: StageResources | None) -> Iterator[tuple[Layout, ...]]:
    """Layouts of a family, one level per way to recompute, fastest first; in a level the largest micro-batch first."""
    share = ceil(batch / family.data / unit) * unit
    base = Layout(
        data=family.data,
        tensor=family.tensor,
        pipeline=family.pipeline,
        zero=family.zero,
        sequence_parallel=family.tensor > 1,
    )
    for recompute in _recomputations(fixed):
        yield tuple(
            replace(base, recompute=recompute, micro_batch=micro_batch, accumulation=ceil(share / micro_batch))
            for micro_batch in _micro_batches(share, unit, fixed)
        )


def _pipeline_degrees(architecture: Architecture, fixed: StageResources | None, wanted: bool) -> Iterator[int]:
    if fixed is not None and fixed.pipeline is not None:
        if not wanted:
            yield fixed.pipeline
        return
    if not wanted:
        yield 1
        return
    yield from (degree for degree in PIPELINE_DEGREES if degree <= architecture.num_layers)


def _tensor_degrees(architecture: Architecture, per_node: int, fixed: StageResources | None) -> Iterator[int]:
    degree = 1
    while degree <= per_node:
        asked = fixed is None or fixed.tensor is None or fixed.tensor == degree
        if asked and architecture.num_heads % degree == 0 and per_node % degree == 0:
            yield degree
        degree *= 2


def _zero_stages(data: int, pipeline: int, fixed: StageResources | None) -> tuple[ZeroStage, ...]:
    """ZeRO needs replicas; with a pipeline only the optimizer is sharded (gradients are needed until the flush)."""
    if fixed is not None and fixed.zero is not None:
        return (ZeroStage(fixed.zero),)
    if data == 1:
        return (ZeroStage.NONE,)
    return (ZeroStage.NONE, ZeroStage.OPTIMIZER) if pipeline > 1 else tuple(ZeroStage)


def _recomputations(fixed: StageResources | None) -> tuple[Recompute, ...]:
    if fixed is not None and fixed.recompute is not None:
        return (Recompute(fixed.recompute),)
    return RECOMPUTE_ORDER


def _micro_batches(share: int, unit: int, fixed: StageResources | None) -> tuple[int, ...]:
    if fixed is not None and fixed.micro_batch is not None:
        return (max(unit, min(share, fixed.micro_batch)),)
    powers = [2**exponent for exponent in range(share.bit_length()) if unit <= 2**exponent <= share]
    return tuple(sorted({*powers, share}, reverse=True)) if share <= 64 else tuple(reversed(powers))
