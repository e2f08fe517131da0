"""What of a sharded model is kept in the host's memory."""

import logging

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from charter.errors import StageError
from charter.models.engine_layout import EngineLayout

log = logging.getLogger(__name__)


def is_needless(layout: EngineLayout, device: torch.device) -> bool:
    """Whether offloading was asked for where everything is in the host's memory anyway; said in the log."""
    needless = layout.offload != "none" and device.type == "cpu"
    if needless:
        log.warning("offload=%s changes nothing on a CPU: all is in the host's memory already", layout.offload)
    return needless


def check_offload(layout: EngineLayout, device: torch.device) -> None:
    """Refuse offloading that this layout cannot do; where all is on the host anyway, say so in the log."""
    if layout.offload == "none" or is_needless(layout, device):
        return
    if layout.offload == "optimizer":
        raise StageError("offload optimizer is not supported on an accelerator; use offload all with zero 3, or none")
    if layout.zero == 0 or layout.world_size == 1:
        raise StageError("offload all moves the parts of a sharded model to the host; use it with zero 3, or use none")


def offload_policy(layout: EngineLayout, device: torch.device) -> OffloadPolicy:
    """`all`: parameters, gradients and optimizer state on the host, parameters copied over for each pass."""
    if layout.offload == "all" and device.type != "cpu":
        return CPUOffloadPolicy()
    return OffloadPolicy()


def parameters_device(layout: EngineLayout, device: torch.device) -> torch.device:
    """Where sharded parameters stay between passes."""
    return torch.device("cpu") if layout.offload == "all" else device
