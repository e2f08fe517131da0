"""A module as one of a stage's processes trains it: alone, or with its gradients averaged (DDP)."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from charter.errors import StageError

SMALLEST_NORM = 1e-6
"""Added to the norm before dividing, as `torch.nn.utils.clip_grad_norm_` does."""


def own_part(value: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """`sqrt(sum of squares)` over all gradients, parts on other processes included; the same number everywhere.

    Gradients of one placement are summed here first, then once over each mesh dimension that they are sharded on.
    """
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else ()
        groups.setdefault(key, []).append(gradient)
    if list(groups) == [()]:
        return torch.nn.utils.get_total_norm(gradients)
    squares = [_group_norm(group) ** 2 for group in groups.values()]
    return torch.stack(squares).sum().sqrt()


def _group_norm(group: Sequence[Tensor]) -> Tensor:
    parts = [own_part(gradient) for gradient in group]
    filled = [part for part in parts if part.numel()]
    norm = torch.nn.utils.get_total_norm(filled) if filled else torch.zeros((), device=parts[0].device)
    first = group[0]
    if not isinstance(first, DTensor):
        return norm
    square = norm.float() ** 2
    for dimension, placement in enumerate(first.placements):
        if placement.is_partial():
            raise StageError("a gradient is still a sum over processes; add it up before taking its norm")
        if not placement.is_replicate():
            dist.all_reduce(square, group=first.device_mesh.get_group(dimension))
    return square.sqrt()


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their norm is at most `max_norm`; the norm before that.

    Source: Pascanu et al. 2013 (arXiv:1211.5063), section 3.2.
    """
    gradients = [item.grad for item in parameters if item.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = global_norm(gradients)
    factor = (max_norm / (norm + SMALLEST_NORM)).clamp(max=1.0)
    parts = [own_part(gradient) for gradient in gradients]
    for part in parts:
        part.mul_(factor.to(part.device))
    return norm


WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module")
"""Names that wrappers of torch put into the names of weights; `module` only in front."""


class Parallel:
    """A module with what differs between layouts; this class is one process alone.

    Backward passes leave gradients that are averaged over the data ranks.
    """

    def __init__(self, module: nn.Module, *, call: Callable[..., Any] | None = None, is_first: bool = True) -> None:
        self.module = module
        """The model class itself; called without gradients for rollouts and scores."""
        self.call: Callable[..., Any] = module if call is None else call
        """What the forward pass of training calls."""
        self._is_first = is_first

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that an optimizer updates."""
        return [item for item in self.module.parameters() if item.requires_grad]

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights in place, for a rollout: no gathering at every token."""
        yield

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes that are not the last of their step: gradients add up in this process alone."""
        yield

    def scale_gradients(self, factor: float | Tensor) -> None:
        """Multiply every gradient; a factor of one fp32 number on the device needs no wait for it."""
        gradients = [own_part(item.grad) for item in self.trained_parameters() if item.grad is not None]
        if gradients:
            by = factor.to(gradients[0].device) if isinstance(factor, Tensor) else factor
            torch._foreach_mul_(gradients, by)

    def clip(self, max_norm: float) -> Tensor:
        """Scale gradients down to `max_norm`; their norm over the whole model before that, the same everywhere."""
        return clip_gradients(self.trained_parameters(), max_norm)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole tensors with the model class's own names, on the host of rank 0; nothing elsewhere."""
        weights: dict[str, Tensor] = {}
        for name, value in self.module.state_dict().items():
            full_tensor = value.full_tensor() if isinstance(value, DTensor) else value
            if self._is_first:
                weights[plain_name(name)] = full_tensor.detach().to("cpu", copy=True)
        return weights

    def warm(self, run: Callable[[], Tensor]) -> None:
        """Do once what the first backward pass would do, so that a resumed step adds up as any other; no change."""


class DdpParallel(Parallel):
    """Every process has the whole model; gradients are averaged in buckets during the backward pass."""

    def __init__(self, module: nn.Module, wrapped: nn.parallel.DistributedDataParallel, *, is_first: bool) -> None:
        super().__init__(module, call=wrapped, is_first=is_first)
        self._wrapped = wrapped

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes that are not the last of their step: gradients add up in this process alone."""
        with self._wrapped.no_sync():
            yield

    def warm(self, run: Callable[[], Tensor]) -> None:
        """Let DDP regroup its buckets before the first step.

        After its first backward pass DDP orders buckets by when gradients became ready. Sums over three or more
        processes depend on the grouping, so without this the first step of a resume would differ.
        """
        devices = range(torch.cuda.device_count()) if next(self.module.parameters()).is_cuda else []
        with torch.random.fork_rng(devices=devices):
            run().backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)


def plain_name(name: str) -> str:
    """The name of a weight without what wrappers add.

    >>> plain_name("module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp.weight")
    'model.layers.0.mlp.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS[:-1]]
    return ".".join(parts[1:] if parts[0] == WRAPPERS[-1] else parts)
