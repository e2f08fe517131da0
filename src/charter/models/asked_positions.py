"""Leave out the last layer's feed-forward part where nobody asks for its result.

After the last layer's attention no position looks at another. Where only some positions' hidden states are read (the
end of an answer, the tokens of an answer), the feed-forward part of that layer is needed at these alone: its output
elsewhere is 0 instead, and the same numbers come out where it counts.

Legend: B sequences, T tokens, N positions that are asked for, H hidden size.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from charter.models.decoder import decoder_layers

DENSE = frozenset(
    {"llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "phi3", "olmo", "olmo2", "olmo3", "smollm3"}
    | {"starcoder2", "stablelm", "glm", "glm4"}
)
"""Model types whose layers end with `mlp`, which treats every position alone, and which keep nothing else of it."""
MOST_ASKED = 0.75
"""Share of positions above which all are computed: gathering and spreading would cost more than is left out."""


def give_asked_positions(model: Any) -> None:
    """Let the last layer of a causal model leave out positions (`asked_positions`); its names and weights stay."""
    if model.config.model_type not in DENSE:
        return
    mlp: nn.Module = decoder_layers(model)[-1].get_submodule("mlp")
    kind = type(mlp)
    if not issubclass(kind, AskedPositions):
        mlp.__class__ = type(kind.__name__, (AskedPositions, kind), {"__module__": kind.__module__})


@contextlib.contextmanager
def asked_positions(body: nn.Module, at_N: Tensor) -> Iterator[None]:
    """While open, the last layer of `body` computes the positions `at_N` of all B x T, each named once, whole.

    Layers that are computed again in the backward pass, or compiled, are left as they are.
    """
    layer = decoder_layers(body)[-1]
    mlp = getattr(layer, "mlp", None)
    is_changed = "forward" in vars(layer) or layer._compiled_call_impl is not None
    if not isinstance(mlp, AskedPositions) or is_changed or torch.compiler.is_compiling():
        yield
        return
    mlp.asked_N = at_N
    try:
        yield
    finally:
        mlp.asked_N = None


class AskedPositions:
    """Mixed into the class of a layer's feed-forward part, before it."""

    asked_N: Tensor | None = None

    def forward(self, hidden_BTH: Tensor) -> Tensor:
        """The part's own output; where only some positions are asked for, 0 at the others."""
        at_N, hidden_MH = self.asked_N, hidden_BTH.flatten(0, -2)
        if at_N is None or len(at_N) > MOST_ASKED * len(hidden_MH):
            return super().forward(hidden_BTH)  # type: ignore[misc,no-any-return]
        found_NH: Tensor = super().forward(hidden_MH.index_select(0, at_N)[None])[0]  # type: ignore[misc]
        return found_NH.new_zeros(hidden_MH.shape).index_copy(0, at_N, found_NH).view_as(hidden_BTH)
