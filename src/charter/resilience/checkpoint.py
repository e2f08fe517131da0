"""Seconds to write or read a checkpoint; `physics/node.py` has its size."""


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
