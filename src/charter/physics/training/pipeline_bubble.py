"""Time of a step of several pipeline stages against the pass of its slowest stage."""

import numpy as np

from charter.physics.arrays import Array, array


def fullest_stage_layers(layers: Array, stages: Array) -> Array:
    """Layers of the fullest stage: `ceil(L / p)`."""
    return array(np.ceil(layers / stages))


def slowest_stage(layers: Array, stages: Array, layer: Array, head: Array) -> Array:
    """Seconds of the slowest stage for `layer` seconds per layer and `head` seconds on the last stage.

    Layers that divide evenly are split evenly and the last stage has the head on top. Layers that do not are laid
    out around it (Megatron's uneven first and last stage, DeepSpeed's partitioning by parameters): no stage is
    slower than the even share of everything, the fullest stage, or the head alone.

    >>> [float(slowest_stage(array(layers), array(4), array(1.0), array(1.5))) for layers in (8, 9)]
    [3.5, 3.0]
    """
    fullest = fullest_stage_layers(layers, stages)
    even = np.isclose(layers / stages, fullest)
    uneven = np.maximum(fullest * layer, np.maximum((layers * layer + head) / stages, head))
    return array(np.where(even, fullest * layer + head, uneven))


def bubble_seconds(stages: Array, chunks: Array, stage: Array) -> Array:
    """Idle time of a step: `(p - 1) / v` passes of an average stage (Narayanan et al. 2021, section 2.2).

    1F1B with one chunk, interleaved with v. Zero-bubble schedules are `(p - 1) / 3` (ZB1P, one chunk): v = 3.

    >>> float(bubble_seconds(array(8), array(2), array(1.0)))
    3.5
    """
    return array((stages - 1) / chunks * stage)
