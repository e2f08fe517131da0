"""A module whose parameters are sharded over the data ranks: torch's FSDP2 (`fully_shard`)."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from charter.models.decoder import decoder_layers, hugging_face_models
from charter.models.engine_layout import EngineLayout
from charter.models.offload import offload_policy
from charter.models.parallel_module import Parallel
from charter.models.ranks import Ranks

VIEW_WARNING = "FSDP2-wrapped module .* returned a view tensor"
"""Logits are a view; losses never change them in place."""
SHARDED_BY_FORWARD = 3
"""The ZeRO stage that frees gathered parameters after each layer's forward pass."""


def shard(module: nn.Module, layout: EngineLayout, mesh: DeviceMesh, ranks: Ranks, *, dtype: torch.dtype) -> None:
    """Shard every decoder layer, and what is around them, over `mesh` (one dimension, or two for hybrid sharding).

    On an accelerator layers compute in `dtype` from parameters in fp32, and gradients are added up in fp32. On a CPU
    parameters stay in fp32 and autocast decides.
    """
    settings: dict[str, Any] = {"mesh": mesh, "offload_policy": offload_policy(layout, ranks.device)}
    if ranks.device.type != "cpu" and dtype != torch.float32:
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    warnings.filterwarnings("ignore", message=VIEW_WARNING, category=UserWarning)
    frees = frees_layers(layout)
    for layer in decoder_layers(module):
        fully_shard(layer, reshard_after_forward=frees, **settings)
    fully_shard(module, reshard_after_forward=None if frees else False, **settings)
    if "" in hugging_face_models(module) and hasattr(module, "generate"):
        register_fsdp_forward_method(module, "generate")


def frees_layers(layout: EngineLayout) -> bool:
    """Whether a layer's parameters are freed again after its forward pass."""
    return layout.zero >= SHARDED_BY_FORWARD


class FsdpParallel(Parallel):
    """A sharded module; it is called whole (`module(...)`), since parts of it called alone find no parameters."""

    def __init__(self, module: nn.Module, *, frees: bool, is_first: bool) -> None:
        super().__init__(module, is_first=is_first)
        self._parts = [item for item in module.modules() if isinstance(item, FSDPModule)]
        self._frees = frees
        self._is_gathered = False
        module.register_forward_hook(self._after_forward)

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Free what a pass without gradients gathered: no backward pass does, and it would soon be out of date."""
        if not torch.is_grad_enabled() and not self._is_gathered:
            self._reshard()

    def _reshard(self) -> None:
        for part in self._parts:
            part.reshard()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights in place, for a rollout: no gathering at every token."""
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        self._is_gathered = True
        try:
            yield
        finally:
            self._is_gathered = False
            self._reshard()
            for part in self._parts[1:]:
                part.set_reshard_after_forward(self._frees, recurse=False)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes that are not the last of their step: gradients add up in this process alone."""
        root = self._parts[0]
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)
