"""A second kind of forward pass for Hugging Face causal models: figures of given tokens instead of logits.

It is a forward pass of the model itself, so that whatever wraps or shards the model (DDP, FSDP2, compile) sees it
as any other.

Legend: B sequences, T tokens, N positions that are asked for, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from charter.models.asked_positions import asked_positions, give_asked_positions
from charter.models.decoder import hugging_face_models
from charter.models.token_loss import LossFigures, TokenFigures, figures_of_logits, summed_token_loss, token_figures

PLAIN_HEADS = frozenset(
    {"llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "phi", "phi3"}
    | {"olmo", "olmo2", "olmo3", "olmoe", "smollm3", "starcoder2", "stablelm", "gpt_neox", "glm", "glm4", "gpt_oss"}
)
"""Model types whose logits are the output embeddings' product with the last hidden states, and nothing after it."""


def give_token_forward(module: nn.Module) -> None:
    """Let the causal models in `module` answer `forward(..., at_N=, target_N=)`; their names and weights stay."""
    for model in hugging_face_models(module).values():
        kind = type(model)
        if model.get_output_embeddings() is not None and not issubclass(kind, TokenForward):
            model.__class__ = type(kind.__name__, (TokenForward, kind), {"__module__": kind.__module__})
            give_asked_positions(model)


class TokenForward:
    """Mixed into a causal model's class, before it."""

    def forward(self, *args: Any, at_N: Tensor | None = None, **given: Any) -> Any:
        """The model's own output; with `at_N`, see `_asked`."""
        if at_N is None:
            return super().forward(*args, **given)  # type: ignore[misc]
        return self._asked(at_N, **given)

    def _asked(
        self,
        at_N: Tensor,
        *,
        target_N: Tensor,
        summed: bool = False,
        temperature: float = 1.0,
        **inputs: Any,
    ) -> TokenFigures | LossFigures:
        """Figures of `target_N` as the tokens that follow the positions `at_N`, counted through all of B x T."""
        model: Any = self
        head: nn.Module = model.get_output_embeddings()
        if model.config.model_type not in PLAIN_HEADS:
            logits_BTV = super().forward(use_cache=False, **inputs).logits  # type: ignore[misc]
            return _of_logits(logits_BTV.flatten(0, 1).index_select(0, at_N), target_N, summed, temperature)
        body = model.get_decoder()
        with asked_positions(body, at_N):
            hidden_BTH = body(use_cache=False, **inputs).last_hidden_state
        hidden_NH = hidden_BTH.flatten(0, 1).index_select(0, at_N)
        if not _is_plain(head):
            return _of_logits(head(hidden_NH[None])[0], target_N, summed, temperature)
        weight_VH: Tensor = head.get_parameter("weight")
        found: TokenFigures | LossFigures = _of_hidden(hidden_NH, weight_VH, target_N, summed, temperature)
        return found


def _is_plain(head: nn.Module) -> bool:
    """Whether the head is a product with one whole, local weight and nothing else (no adapter, no shard, no hook)."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False
    return getattr(head, "bias", None) is None and type(head.weight) in (nn.Parameter, Tensor)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _of_hidden(
    hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor, summed: bool, temperature: float
) -> TokenFigures | LossFigures:
    if summed:
        return summed_token_loss(hidden_NH, weight_VH, target_N)
    return token_figures(hidden_NH, weight_VH, target_N, temperature=temperature)


def _of_logits(logits_NV: Tensor, target_N: Tensor, summed: bool, temperature: float) -> TokenFigures | LossFigures:
    found = figures_of_logits(logits_NV, target_N, temperature=temperature)
    if not summed:
        return found
    detached = (found.log_probability_N.detach(), found.entropy_N.detach(), found.is_likeliest_N)
    return LossFigures(-found.log_probability_N.sum(), *detached)


def token_losses(
    call: Callable[..., Any],
    ids_BT: Tensor,
    counted_BT: Tensor,
    *,
    mask_BT: Tensor | None = None,
    position_BT: Tensor | None = None,
) -> LossFigures:
    """Summed cross-entropy of the counted tokens, each predicted from those before it; the first is never counted.

    `mask_BT` is needed only where padding comes before tokens: what follows a token does not reach it.
    """
    counted_BT = counted_BT.clone()
    counted_BT[:, 0] = False
    after_N = counted_BT.flatten().nonzero().squeeze(1)
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": position_BT}
    target_N = ids_BT.flatten().index_select(0, after_N)
    found: LossFigures = call(**inputs, at_N=after_N - 1, target_N=target_N, summed=True)
    return found
