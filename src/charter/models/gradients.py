"""Gradients of sharded and whole parameters: their own part in this process, and their norm over all."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from charter.errors import StageError

SMALLEST_NORM = 1e-6
"""Added to the norm before dividing, as `torch.nn.utils.clip_grad_norm_` does."""


def own_part(value: Tensor) -> Tensor:
    """What this process holds of a tensor."""
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
