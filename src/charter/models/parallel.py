"""How a model is spread over the processes of a stage, by the layout that its record froze."""

import warnings
from pathlib import Path

import torch
from torch import nn

from charter.models.adapters import check_layout
from charter.models.decoder import decoder_layers
from charter.models.engine_layout import EngineLayout
from charter.models.offload import check_offload, parameters_device
from charter.models.parallel_fsdp import FsdpParallel, frees_layers, shard
from charter.models.parallel_module import DdpParallel, Parallel
from charter.models.ranks import Ranks
from charter.models.recompute import recompute_layers
from charter.models.sharded_load import fill_weights, is_empty
from charter.models.tensor_parallel import split_tensors

__all__ = ["Parallel", "parallelize"]

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parallelize(
    module: nn.Module,
    layout: EngineLayout,
    ranks: Ranks,
    *,
    dtype: str,
    trained: bool = True,
    weights: Path | None = None,
) -> Parallel:
    """Spread `module` over the processes as `layout` says; what is sharded is changed in place.

    A frozen model (`trained=False`) is cast to the compute type once on an accelerator. An empty module is filled
    from the directory `weights`, of which each process reads its own parts.
    """
    check_layout(module, layout)
    check_offload(layout, ranks.device)
    if not trained:
        _freeze(module, COMPUTE[dtype], whole=ranks.device.type != "cpu" and layout.zero > 0)
    if trained and layout.recompute != "none":
        recompute_layers(module, layout.recompute)
    if not is_empty(module):
        module.to(ranks.device)
    if ranks.world_size == 1 or (not trained and layout.zero < 3 and layout.tensor == 1):
        fill_weights(module, weights, ranks.device)
        return Parallel(module, call=_compiled(module, layout, trained), is_first=ranks.is_first)
    if layout.tensor == 1 and layout.zero == 0:
        fill_weights(module, weights, ranks.device)
        wrapped = _averaged(_compiled(module, layout, trained), ranks)
        return DdpParallel(module, wrapped, is_first=ranks.is_first)
    mesh = split_tensors(module, layout, ranks)
    if layout.compile and trained:
        for layer in decoder_layers(module):
            layer.compile(dynamic=True)
    shard(module, layout, mesh, ranks, dtype=COMPUTE[dtype])
    fill_weights(module, weights, ranks.device, parameters_on=parameters_device(layout, ranks.device))
    return FsdpParallel(module, frees=frees_layers(layout), is_first=ranks.is_first)


def _compiled(module: nn.Module, layout: EngineLayout, trained: bool) -> nn.Module:
    """What training calls: compiled where asked for; `module` itself, which rollouts call, is not."""
    if not (layout.compile and trained):
        return module
    compiled: nn.Module = torch.compile(module, dynamic=True)  # type: ignore[assignment]
    return compiled


def _averaged(module: nn.Module, ranks: Ranks) -> nn.parallel.DistributedDataParallel:
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`broadcast_buffers`", category=FutureWarning)
        return nn.parallel.DistributedDataParallel(
            module,
            device_ids=devices,
            process_group=ranks.data_group,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )


def _freeze(module: nn.Module, dtype: torch.dtype, *, whole: bool) -> None:
    """No gradients; weights in the compute type, so that autocast does not cast them again at every pass.

    With `whole` every parameter is cast, as sharded training computes; else only what autocast would cast (linear
    layers), so that a frozen copy computes the same bits as the model it was copied from.
    """
    module.requires_grad_(False)
    if dtype == torch.float32:
        return
    linear = [item for item in module.modules() if isinstance(item, nn.Linear)]
    chosen = {id(parameter) for item in linear for parameter in item.parameters()}
    others = {id(p) for item in module.modules() if item not in linear for p in item.parameters(recurse=False)}
    for parameter in module.parameters():
        if whole or id(parameter) in chosen - others:
            parameter.data = parameter.data.to(dtype)
