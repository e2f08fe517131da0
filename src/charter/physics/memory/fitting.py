"""Changes that make a job fit on the accelerators at hand: a short, ordered list, tried one by one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from charter.physics.memory.peak import MemoryBreakdown
from charter.spec.layout import Layout, Recompute, ZeroStage

MAX_ACCELERATORS = 1024
MAX_TENSOR = 64


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A layout that fits, and what changes to get there."""

    change: str
    count: int
    """Accelerators it needs."""
    total_bytes: float


def training_alternatives(
    layout: Layout, memory: Callable[[Layout], MemoryBreakdown], capacity_bytes: float
) -> tuple[Alternative, ...]:
    """Changes that bring a training layout within the capacity; the least invasive first.

    Tried in turn: a smaller micro-batch, higher ZeRO stages, recomputation, both, optimizer offload, and twice as many
    accelerators until it fits. Each is judged by the same memory estimate.
    """
    alternatives = []
    for change, candidate in (*_training_changes(layout), *_more_accelerators(layout)):
        total = memory(candidate).total_bytes
        if total <= capacity_bytes:
            alternatives.append(Alternative(change=change, count=candidate.num_accelerators, total_bytes=total))
            if candidate.num_accelerators > layout.num_accelerators:
                break
    return tuple(alternatives)


def _training_changes(layout: Layout) -> Iterator[tuple[str, Layout]]:
    group = layout.data * layout.context
    modes = list(Recompute)
    if layout.micro_batch > 1:
        yield "micro-batch 1, accumulating instead", _small_batch(layout)
    for zero in ZeroStage:
        if zero > layout.zero and group > 1:
            yield f"ZeRO stage {int(zero)} over {group}", replace(layout, zero=zero)
    for mode in modes[modes.index(layout.recompute) + 1 :]:
        yield f"{mode} recomputation", replace(layout, recompute=mode)
    if group > 1:
        yield "micro-batch 1, ZeRO stage 3, full recomputation", _leanest(layout)
    if not layout.offload_optimizer:
        yield "optimizer in host memory", replace(layout, offload_optimizer=True)
        lean = replace(_leanest(layout), offload_optimizer=True)
        yield "micro-batch 1, ZeRO stage 3, full recomputation, optimizer in host memory", lean


def _more_accelerators(layout: Layout) -> Iterator[tuple[str, Layout]]:
    candidate = _leanest(layout)
    while candidate.num_accelerators <= MAX_ACCELERATORS // 2:
        candidate = replace(candidate, data=candidate.data * 2)
        yield f"{candidate.num_accelerators} accelerators, ZeRO stage 3, full recomputation", candidate


def _small_batch(layout: Layout) -> Layout:
    return replace(layout, micro_batch=1, accumulation=layout.accumulation * layout.micro_batch)


def _leanest(layout: Layout) -> Layout:
    return replace(_small_batch(layout), zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)


def inference_alternatives(
    memory: Callable[[Layout, str], MemoryBreakdown], layout: Layout, weights: str, capacity_bytes: float
) -> tuple[Alternative, ...]:
    """Wider tensor parallelism and smaller weights that bring a model within the capacity."""
    alternatives = []
    smaller = [kind for kind in ("fp8", "int4") if _BITS[kind] < _BITS.get(weights, 16)]
    for kind in smaller:
        total = memory(layout, kind).total_bytes
        if total <= capacity_bytes:
            alternatives.append(
                Alternative(change=f"weights in {kind}", count=layout.num_accelerators, total_bytes=total)
            )
    wider = layout
    while wider.tensor * 2 <= MAX_TENSOR:
        wider = replace(wider, tensor=wider.tensor * 2, data=max(1, wider.data // 2))
        total = memory(wider, weights).total_bytes
        if total <= capacity_bytes:
            change = f"tensor parallel {wider.tensor}"
            alternatives.append(Alternative(change=change, count=wider.num_accelerators, total_bytes=total))
            break
    return tuple(alternatives)


_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
