"""Layouts of a stage that trains: the axes of an engine written out as columns, in a fixed order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil

import numpy as np
from numpy.typing import NDArray

from charter.engines.common.capabilities import ZERO_BESIDE_PIPELINE, Capabilities, one_of
from charter.physics.columns import RECOMPUTE_CODES, Layouts
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage_base import Stage, StageResources

SHORTEST_SHARD = 512
"""Tokens of a sequence that one rank of a context-parallel group keeps at least; judgement (below, rings only wait)."""
EMBEDDING_AND_OUTPUT = 2
"""Layers that they count as in a pipeline where Megatron-LM is told to account for them."""
SMALL_SHARE = 64
"""Up to so many sequences per replica, all of them in one micro-batch is tried too, beside the powers of two."""
SEARCHED_RECOMPUTE = (Recompute.NONE, Recompute.FULL)
"""Selective recomputation is tried where it is asked for: beside fused attention most engines have none."""
OFFLOADS = {"none": (False, False), "optimizer": (True, False), "all": (True, True)}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Layouts that split the model and its state alike; they differ in micro-batch, and in what a pass keeps where."""

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
class SpaceRequest:
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
    undivided: bool = False
    """The share of a replica is one micro-batch."""
    shares: tuple[tuple[int, int], ...] = ()
    """Rows that all data ranks share evenly, each with how many of them stay together; empty: any split will do."""

    def fixes(self, name: str) -> int | str | bool | None:
        """Return the value that the stage prescribes for an axis, if any."""
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
        mode = next(mode for mode, number in RECOMPUTE_CODES.items() if number == float(at.recompute[row]))
        return replace(
            self.family_of(row).layout,
            micro_batch=int(at.micro_batch[row]),
            accumulation=int(at.accumulation[row]),
            recompute=mode,
            offload_activations=bool(at.offload_activations[row]),
        )


EMPTY = Space(families=(), family=np.zeros(0, dtype=np.intp), layouts=Layouts.of([]))


@lru_cache(maxsize=256)
def space(request: SpaceRequest) -> Space:
    """Every layout that the engine can execute on so many accelerators, and that divides model and batch."""
    possible = tuple(families(request))
    rows = [(number, *row) for number, family in enumerate(possible) for row in _inner(request, family)]
    table = np.array(rows, dtype=np.float64).reshape(-1, 1 + len(INNER)).T
    family = table[0].astype(np.intp)
    outer = Layouts.of([item.layout for item in possible]) if possible else Layouts.of([Layout()])
    columns = {name: getattr(outer, name)[family] for name in outer.__dataclass_fields__}
    columns |= dict(zip(INNER, table[1:], strict=True))
    return Space(families=possible, family=family, layouts=Layouts(**columns))


def families(request: SpaceRequest) -> Iterator[Family]:
    """Every split of the accelerators, times what is sharded and what is kept on the host.

    Tensor parallelism stays inside a node and divides the heads of queries, keys and values, as every engine that has
    it asks; pipeline stages are no more than layers; every replica gets at least one sequence (or pair).
    """
    for tensor, context in product(_tensor_degrees(request), _context_degrees(request)):
        if tensor > 1 and context > 1 and not request.engine.context_beside_tensor:
            continue
        for pipeline in _pipeline_degrees(request, tensor * context):
            if request.num_accelerators % (tensor * context * pipeline):
                continue
            data = request.num_accelerators // (tensor * context * pipeline)
            if data * request.unit > request.batch or (
                request.engine.exact_batch and request.batch % (data * request.unit)
            ):
                continue
            if any(rows % (data * together) for rows, together in request.shares):
                continue
            base = Family(data=data, tensor=tensor, pipeline=pipeline, context=context, zero=ZeroStage.NONE)
            for interleave, expert in product(_chunks(request, pipeline), _expert_degrees(request, data * context)):
                for sequence in _sequence_parallel(request, tensor):
                    split = replace(base, interleave=interleave, expert=expert, sequence_parallel=sequence)
                    yield from _sharded(request, split)


