"""Bytes that tensors hold: of named objects exactly, and of everything that a block of code allocates."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Size of the storages behind some tensors, each once.

    >>> weight = torch.zeros(3, 4)
    >>> storage_bytes([weight, weight.t(), weight[0]])
    48
    """
    local = (getattr(item, "_local_tensor", item) for item in tensors)
    storages = {item.untyped_storage()._cdata: item.untyped_storage().nbytes() for item in local}
    return sum(storages.values())


def weights_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def gradients_of(module: nn.Module) -> list[Tensor]:
    """Gradients that exist."""
    return [item.grad for item in module.parameters() if item.grad is not None]


def moments_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Tensors of the optimizer's state, step counters among them."""
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, from their making until they are freed.

    `known` tensors are there before. What a kernel takes for itself while it runs is not seen. On processors only.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = self.now_bytes = 0
        self.is_open = False
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        for tensor in known:
            self.note(tensor)

    def note(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now on, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or not size:
            return
        self._alive[key] = (weakref.ref(storage, lambda _: self._freed(key)), size)
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def __enter__(self) -> "LiveBytes":
        self.is_open = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        self.is_open = False
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _freed(self, key: int) -> None:
        self.now_bytes -= self._alive.pop(key)[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return result
