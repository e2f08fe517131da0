"""Accelerators of this machine for jobs of the engine `subprocess`: each is held by a lock that the kernel frees."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.launch.machine import gpus_here


class Devices:
    """Accelerators of this machine that are held by a lock each, until they are given back or their holder ends."""

    def __init__(self, numbers: Sequence[int], locks: Sequence[Any]) -> None:
        self.numbers, self._locks = tuple(numbers), list(locks)

    @property
    def visible(self) -> str:
        """As CUDA wants to be told."""
        return ",".join(map(str, self.numbers))

    def give_back(self) -> None:
        """Let others have them."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()


def take_devices(wanted: int, locks: Path) -> Devices | None:
    """So many accelerators of this machine, or None while they are not free; what does not exist is not waited for."""
    from filelock import FileLock, Timeout

    wanted = min(wanted, gpus_here())
    held: list[Any] = []
    numbers: list[int] = []
    durable.make_dir(locks)
    for number in _device_numbers():
        if len(numbers) == wanted:
            break
        lock = FileLock(locks / f"gpu-{number}.lock", timeout=0, is_singleton=False, thread_local=False)
        with contextlib.suppress(Timeout):
            lock.acquire()
            held.append(lock)
            numbers.append(number)
    devices = Devices(numbers, held)
    if len(numbers) < wanted:
        devices.give_back()
        return None
    return devices


def _device_numbers() -> list[int]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [*range(gpus_here())]
    return [int(word) for word in visible.split(",") if word.strip().isdecimal()]