def _sharded(request: SpaceRequest, split: Family) -> Iterator[Family]:
    """The ZeRO stages of a split, hybrid sharding, and offload."""
    ranks = split.data * split.context
    for zero in _zero_stages(request, ranks, split.pipeline):
        if split.context > 1 and request.engine.context_only_sharded and zero is not ZeroStage.PARAMETERS:
            continue
        for replicas in _copies(request, ranks, split.tensor, zero):
            for offload in _offloads(request, zero):
                if offload == "none" or replicas == 1:
                    yield replace(split, zero=zero, replicas=replicas, offload=offload)


def uneven_rows(stage: Stage, data: int) -> Iterator[tuple[str, str, str]]:
    """Yield each field whose rows so many processes cannot share evenly, with what is wrong and what would do.

    >>> from charter.spec.stage import SftStage
    >>> list(uneven_rows(SftStage(init="base", data=("chat",), global_batch=64), 7))
    [('global_batch', '64 rows cannot be shared evenly by 7 processes', 'global_batch: 63 or 70; or a number of processes that divides 64')]
    """  # noqa: E501
    for field, together in stage.shared_rows.items():
        rows, unit = int(getattr(stage, field)), data * together
        if rows % unit:
            below, above = rows // unit * unit, -(-rows // unit) * unit
            works = one_of([number for number in (below, above) if number])
            groups = f", {together} answers to a prompt together" if together > 1 else ""
            fewer = f"{rows // together} ({field} / samples_per_prompt)" if together > 1 else rows
            message = f"{rows} rows cannot be shared evenly by {data} processes{groups}"
            yield field, message, f"{field}: {works}; or a number of processes that divides {fewer}"


INNER = ("micro_batch", "accumulation", "recompute", "offload_activations")
"""What layouts of a family differ in."""


def _inner(request: SpaceRequest, family: Family) -> Iterator[tuple[float, float, float, float]]:
    """The columns of `INNER`; interleaving needs whole rounds of micro-batches."""
    share = ceil(request.batch / family.data / request.unit) * request.unit
    fixed = request.fixes("micro_batch")
    sizes = micro_batches(share, request.unit, share if request.undivided and fixed is None else fixed)
    for mode, micro in product(_recomputations(request), sizes):
        accumulation = ceil(share / micro)
        if (request.engine.exact_batch and share % micro) or (request.undivided and accumulation > 1):
            continue
        if family.interleave > 1 and accumulation % family.pipeline:
            continue
        for on_host in _inputs_on_host(request, mode, is_smallest=micro == sizes[-1]):
            yield micro, accumulation, RECOMPUTE_CODES[mode], on_host


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


def _tensor_degrees(request: SpaceRequest) -> tuple[int, ...]:
    most = request.per_node if request.engine.tensor else 1
    shape = request.architecture
    degrees = tuple(d for d in _powers(most) if request.per_node % d == 0 and shape.divides_heads(d))
    return _only(degrees, request.fixes("tensor"))


def _context_degrees(request: SpaceRequest) -> tuple[int, ...]:
    engine, shape = request.engine, request.architecture
    shares = engine.context and (engine.context_of_roles or not request.together)
    shares = shares and (engine.context_of_pairs or request.unit == 1)
    shares = shares and (engine.context_searched or request.fixes("context") is not None)
    most = request.longest // SHORTEST_SHARD if shares else 1
    degrees = _powers(max(1, min(most, request.num_accelerators)))
    if engine.context_divides_heads:
        degrees = tuple(d for d in degrees if shape.divides_heads(d, copies=True))
    return _only(degrees, request.fixes("context"))


