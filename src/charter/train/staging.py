"""Copies of a state on the host, taken before training goes on, so that it can be written in the background."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class HostBuffers:
    """Buffers on the host that are filled anew by every save; pinned where the state is on a device."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors with copies of their local parts; complete when this returns."""
        self._held = {name: held for name, held in self._held.items() if name in tensors}
        copies = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        if any(_local(tensor).is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return copies

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        local = _local(tensor)
        held = self._held.get(name)
        if held is None or held.shape != local.shape or held.dtype != local.dtype:
            held = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            self._held[name] = held
        held.copy_(local, non_blocking=local.is_cuda)
        if isinstance(tensor, DTensor):
            return DTensor(held, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
        return held


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
