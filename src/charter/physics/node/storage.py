"""Bytes on disk: checkpoints, weights, text."""

from charter.physics.shapes.parameters import adapter_parameters, count_parameters
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter

WEIGHT_BYTES_SAVED = 2.0
OPTIMIZER_BYTES_SAVED = 12.0
"""fp32 master copy and two moments. With fp32 weights the master is the weight: the same 14 bytes less 2."""
LOG_BYTES_PER_STEP = 500.0
"""A line of metrics, an event and a line of text per step. Judgement; lines of the native engine are 200-400 B."""
LOG_BYTES_PER_STAGE = 64 * 1024.0
"""Job, record, start and end of the log. Judgement."""
VERDICT_BYTES = 64.0
"""Of one labelled pair beside its texts: principle, probability, order. Judgement."""


def checkpoint_bytes(
    num_parameters: float,
    *,
    trained_parameters: float | None = None,
    weight_bytes: float = WEIGHT_BYTES_SAVED,
    optimizer_bytes: float = OPTIMIZER_BYTES_SAVED,
) -> float:
    """Bytes of a checkpoint that training can resume from: `2 N + 12 N_trained`, 14 bytes per trained parameter.

    Frozen models (reference, reward) are named by hash, not stored. Check: BLOOM's 2.3 TB for 176.2 B parameters is
    13.1 bytes per parameter (its model card). Data position and random state are counters, a few hundred bytes, and not
    counted.

    >>> checkpoint_bytes(13e9) / 1e9
    182.0
    """
    trained = num_parameters if trained_parameters is None else trained_parameters
    return weight_bytes * num_parameters + optimizer_bytes * trained


def model_checkpoint_bytes(architecture: Architecture, *, adapter: Adapter | None = None) -> float:
    """Bytes of one training checkpoint of a model; with an adapter only the adapter is saved."""
    if adapter:
        return checkpoint_bytes(adapter_parameters(architecture, adapter))
    return checkpoint_bytes(count_parameters(architecture).total)


def weights_bytes(architecture: Architecture, *, bytes_per_parameter: float = WEIGHT_BYTES_SAVED) -> float:
    """Bytes of the weights alone.

    >>> from charter.catalog import models
    >>> round(weights_bytes(models.get("bloom").architecture) / 1e9)
    352
    """
    return bytes_per_parameter * count_parameters(architecture).total


def retained_bytes(
    full_checkpoint_bytes: float, weights_only_bytes: float, *, keep_last: int, weights_only_kept: int = 1
) -> float:
    """Bytes kept under a retention policy: the last full checkpoints and some weights-only ones.

    One more full checkpoint exists while it is being written (written, verified, renamed, then the oldest removed).
    """
    return (keep_last + 1) * full_checkpoint_bytes + weights_only_kept * weights_only_bytes


def log_bytes(num_steps: float) -> float:
    """Bytes of metrics and logs of a stage of so many steps.

    >>> log_bytes(1000)
    565536.0
    """
    return LOG_BYTES_PER_STAGE + LOG_BYTES_PER_STEP * num_steps
