"""Matrix products of a micro-batch: operations weighted by what their shape reaches, bytes, bytes of casts."""

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.training.device_columns import DeviceColumns
from charter.physics.training.matmuls import shape_share
from charter.physics.training.model_columns import (
    EXPERT_PRODUCTS,
    HEAD_PRODUCT,
    PRODUCTS,
    SPLIT_COLUMNS,
    SPLIT_INNER,
    ModelColumns,
)
from charter.physics.training.step_job import StepJob

EXPERT_KINDS, HEAD_KINDS = EXPERT_PRODUCTS, (HEAD_PRODUCT,)
DENSE_KINDS = tuple(kind for kind in range(len(PRODUCTS)) if kind not in (*EXPERT_KINDS, *HEAD_KINDS))
CAST_BYTES, BLOCK_CAST_BYTES = 3.0, 2.0
"""Per value that is quantised: 16 bits read, 8 written; with a scale per block a second copy along the other side."""

FROZEN_CASTS_SAVED = 1 / 3
"""Of the casts, where no weight gradient reads them: one operand of three."""


def product_work(
    m: ModelColumns, device: DeviceColumns, job: StepJob, kinds: tuple[int, ...], tokens: Array
) -> tuple[Array, Array, Array]:
    """Weighted operations and bytes of kinds of product, each for its three passes; bytes of a third of the casts.

    A product of n rows, K inner and N columns is followed by its input gradient (n x K out of N) and its weight
    gradient (K x N out of n), which a frozen base does not need. Weights are cast once per step, activations and
    gradients at every product.
    """
    at, flops, moved, casts = job.layouts, [], [], array(0.0)
    passes = (array(1.0), array(1.0), 1.0 - job.frozen)
    low_rate = np.where(job.bits <= 4, device.rate_4, device.rate_8)
    short = array(device.short_inner * np.where(job.bits < 16, low_rate / device.rate_16, 1.0))
    rows_all = np.maximum(tokens, 1.0)
    for kind in kinds:
        count = m.count[kind]
        if not np.any(count):
            continue
        inner = m.inner[kind] / np.where(m.split[kind] == SPLIT_INNER, at.tensor, 1.0)
        columns = m.columns[kind] / np.where(m.split[kind] == SPLIT_COLUMNS, at.tensor, 1.0)
        rows, groups, units = rows_all, array(1.0), device.multiprocessors
        if kind in EXPERT_KINDS:
            groups = np.maximum(1.0, m.experts / at.expert)
            rows = np.maximum(tokens * m.experts_per_token / at.tensor / groups, 1.0)
            units = np.maximum(1.0, units / groups)
        times = count * groups * (tokens > 0)
        shapes = ((rows, columns, inner), (rows, inner, columns), (inner, columns, rows))
        for share, (tall, wide, deep) in zip(passes, shapes, strict=True):
            reach = shape_share(tall, wide, deep, units, short)
            flops.append(2.0 * tall * wide * deep * times * share / np.maximum(reach, 1e-3))
            moved.append(job.value_bytes * (tall * wide + tall * deep + wide * deep) * times * share)
        casts = casts + times * (rows * (inner + 2 * columns) / 3 + columns * inner / at.accumulation)
    if not flops:
        flops, moved = [np.zeros_like(tokens)] * 3, [np.zeros_like(tokens)] * 3
    bytes_each = np.where(job.bits < 16, CAST_BYTES + BLOCK_CAST_BYTES * job.block_scaled, 0.0)
    needed = 1 - job.frozen * FROZEN_CASTS_SAVED
    return _stacked(flops), _stacked(moved), array(bytes_each * needed * casts)


def _stacked(table: list[Array]) -> Array:
    shape = np.broadcast_shapes(*(each.shape for each in table))
    return array(np.stack([np.broadcast_to(each, shape) for each in table]))
