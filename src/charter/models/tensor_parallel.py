"""Tensor parallelism by the model classes' own plans (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""

import re
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from charter.errors import StageError
from charter.models.decoder import hugging_face_models, tie, tied_weights
from charter.models.engine_layout import EngineLayout
from charter.models.ranks import Ranks

HEADS_DIMENSION = 2
"""Of queries and keys when they are normalised per head: batch, token, head, width."""
EMBEDDING = "embedding_rowwise"


def data_mesh(layout: EngineLayout, ranks: Ranks) -> tuple[DeviceMesh, DeviceMesh | None]:
    """The mesh to shard over, and the one to split tensors over; neighbouring ranks split tensors."""
    replicas = layout.data if layout.zero == 0 else layout.replicas
    if layout.data % replicas:
        raise StageError(f"{layout.data} data-parallel processes cannot be split into {replicas} replicas")
    sizes = {"replicate": replicas, "shard": layout.data // replicas, "tensor": layout.tensor}
    kept = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    whole = init_device_mesh(ranks.device.type, tuple(kept.values()), mesh_dim_names=tuple(kept))
    names = tuple(name for name in kept if name != "tensor")
    return (whole[names] if len(names) < len(kept) else whole), (whole["tensor"] if layout.tensor > 1 else None)


def split_tensors(module: nn.Module, layout: EngineLayout, ranks: Ranks) -> DeviceMesh:
    """Split the matrices of `module` over neighbouring ranks where the layout asks for it; the mesh that is left."""
    left, tensor = data_mesh(layout, ranks)
    if tensor is None:
        return left
    ties = tied_weights(module)
    for prefix, model in hugging_face_models(module).items():
        parallelize_module(model, tensor, _styles(model, layout.tensor, is_tied=bool(ties)))
        _check_ties(module, ties, prefix)
    tie(module, ties)
    return left


def _styles(model: Any, size: int, *, is_tied: bool) -> dict[str, ParallelStyle]:
    """torch's style for every entry of a model's plan."""
    config = model.config
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    for what, count in (("attention heads", heads), ("key/value heads", kv_heads or heads)):
        if count % size:
            raise StageError(f"{count} {what} cannot be split over {size} processes; tensor must divide {count}")
    plan = dict(getattr(model, "tp_plan", None) or {})
    if not plan:
        raise StageError(
            f"{type(model).__name__} has no plan for tensor parallelism; use tensor 1 with zero 3, which needs none"
        )
    return {name: _style(style, name, model) for name, style in plan.items() if _exists(model, name)}


def _exists(model: nn.Module, pattern: str) -> bool:
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return any(expression.fullmatch(name) for name, _ in model.named_modules())


def _style(style: str, name: str, model: nn.Module) -> ParallelStyle:
    match style:
        case "colwise":
            return ColwiseParallel()
        case "rowwise":
            return RowwiseParallel()
        case "colwise_gather_output":
            return ColwiseParallel(output_layouts=Replicate())
        case "embedding_rowwise" | "rowwise_split_input":
            return RowwiseParallel(input_layouts=Replicate())
        case "replicated_with_grad_allreduce":
            return SequenceParallel(sequence_dim=HEADS_DIMENSION, use_local_output=True)
    raise StageError(
        f"{type(model).__name__} splits {name} in a way that is not supported here ({style}); use tensor 1 with zero 3"
    )


def _check_ties(module: nn.Module, ties: list[list[str]], prefix: str) -> None:
    """Tied weights can be tied again only where every name was split in the same way."""
    for group in ties:
        placements = {str(getattr(module.get_parameter(name), "placements", None)) for name in group}
        if len(placements) > 1:
            raise StageError(
                f"{', '.join(group)} are one tensor, which the model's plan splits in {len(placements)} ways; "
                "use tensor 1 with zero 3"
            )
