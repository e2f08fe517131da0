"""Layouts that trainers and generators of a PPO stage are tried with, in a fixed order."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil

from charter.engines.common.capabilities import RlEngine
from charter.plan.rl.work import RlWork
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import StageResources

MOST_MICRO_BATCH = 16
"""Sequences per device and micro-batch beyond which products gain nothing; judgement."""
TOGETHER = (16, 32, 64, 128, 256, 512, 1024)
"""Limits of sequences that one replica of the generator decodes together (vLLM's `max_num_seqs`)."""

TENSORS = (1, 2, 4, 8, 16)
"""Tensor-parallel degrees, inside a node; those of a generator reach over two where a node cannot hold its weights."""


def trainer_layouts(
    work: RlWork, engine: RlEngine, sizes: Sequence[int], per_node: int, fixed: StageResources | None
) -> Iterator[Layout]:
    """Sharded data parallelism, with tensor parallelism inside a node where the engine has it; simplest first."""
    space = engine.does
    tensors = [degree for degree in TENSORS if degree <= per_node] if space.tensor else [1]
    heads = [role.architecture.num_heads for role in work.roles]
    modes = (Recompute.NONE, Recompute.FULL)
    for size, tensor, mode, offload in product(sizes, tensors, modes, (False, True)):
        data = size // tensor
        if size % tensor or data > work.minibatch or any(count % tensor for count in heads):
            continue
        if space.exact_batch and work.minibatch % data:
            continue
        share = ceil(work.minibatch / data)
        micros = [2**power for power in range(share.bit_length()) if 2**power <= min(share, MOST_MICRO_BATCH)]
        micros = [micro for micro in micros if not space.exact_batch or share % micro == 0]
        stages = space.zero if data > 1 else (ZeroStage.NONE,)
        stages = tuple(zero for zero in stages if not offload or data == 1 or zero in engine.optimizer_offload)
        if offload and not engine.optimizer_offload:
            continue
        for zero, micro in product(stages, reversed(micros)):
            layout = Layout(
                data=data,
                tensor=tensor,
                zero=zero,
                micro_batch=micro,
                accumulation=ceil(share / micro),
                recompute=mode,
                offload_optimizer=offload,
                sequence_parallel=tensor > 1 and space.sequence_parallel,
            )
            if fixed is None or _as_asked(layout, fixed):
                yield layout


def _as_asked(layout: Layout, fixed: StageResources) -> bool:
    """Return True if a layout is as the stage prescribes; a micro-batch counts as an upper bound."""
    return (
        (fixed.tensor is None or layout.tensor == fixed.tensor)
        and (fixed.zero is None or layout.data == 1 or int(layout.zero) == fixed.zero)
        and (fixed.recompute is None or layout.recompute == Recompute(fixed.recompute))
        and (fixed.micro_batch is None or layout.micro_batch <= fixed.micro_batch)
        and (fixed.pipeline is None or layout.pipeline == fixed.pipeline)
    )


def generator_replicas(work: RlWork, sizes: Sequence[int], widest: int) -> Iterator[tuple[int, int, int]]:
    """Replicas, tensor degree and limit of sequences; limits that a replica cannot fill are left out."""
    heads = work.policy.architecture.num_heads
    for size, tensor in product(sizes, [degree for degree in TENSORS if degree <= widest]):
        if size % tensor or heads % tensor:
            continue
        share = max(1, ceil(work.samples / (size // tensor)))
        for limit in [*(limit for limit in TOGETHER if limit < share), min(share, TOGETHER[-1])]:
            yield size // tensor, tensor, limit
