"""Size of a checkpoint and how long it blocks a job."""

FULL_BYTES_PER_PARAMETER = 14.0
"""bf16 weights 2, fp32 master copy 4, Adam moments 8; BLOOM-176B measured 13.1 (2.3 TB), OPT-175B 9.1."""


def checkpoint_bytes(trained_parameters: float, *, bytes_per_parameter: float = FULL_BYTES_PER_PARAMETER) -> float:
    """Bytes of a checkpoint that training can resume from.

    `bytes per parameter x trained parameters`; frozen models (reference, reward) are named by hash, not
    stored. PPO trains policy and value model: pass their sum.

    >>> checkpoint_bytes(176e9) / 1e12
    2.464
    """
    return bytes_per_parameter * trained_parameters


def transfer_seconds(
    num_bytes: float,
    *,
    bytes_per_second_per_writer: float,
    num_writers: int = 1,
    store_bytes_per_second: float = float("inf"),
) -> float:
    """Seconds to write (or read) a checkpoint: bytes over the slower of the writers together and the store.

    >>> transfer_seconds(2.3e12, bytes_per_second_per_writer=1.2e9, num_writers=48)
    39.93055555555556
    """
    return num_bytes / min(bytes_per_second_per_writer * num_writers, store_bytes_per_second)
