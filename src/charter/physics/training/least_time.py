"""A lower bound of the time of a step: what the matrix products of the layers take if nothing is lost."""

from __future__ import annotations

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.training.micro_batch import StepInputs, product_rate
from charter.physics.training.product_work import DENSE_KINDS


def least_step_seconds(given: StepInputs) -> Array:
    """Never more than `step_seconds`: dense products of the layers at the best rate, split without loss.

    `m 2 n sum(K N) (2 or 3 passes) / (R TP p)`, times what the step is multiplied by in the end. Every other term of a
    step is at least 0; a shape reaches at most the best rate; the fullest stage holds at least the mean of the layers.
    Experts, attention and the output projection are left out. `given.work` is not read.
    """
    m, at, job, c = given.model, given.job.layouts, given.job, given.constants
    kinds = list(DENSE_KINDS)
    weights = np.sum(m.inner[kinds] * m.columns[kinds] * m.count[kinds], axis=0)
    tokens = at.micro_batch * job.seq / at.context
    flops = 2.0 * tokens * weights * (3.0 - job.frozen) / at.tensor
    spread = c.straggler * np.log2(np.maximum(at.num_accelerators / 8, 1.0))
    seconds = at.accumulation * flops / at.pipeline / product_rate(given)
    return array(seconds * c.unmodelled * given.stack.unmodelled * (1 + spread))
