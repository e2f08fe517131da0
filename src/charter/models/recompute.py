"""Activations that are computed again in the backward pass instead of being kept.

`full` keeps the input of every decoder layer. `selective` keeps all but attention scores, as the planner counts it
(Korthikanti et al. 2022, arXiv:2205.05198, section 4): eager attention is computed again from queries, keys and
values; fused attention keeps no scores, so there it changes nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from charter.errors import StageError
from charter.models.decoder import decoder_layers, hugging_face_models

UNFUSED, UNFUSED_AGAIN = "eager", "charter_eager_again"


def recompute_layers(module: nn.Module, how: str) -> None:
    """Recompute in every pass with gradients, in evaluation mode too; dropout draws the same numbers again."""
    if how == "full":
        for layer in decoder_layers(module):
            layer.forward = _again(layer.forward)
    elif how == "selective":
        for model in hugging_face_models(module).values():
            if model.config._attn_implementation == UNFUSED:
                _register_unfused()
                model.set_attn_implementation(UNFUSED_AGAIN)
    elif how != "none":
        raise StageError(f"recompute {how!r} is unknown; use none, selective or full")


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    return run


def _unfused_again(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The model's own eager attention, recomputed."""
    import sys

    eager = sys.modules[type(module).__module__].eager_attention_forward
    return _again(eager)(module, *args, **kwargs)


def _register_unfused() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(UNFUSED_AGAIN, _unfused_again)
    AttentionMaskInterface.register(UNFUSED_AGAIN, eager_mask)
