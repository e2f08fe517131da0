"""The layouts of a stage that trains: the axes of an engine written out as columns, in a fixed order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil

import numpy as np
from numpy.typing import NDArray

from charter.estimate.layouts import RECOMPUTE_CODES, Layouts
from charter.plan.capabilities import Capabilities
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import StageResources

SHORTEST_SHARD = 512
"""Tokens of a sequence that one rank of a context-parallel group keeps at least; judgement (below, rings only wait)."""
EMBEDDING_AND_OUTPUT = 2
"""Layers that they count as in a pipeline where Megatron-LM is told to account for them."""
SMALL_SHARE = 64
"""Up to so many sequences per replica, all of them in one micro-batch is tried too, beside the powers of two."""
SEARCHED_RECOMPUTE = (Recompute.NONE, Recompute.FULL)
"""Selective recomputation is left out: where attention is fused and keeps no scores it would change nothing."""
OFFLOADS = {"none": (False, False), "optimizer": (True, False), "all": (True, True)}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Layouts that split the model and its state alike; they differ in micro-batch and recomputation."""

    data: int
    tensor: int
    pipeline: int
    zero: ZeroStage
    context: int = 1
    expert: int = 1
    interleave: int = 1
    sequence_parallel: bool = False
    replicas: int = 1
    offload: str = "none"

    @property
    def label(self) -> str:
        """`zero3 dp8 tp2`: the label of its layouts without micro-batch and recomputation."""
        words = self.layout.label.split()
        return " ".join(word for word in words if not word.startswith("mb"))

    @property
    def layout(self) -> Layout:
        """Its layout with micro-batches of one sequence."""
        optimizer, parameters = OFFLOADS[self.offload]
        return Layout(
            data=self.data,
            tensor=self.tensor,
            pipeline=self.pipeline,
            context=self.context,
            expert=self.expert,
            zero=self.zero,
            interleave=self.interleave,
            sequence_parallel=self.sequence_parallel,
            replicas=self.replicas,
            offload_optimizer=optimizer,
            offload_parameters=parameters,
        )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Request for a space of layouts."""

    engine: Capabilities
    architecture: Architecture
    num_accelerators: int
    per_node: int
    batch: int
    unit: int
    """Sequences that must share a micro-batch."""
    longest: int
    fixed: StageResources | None
    together: bool
    """Several roles share the accelerators (PPO, DPO): data and tensor parallelism only."""
    shares: tuple[tuple[int, int], ...] = ()
    """Rows that all data ranks share evenly, each with how many of them stay together; empty: any split will do."""

    def fixes(self, name: str) -> int | str | bool | None:
        """Return what the stage prescribes for an axis, if anything."""
        return None if self.fixed is None else getattr(self.fixed, name)


@dataclass(frozen=True, kw_only=True)
class Space:
    """Layouts as columns, and the family of each."""

    families: tuple[Family, ...]
    family: NDArray[np.intp]
    layouts: Layouts

    @property
    def size(self) -> int:
        """Layouts."""
        return self.family.size

    def family_of(self, row: int) -> Family:
        """The family of a layout."""
        return self.families[int(self.family[row])]

    def layout(self, row: int) -> Layout:
        """One layout as a value."""
        at = self.layouts
        micro, steps, code = (float(column[row]) for column in (at.micro_batch, at.accumulation, at.recompute))
        mode = next(mode for mode, number in RECOMPUTE_CODES.items() if number == code)
        base = self.family_of(row).layout
        return replace(base, micro_batch=int(micro), accumulation=int(steps), recompute=mode)


EMPTY = Space(families=(), family=np.zeros(0, dtype=np.intp), layouts=Layouts.of([]))


@lru_cache(maxsize=256)
def space(asked: Asked) -> Space:
    """Every layout that the engine can execute on so many accelerators, and that divides model and batch."""
    possible = tuple(families(asked))
    rows = [(number, *row) for number, family in enumerate(possible) for row in _inner(asked, family)]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    family = table[0].astype(np.intp)
    outer = Layouts.of([item.layout for item in possible]) if possible else Layouts.of([Layout()])
    columns = {name: getattr(outer, name)[family] for name in outer.__dataclass_fields__}
    columns |= {"micro_batch": table[1], "accumulation": table[2], "recompute": table[3]}
    return Space(families=possible, family=family, layouts=Layouts(**columns))


def families(asked: Asked) -> Iterator[Family]:
    """Every split of the accelerators, times what is sharded and what is kept on the host.

    Tensor parallelism stays inside a node and divides the attention heads; pipeline stages are no more than layers;
    every replica gets at least one sequence (or pair).
    """
    for tensor, context in product(_tensor_degrees(asked), _context_degrees(asked)):
        for pipeline in _pipeline_degrees(asked, tensor * context):
            if asked.num_accelerators % (tensor * context * pipeline):
                continue
            data = asked.num_accelerators // (tensor * context * pipeline)
            if data * asked.unit > asked.batch or (asked.engine.exact_batch and asked.batch % (data * asked.unit)):
                continue
            if any(rows % (data * together) for rows, together in asked.shares):
                continue
            base = Family(data=data, tensor=tensor, pipeline=pipeline, context=context, zero=ZeroStage.NONE)
            for interleave, expert in product(_chunks(asked, pipeline), _expert_degrees(asked, data * context)):
                for sequence in _sequence_parallel(asked, tensor):
                    split = replace(base, interleave=interleave, expert=expert, sequence_parallel=sequence)
                    yield from _sharded(asked, split)


def _sharded(asked: Asked, split: Family) -> Iterator[Family]:
    """The ZeRO stages of a split, hybrid sharding, and offload."""
    ranks = split.data * split.context
    for zero in _zero_stages(asked, ranks, split.pipeline):
        if split.context > 1 and asked.engine.context_only_sharded and zero is not ZeroStage.PARAMETERS:
            continue
        for replicas in _copies(asked, ranks, split.tensor, zero):
            for offload in _offloads(asked, zero):
                if offload == "none" or replicas == 1:
                    yield replace(split, zero=zero, replicas=replicas, offload=offload)


def _inner(asked: Asked, family: Family) -> Iterator[tuple[float, float, float]]:
    """Micro-batch, accumulation and code of the recomputation; interleaving needs whole rounds of micro-batches."""
    share = ceil(asked.batch / family.data / asked.unit) * asked.unit
    for mode, micro in product(_recomputations(asked), micro_batches(share, asked.unit, asked.fixes("micro_batch"))):
        accumulation = ceil(share / micro)
        if asked.engine.exact_batch and share % micro:
            continue
        if family.interleave > 1 and accumulation % family.pipeline:
            continue
        yield micro, accumulation, RECOMPUTE_CODES[mode]


def micro_batches(share: int, unit: int, fixed: object = None) -> tuple[int, ...]:
    """Powers of two up to the sequences of a replica, and all of them where they are few; the largest first.

    >>> micro_batches(12, 2), micro_batches(12, 1, fixed=16)
    ((12, 8, 4, 2), (12,))
    """
    if isinstance(fixed, int):
        return (max(unit, min(share, fixed)),)
    powers = [2**exponent for exponent in range(share.bit_length()) if unit <= 2**exponent <= share]
    return tuple(sorted({*powers, share} if share <= SMALL_SHARE else powers, reverse=True))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors in order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(degree for degree in range(1, number + 1) if number % degree == 0)


def _only(degrees: tuple[int, ...], fixed: object) -> tuple[int, ...]:
    return tuple(degree for degree in degrees if fixed is None or degree == fixed)


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(most.bit_length()))


def _tensor_degrees(asked: Asked) -> tuple[int, ...]:
    most = asked.per_node if asked.engine.tensor else 1
    heads = asked.architecture.num_heads
    degrees = tuple(d for d in _powers(most) if asked.per_node % d == 0 and heads % d == 0)
    return _only(degrees, asked.fixes("tensor"))


def _context_degrees(asked: Asked) -> tuple[int, ...]:
    engine, shape = asked.engine, asked.architecture
    shares = engine.context and not asked.together and (engine.context_of_pairs or asked.unit == 1)
    most = asked.longest // SHORTEST_SHARD if shares else 1
    degrees = _powers(max(1, min(most, asked.num_accelerators)))
    if engine.context_divides_heads:
        degrees = tuple(d for d in degrees if not (shape.num_heads % d or (shape.kv_heads % d and d % shape.kv_heads)))
    return _only(degrees, asked.fixes("context"))


def _pipeline_degrees(asked: Asked, inside: int) -> tuple[int, ...]:
    if not asked.engine.pipeline or asked.together:
        return _only((1,), asked.fixes("pipeline"))
    ranks = max(1, asked.num_accelerators // inside)
    most = asked.architecture.num_layers
    degrees = (degree for degree in divisors(ranks) if degree <= most)
    if asked.engine.even_pipeline:
        degrees = (degree for degree in degrees if most % degree == 0 or (most + EMBEDDING_AND_OUTPUT) % degree == 0)
    return _only(tuple(degrees), asked.fixes("pipeline"))


def _chunks(asked: Asked, pipeline: int) -> tuple[int, ...]:
    """Chunks of layers per stage; the layers must divide evenly."""
    layers = asked.architecture.num_layers
    if pipeline == 1 or not asked.engine.interleave or layers % pipeline:
        return _only((1,), asked.fixes("interleave"))
    return _only(divisors(layers // pipeline), asked.fixes("interleave"))


def _expert_degrees(asked: Asked, ranks: int) -> tuple[int, ...]:
    mixture = asked.architecture.mixture
    if mixture is None or not asked.engine.expert or asked.together:
        return _only((1,), asked.fixes("expert"))
    experts = mixture.num_experts
    return _only(tuple(d for d in _powers(experts) if experts % d == 0 and ranks % d == 0), asked.fixes("expert"))


def _sequence_parallel(asked: Asked, tensor: int) -> tuple[bool, ...]:
    if tensor == 1:
        return (False,)
    fixed = asked.fixes("sequence_parallel")
    both = (True, False) if asked.engine.sequence_parallel else (False,)
    return tuple(choice for choice in both if fixed is None or choice == fixed)


def _zero_stages(asked: Asked, ranks: int, pipeline: int) -> tuple[ZeroStage, ...]:
    """ZeRO needs replicas; with a pipeline only the optimizer is sharded (gradients are needed until the flush)."""
    engine, fixed = asked.engine, asked.fixes("zero")
    stages = engine.searched if fixed is None else tuple(stage for stage in engine.zero if stage == fixed)
    stages = stages if pipeline == 1 else tuple(stage for stage in stages if stage in engine.zero_beside_pipeline)
    if fixed is not None:
        return stages
    return (ZeroStage.NONE,) if ranks == 1 else stages


def _copies(asked: Asked, ranks: int, tensor: int, zero: ZeroStage) -> tuple[int, ...]:
    """1, and with hybrid sharding one copy per node."""
    nodes, inside = asked.num_accelerators // asked.per_node, asked.per_node // tensor
    hybrid = asked.engine.hybrid and zero is ZeroStage.PARAMETERS and nodes > 1 and inside > 1
    return _only((1, nodes) if hybrid and ranks == nodes * inside else (1,), asked.fixes("replicas"))


def _offloads(asked: Asked, zero: ZeroStage) -> tuple[str, ...]:
    engine, fixed = asked.engine, asked.fixes("offload")
    names = ["none"]
    names += ["optimizer"] if zero in engine.offload_optimizer else []
    names += ["all"] if zero in engine.offload_parameters else []
    return tuple(name for name in names if fixed is None or name == fixed)


def _recomputations(asked: Asked) -> tuple[Recompute, ...]:
    fixed = asked.fixes("recompute")
    return SEARCHED_RECOMPUTE if fixed is None else (Recompute(str(fixed)),)
