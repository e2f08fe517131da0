"""Live bytes of a stage by what they are: weights, gradients, optimizer state, logits, keys and values, the rest."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def modules_here() -> list[torch.nn.Module]:
    """All modules of this process."""
    return [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]


class TaggedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes by tag; after the first optimizer step, when tags are known, the peak is watched anew."""

    def __init__(self, *, vocabulary: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._vocabulary = vocabulary
        self._alive: dict[int, tuple[Any, int, str]] = {}
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._updates = 0
        self._is_paused = False
        self._before: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Run a stage inside; modules that are there already are none of its own."""
        self._before = weakref.WeakSet(modules_here())
        with ExitStack() as stack:
            hooks = [
                register_optimizer_step_pre_hook(self._before_update),
                register_optimizer_step_post_hook(self._after_update),
            ]
            for hook in hooks:
                stack.callback(hook.remove)
            stack.callback(self._watch_sharding())
            stack.enter_context(self)
            yield

    def _watch_sharding(self) -> Callable[[], None]:
        """See storages that FSDP empties and fills again, and none of the shapes that DTensor only tries out."""
        resize, tried = torch.UntypedStorage.resize_, ShardingPropagator._propagate_tensor_meta_non_cached

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._alive:
                reference, before, tag = self._alive[storage._cdata]
                self._alive[storage._cdata] = (reference, storage.nbytes(), tag)
                self._add(tag, storage.nbytes() - before)
            return result

        def unseen(*given: Any, **more: Any) -> Any:
            self._is_paused = True
            try:
                return tried(*given, **more)
            finally:
                self._is_paused = False

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign,assignment]
        ShardingPropagator._propagate_tensor_meta_non_cached = unseen  # type: ignore[method-assign]

        def undo() -> None:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
            ShardingPropagator._propagate_tensor_meta_non_cached = tried  # type: ignore[method-assign]

        return undo

    def found(self) -> dict[str, Any]:
        """Bytes at the peak by tag, and the most of each tag at any time."""
        return {"peak": dict(self.peak), "total": self.peak.total(), "most": dict(self.most)}

    def note(self, tensor: Tensor, tag: str = "") -> None:
        """Count a tensor's storage; a tag given later replaces the first one."""
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if not size:
            return
        if key in self._alive:
            reference, size, old = self._alive[key]
            if tag and tag != old:
                self._alive[key] = (reference, size, tag)
                self.now[old] -= size
                self.now[tag] += size
            return
        tag = tag or self._guess(tensor)
        self._alive[key] = (weakref.ref(storage, lambda _: self._freed(key)), size, tag)
        self._add(tag, size)

    def _add(self, tag: str, size: int) -> None:
        self.now[tag] += size
        self.most[tag] = max(self.most[tag], self.now[tag])
        if self.now.total() > self.peak.total():
            self.peak = Counter(self.now)

    def _guess(self, tensor: Tensor) -> str:
        if tensor.dim() >= 2 and tensor.shape[-1] == self._vocabulary:
            return "logits"
        return "rest"

    def _freed(self, key: int) -> None:
        _, size, tag = self._alive.pop(key)
        self.now[tag] -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch runs operations on local tensors, which come here
        result = func(*args, **(kwargs or {}))
        if self._is_paused:
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return result

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._updates == 0:
            for module in [item for item in modules_here() if item not in self._before]:
                for tensor in (*module.parameters(), *module.buffers()):
                    self.note(tensor, "weights")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.note(parameter.grad, "gradients")
        if self._updates == 0:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._watch_gradient(parameter)

    def _watch_gradient(self, parameter: Tensor) -> None:
        def noted(owner: Tensor) -> None:
            assert owner.grad is not None
            self.note(owner.grad, "gradients")

        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(noted)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    self.note(value, "optimizer")
        self._updates += 1
        if self._updates <= 2:
            self.peak, self.most = Counter(self.now), Counter(self.now)
