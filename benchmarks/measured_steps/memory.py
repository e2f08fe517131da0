"""Peak memory of this process: of the accelerator's allocator, or of the process where there is none."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from charter.units import GIB, KIB

ON_CPU = "GiB (peak resident set of the process)"
ON_DEVICE = "GiB (torch max_memory_allocated)"


class PeakMemory:
    """The peak since the last reset, in GiB."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.unit = ON_DEVICE if self.on_device else ON_CPU

    def reset(self) -> None:
        """Forget what was before."""
        if self.on_device:
            torch.cuda.reset_peak_memory_stats()
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def peak_gib(self) -> float:
        """Most bytes held at once since the reset. On Linux `VmHWM`, since `ru_maxrss` survives a fork."""
        if self.on_device:
            return torch.cuda.max_memory_allocated() / GIB
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * KIB / GIB
        return 0.0

    def reserved_gib(self) -> float | None:
        """The most that the caching allocator took from the driver; None without one."""
        return torch.cuda.max_memory_reserved() / GIB if self.on_device else None


def gib_of(tensors: Iterable[Tensor]) -> float:
    """Size of some tensors, each storage once."""
    sizes = {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in tensors}
    return sum(sizes.values()) / GIB


def optimizer_gib(*optimizers: torch.optim.Optimizer) -> float:
    """Size of the moments that optimizers keep."""
    states = (value for optimizer in optimizers for state in optimizer.state.values() for value in state.values())
    return gib_of(value for value in states if isinstance(value, Tensor))
