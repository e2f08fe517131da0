"""Dropout for Hugging Face decoders, whose configurations mostly know it for attention only."""

from typing import Any

import torch
from torch import Tensor, nn

ATTENTION_DROPOUT = "attention_dropout"
"""What Hugging Face's attention modules call it."""


def set_dropout(model: nn.Module, probability: float) -> None:
    """Drop token embeddings and attention weights with `probability` in training mode; 0 changes nothing.

    Draws come from torch's global generator, which every optimizer step seeds (`runtime.seeded`).
    Source: Srivastava et al. 2014; embeddings and attention as in Vaswani et al. 2017, section 5.4.
    """
    if probability == 0:
        return
    embeddings = model.get_input_embeddings()  # type: ignore[operator]

    def drop(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.nn.functional.dropout(output, probability, training=module.training)

    embeddings.register_forward_hook(drop)
    for module in model.modules():
        if hasattr(module, ATTENTION_DROPOUT):
            setattr(module, ATTENTION_DROPOUT, probability)