def _pipeline_degrees(request: SpaceRequest, inside: int) -> tuple[int, ...]:
    if not request.engine.pipeline or request.together:
        return _only((1,), request.fixes("pipeline"))
    ranks = max(1, request.num_accelerators // inside)
    most = request.architecture.num_layers
    degrees = (degree for degree in divisors(ranks) if degree <= most)
    if request.engine.even_pipeline:
        degrees = (degree for degree in degrees if most % degree == 0 or (most + EMBEDDING_AND_OUTPUT) % degree == 0)
    return _only(tuple(degrees), request.fixes("pipeline"))


def _chunks(request: SpaceRequest, pipeline: int) -> tuple[int, ...]:
    """Chunks of layers per stage; the layers must divide evenly."""
    layers = request.architecture.num_layers
    if pipeline == 1 or not request.engine.interleave or layers % pipeline:
        return _only((1,), request.fixes("interleave"))
    return _only(divisors(layers // pipeline), request.fixes("interleave"))


def _expert_degrees(request: SpaceRequest, ranks: int) -> tuple[int, ...]:
    mixture = request.architecture.mixture
    if mixture is None or not request.engine.expert or request.together:
        return _only((1,), request.fixes("expert"))
    experts = mixture.num_experts
    return _only(tuple(d for d in _powers(experts) if experts % d == 0 and ranks % d == 0), request.fixes("expert"))


def _sequence_parallel(request: SpaceRequest, tensor: int) -> tuple[bool, ...]:
    if tensor == 1:
        return (False,)
    fixed = request.fixes("sequence_parallel")
    engine = request.engine
    tried = engine.sequence_parallel and (engine.sequence_parallel_searched or fixed is not None)
    both = (True, False) if tried else (False,)
    return tuple(choice for choice in both if fixed is None or choice == fixed)


def _zero_stages(request: SpaceRequest, ranks: int, pipeline: int) -> tuple[ZeroStage, ...]:
    """ZeRO needs replicas; with a pipeline only the optimizer is sharded (gradients are needed until the flush)."""
    engine, fixed = request.engine, request.fixes("zero")
    stages = engine.searched if fixed is None else tuple(stage for stage in engine.zero if stage == fixed)
    stages = stages if pipeline == 1 else tuple(stage for stage in stages if stage in ZERO_BESIDE_PIPELINE)
    if fixed is not None:
        return stages
    return (ZeroStage.NONE,) if ranks == 1 else stages


def _copies(request: SpaceRequest, ranks: int, tensor: int, zero: ZeroStage) -> tuple[int, ...]:
    """1, and with hybrid sharding one copy per node."""
    nodes, inside = request.num_accelerators // request.per_node, request.per_node // tensor
    hybrid = request.engine.hybrid and zero is ZeroStage.PARAMETERS and nodes > 1 and inside > 1
    return _only((1, nodes) if hybrid and ranks == nodes * inside else (1,), request.fixes("replicas"))


def _offloads(request: SpaceRequest, zero: ZeroStage) -> tuple[str, ...]:
    engine, fixed = request.engine, request.fixes("offload")
    names = ["none"]
    names += ["optimizer"] if zero in engine.offload_optimizer else []
    names += ["all"] if zero in engine.offload_parameters else []
    return tuple(name for name in names if fixed is None or name == fixed)


def _recomputations(request: SpaceRequest) -> tuple[Recompute, ...]:
    fixed, modes = request.fixes("recompute"), request.engine.recompute
    return SEARCHED_RECOMPUTE if fixed is None else tuple(mode for mode in modes if mode == fixed)


def _inputs_on_host(request: SpaceRequest, mode: Recompute, *, is_smallest: bool) -> tuple[bool, ...]:
    """Places of what recomputation keeps. Where it is for the search to choose, the host is tried beside the smallest
    micro-batch alone: half a micro-batch frees as much, and moves nothing."""
    fixed, can = request.fixes("offload_activations"), request.engine.offload_activations and mode is Recompute.FULL
    places = (False, True) if can and (is_smallest or fixed) else (False,)
    return tuple(place for place in places if fixed is None or place == fixed)
