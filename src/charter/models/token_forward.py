"""A second kind of forward pass for Hugging Face causal models: figures of given tokens instead of logits.

It is a forward pass of the model itself, so that whatever wraps or shards the model (DDP, FSDP2, compile) sees it
as any other.

Legend: B sequences, T tokens, N positions that are asked for, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from charter.models.context_split import RowParts
from charter.models.layer_passes import PLAIN_HEADS, asked_hidden, give_asked_positions, give_processor_layers
from charter.models.runtime import on_device
from charter.models.sharded_load import hugging_face_models
from charter.physics.memory_profiles import (
    CPU_KEPT_LOGITS,
    CPU_LOSS_TILE,
    KEPT_LOGITS,
    LEAST_TILE_ROWS,
    LOSS_TILE,
)

CPU_CHUNK, CUDA_CHUNK, LEAST_ROWS = int(CPU_LOSS_TILE), int(LOSS_TILE), int(LEAST_TILE_ROWS)
"""Logits in one chunk, and positions at least, as memory is planned."""
CPU_KEPT, CUDA_KEPT = int(CPU_KEPT_LOGITS), int(KEPT_LOGITS)
"""Probabilities kept for the backward pass at most; above it they are computed again."""


class TokenFigures(NamedTuple):
    """Figures of each token that was asked for."""

    log_probability_N: Tensor
    """Differentiable."""
    entropy_N: Tensor
    """Nats; of the distribution the token was taken from."""
    is_likeliest_N: Tensor
    """No other token has a larger probability."""


class LossFigures(NamedTuple):
    """A sum of losses with what is known of each token."""

    loss_sum: Tensor
    """Differentiable: sum of -weight * log p."""
    log_probability_N: Tensor
    entropy_N: Tensor
    is_likeliest_N: Tensor


class HiddenQuestion(Protocol):
    """A question to a model about the positions that are asked for, in place of figures of one token at each."""

    def of_hidden(self, hidden_NH: Tensor, weight_VH: Tensor, own: "VocabularyPart | None") -> Any:
        """Answer from hidden states and the output projection."""

    def of_logits(self, logits_NV: Tensor) -> Any:
        """Answer from logits that are there already."""


@dataclass(frozen=True)
class VocabularyPart:
    """The rows of the output projection that one of several processes has (tensor parallelism).

    Every process computes the logits of its own tokens for all positions; what a softmax needs of all tokens are three
    numbers for each position (largest logit, sum of exponentials, the chosen token's), never the logits of others
    (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
    """

    first: int
    """The first token of this process."""
    widest: int
    """Tokens of the process that has most: all must cut positions into the same chunks."""
    group: Any
    """The processes that have the others."""

    def sum(self, values: Tensor) -> Tensor:
        """Add up over the processes, in place."""
        dist.all_reduce(values, group=self.group)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """Return the maximum over the processes, in place."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values

    def places(self, target_C: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the column of each target among `tokens` of this process, and if it is among them at all."""
        place_C = target_C - self.first
        is_own_C = (place_C >= 0) & (place_C < tokens)
        return place_C.clamp(0, tokens - 1), is_own_C


def token_figures(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    target_N: Tensor,
    *,
    temperature: float = 1.0,
    own: VocabularyPart | None = None,
) -> TokenFigures:
    """log p of token n given hidden state n, for softmax(hidden weight' / temperature); all in fp32.

    With `own`, `weight_VH` has the rows of this process alone.

    >>> figures = token_figures(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([3]))
    >>> round(figures.log_probability_N.item(), 4), round(figures.entropy_N.item(), 4)
    (-1.3863, 1.3863)
    """
    return TokenFigures(*_TokenFigures.apply(hidden_NH, weight_VH, target_N, temperature, own))  # type: ignore[no-untyped-call]


def summed_token_loss(
    hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor, *, own: VocabularyPart | None = None
) -> LossFigures:
    """Sum of -log p of token n, for softmax(hidden weight'), in fp32.

    The gradient of a sum is known as soon as a chunk's probabilities are, so it is made in the forward pass and
    nothing of size N V is kept. In fp16 it is made in fp32: the scale of the loss, which keeps small gradients from
    vanishing, is known in the backward pass only.
    """
    return LossFigures(*_SummedLoss.apply(hidden_NH, weight_VH, target_N, own))  # type: ignore[no-untyped-call]


def figures_of_logits(logits_NV: Tensor, target_N: Tensor, *, temperature: float = 1.0) -> TokenFigures:
    """The same figures from logits that are there already, by plain differentiable operations."""
    all_NV = torch.log_softmax(logits_NV.float() / temperature, -1)
    chosen_N = all_NV.gather(1, target_N[:, None]).squeeze(1)
    return TokenFigures(chosen_N, -(all_NV.exp() * all_NV).sum(-1), chosen_N >= all_NV.amax(-1))


def logit_chunks(hidden_NH: Tensor, weight_VH: Tensor, own: VocabularyPart | None = None) -> Iterator[slice]:
    """Ranges of positions whose logits are made together: a function of the shapes alone."""
    limit = CUDA_CHUNK if hidden_NH.is_cuda else CPU_CHUNK
    size = max(limit // (weight_VH.shape[0] if own is None else own.widest), LEAST_ROWS)
    for start in range(0, hidden_NH.shape[0], size):
        yield slice(start, min(start + size, hidden_NH.shape[0]))


def matmul_inputs(hidden_NH: Tensor, weight_VH: Tensor) -> tuple[Tensor, Tensor]:
    """Both as autocast would give them to a linear layer."""
    kind = hidden_NH.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        return hidden_NH.to(dtype), weight_VH.to(dtype)
    return hidden_NH, weight_VH.to(hidden_NH.dtype)


def chunk_log_softmax(
    hidden_CH: Tensor, weight_VH: Tensor, temperature: float, own: VocabularyPart | None = None
) -> Tensor:
    """fp32 log-softmax of one chunk's logits, in place where the logits are fp32 already."""
    logits_CV = torch.mm(hidden_CH, weight_VH.t()).float()
    if temperature != 1:
        logits_CV.div_(temperature)
    if own is not None:
        logits_CV.sub_(own.largest(logits_CV.amax(-1, keepdim=True)))
        return logits_CV.sub_(own.sum(logits_CV.exp().sum(-1, keepdim=True)).log_())
    return torch.log_softmax(logits_CV, -1, out=logits_CV)


class _PositionFigures:
    """The figures of all positions, filled chunk by chunk."""

    def __init__(self, hidden_NH: Tensor) -> None:
        count = hidden_NH.shape[0]
        self.log_probability_N = hidden_NH.new_empty(count, dtype=torch.float32)
        self.entropy_N = hidden_NH.new_empty(count, dtype=torch.float32)
        self.is_likeliest_N = hidden_NH.new_empty(count, dtype=torch.bool)

    def fill(
        self,
        part: slice,
        all_CV: Tensor,
        target_C: Tensor,
        out: Tensor | None = None,
        own: VocabularyPart | None = None,
    ) -> Tensor:
        """Note one chunk's figures and return its probabilities."""
        if own is not None:
            return self._fill_part(part, all_CV, target_C, out, own)
        chosen_C = all_CV.gather(1, target_C[:, None]).squeeze(1)
        probability_CV = torch.exp(all_CV, out=out)
        self.log_probability_N[part] = chosen_C
        self.is_likeliest_N[part] = chosen_C >= all_CV.amax(-1)
        # In place: the log-probabilities are not read again, and a product of their size would be a third array.
        self.entropy_N[part] = all_CV.mul_(probability_CV).sum(-1).neg_()
        return probability_CV

    def _fill_part(
        self, part: slice, all_CV: Tensor, target_C: Tensor, out: Tensor | None, own: VocabularyPart
    ) -> Tensor:
        place_C, is_own_C = own.places(target_C, all_CV.shape[1])
        chosen_C = all_CV.gather(1, place_C[:, None]).squeeze(1).masked_fill_(~is_own_C, 0)
        largest_C = own.largest(all_CV.amax(-1))
        probability_CV = torch.exp(all_CV, out=out)
        entropy_C = all_CV.mul_(probability_CV).sum(-1).neg_()
        chosen_C, self.entropy_N[part] = own.sum(torch.stack([chosen_C, entropy_C]))
        self.log_probability_N[part] = chosen_C
        self.is_likeliest_N[part] = chosen_C >= largest_C
        return probability_CV


def _less_one_at(probability_CV: Tensor, target_C: Tensor, own: VocabularyPart | None = None) -> Tensor:
    """p - 1[v = target], in place: the gradient of -log p(target) by the logits."""
    if own is not None:
        place_C, is_own_C = own.places(target_C, probability_CV.shape[1])
        at_C1 = place_C[:, None]
        return probability_CV.scatter_(1, at_C1, probability_CV.gather(1, at_C1) - is_own_C[:, None].float())
    index_C1 = target_C[:, None]
    return probability_CV.scatter_(1, index_C1, probability_CV.gather(1, index_C1) - 1)


class _SummedLoss(torch.autograd.Function):
    """-sum log p, with both gradients made chunk by chunk in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        target_N: Tensor,
        own: VocabularyPart | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the loss and the figures of every token."""
        rows = _PositionFigures(hidden_NH)
        hidden, weight = matmul_inputs(hidden_NH, weight_VH)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        if hidden.dtype == torch.float16 and (needs_hidden or needs_weight):
            by, by_hidden, by_weight = torch.float32, hidden.float(), weight.float()
        else:
            by, by_hidden, by_weight = hidden.dtype, hidden, weight
        gradient_NH = torch.empty_like(hidden, dtype=by) if needs_hidden else None
        gradient_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if needs_weight else None
        for part in logit_chunks(hidden, weight, own):
            target_C = target_N[part]
            probability_CV = rows.fill(part, chunk_log_softmax(hidden[part], weight, 1.0, own), target_C, own=own)
            if not (needs_hidden or needs_weight):
                continue
            by_logits_CV = _less_one_at(probability_CV, target_C, own)
            add_gradients(by_logits_CV.to(by), by_hidden[part], by_weight, gradient_NH, gradient_VH, part)
            del probability_CV, by_logits_CV  # else they would live beside the next chunk's
        if own is not None and gradient_NH is not None:
            own.sum(gradient_NH)
        ctx.save_for_backward(gradient_NH, gradient_VH)
        ctx.dtypes = hidden_NH.dtype, weight_VH.dtype
        ctx.mark_non_differentiable(rows.log_probability_N, rows.entropy_N, rows.is_likeliest_N)
        return -rows.log_probability_N.sum(), rows.log_probability_N, rows.entropy_N, rows.is_likeliest_N

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that `forward` made, times what comes from above."""
        gradient_NH, gradient_VH = ctx.saved_tensors
        # In place: gradients of all of V x H are not held twice. A second backward pass is refused by torch.
        by_hidden = None if gradient_NH is None else gradient_NH.mul_(upstream).to(ctx.dtypes[0])
        by_weight = None if gradient_VH is None else gradient_VH.mul_(upstream).to(ctx.dtypes[1])
        return by_hidden, by_weight, None, None


class _TokenFigures(torch.autograd.Function):
    """log p, entropy and rank of each token; differentiable in the first two."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        target_N: Tensor,
        temperature: float,
        own: VocabularyPart | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p, entropy and rank of every token."""
        rows = _PositionFigures(hidden_NH)
        hidden, weight = matmul_inputs(hidden_NH, weight_VH)
        size = (hidden.shape[0], weight.shape[0])
        limit = CUDA_KEPT if hidden.is_cuda else CPU_KEPT
        keep = any(ctx.needs_input_grad[:2]) and size[0] * (size[1] if own is None else own.widest) <= limit
        probability_NV = hidden.new_empty(size, dtype=torch.float32) if keep else None
        for part in logit_chunks(hidden, weight, own):
            out = None if probability_NV is None else probability_NV[part]
            rows.fill(part, chunk_log_softmax(hidden[part], weight, temperature, own), target_N[part], out, own)
        ctx.save_for_backward(hidden, weight, target_N, rows.entropy_N, probability_NV)
        ctx.temperature, ctx.own, ctx.dtypes = temperature, own, (hidden_NH.dtype, weight_VH.dtype)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(rows.is_likeliest_N)
        return rows.log_probability_N, rows.entropy_N, rows.is_likeliest_N

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients, from stored probabilities or from logits made again."""
        hidden, weight, target_N, entropy_N, probability_NV = ctx.saved_tensors
        by_log_probability_N, by_entropy_N = upstream[:2]
        gradient_NH = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        gradient_VH = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for part in logit_chunks(hidden, weight, ctx.own):
            if probability_NV is None:
                probability_CV = chunk_log_softmax(hidden[part], weight, ctx.temperature, ctx.own).exp_()
            else:
                probability_CV = probability_NV[part].clone()
            by_logits_CV = _by_logits(
                probability_CV,
                target_N[part],
                entropy_N[part],
                None if by_log_probability_N is None else by_log_probability_N[part] / ctx.temperature,
                None if by_entropy_N is None else by_entropy_N[part] / ctx.temperature,
                ctx.own,
            )
            add_gradients(by_logits_CV.to(hidden.dtype), hidden[part], weight, gradient_NH, gradient_VH, part)
            del probability_CV, by_logits_CV
        if ctx.own is not None and gradient_NH is not None:
            ctx.own.sum(gradient_NH)
        by_hidden = None if gradient_NH is None else gradient_NH.to(ctx.dtypes[0])
        by_weight = None if gradient_VH is None else gradient_VH.to(ctx.dtypes[1])
        return by_hidden, by_weight, None, None, None


def _by_logits(
    probability_CV: Tensor,
    target_C: Tensor,
    entropy_C: Tensor,
    by_log_probability_C: Tensor | None,
    by_entropy_C: Tensor | None,
    own: VocabularyPart | None = None,
) -> Tensor:
    """d(log p) = 1[v = target] - p and d(entropy) = -p (log p + entropy), each times its upstream gradient."""
    found_CV: Tensor | None = None
    if by_entropy_C is not None:
        inner_CV = torch.xlogy(probability_CV, probability_CV).addcmul_(probability_CV, entropy_C[:, None])
        found_CV = inner_CV.mul_(-by_entropy_C[:, None])
    if by_log_probability_C is not None:
        by_log_CV = _less_one_at(probability_CV, target_C, own).mul_(-by_log_probability_C[:, None])
        found_CV = by_log_CV if found_CV is None else found_CV.add_(by_log_CV)
    return torch.zeros_like(probability_CV) if found_CV is None else found_CV


def add_gradients(
    by_logits_CV: Tensor,
    hidden_CH: Tensor,
    weight_VH: Tensor,
    gradient_NH: Tensor | None,
    gradient_VH: Tensor | None,
    part: slice,
) -> None:
    """The chunk's gradient by the hidden states, and its share of that by the weight, a sum over chunks in fp32."""
    if gradient_NH is not None:
        torch.mm(by_logits_CV, weight_VH, out=gradient_NH[part])
    if gradient_VH is None:
        return
    if gradient_VH.dtype == by_logits_CV.dtype:
        gradient_VH.addmm_(by_logits_CV.t(), hidden_CH)
    else:
        gradient_VH.add_(torch.mm(by_logits_CV.t(), hidden_CH))


def give_token_forward(module: nn.Module) -> None:
    """Let the causal models in `module` answer `forward(..., at_N=, target_N=)`; their names and weights stay."""
    for model in hugging_face_models(module).values():
        kind = type(model)
        if model.get_output_embeddings() is not None and not issubclass(kind, TokenForward):
            model.__class__ = type(kind.__name__, (TokenForward, kind), {"__module__": kind.__module__})
            give_asked_positions(model)
            give_processor_layers(model)


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
        target_N: Tensor | None = None,
        summed: bool = False,
        temperature: float = 1.0,
        question: HiddenQuestion | None = None,
        **inputs: Any,
    ) -> Any:
        """Figures of `target_N` as the tokens that follow the positions `at_N`, counted through all of B x T.

        Or the answer to a question about those positions.
        """
        model: Any = self
        answered = question or _TokenQuestion(target_N, summed, temperature)
        head: nn.Module = model.get_output_embeddings()
        if model.config.model_type not in PLAIN_HEADS:
            logits_BTV = super().forward(use_cache=False, **inputs).logits  # type: ignore[misc]
            return answered.of_logits(logits_BTV.flatten(0, 1).index_select(0, at_N))
        hidden_NH = asked_hidden(model.get_decoder(), at_N, inputs)
        if isinstance(head, AskedHead):
            return head(hidden_NH, question=answered)
        if (own := _vocabulary_part(head)) is not None:
            part_VH: Tensor = head.weight.to_local()  # type: ignore[operator,union-attr]
            return _answer(answered, hidden_NH, part_VH, own)
        if not _is_plain(head):
            return answered.of_logits(head(hidden_NH[None])[0])
        return _answer(answered, hidden_NH, head.get_parameter("weight"))


class AskedHead(nn.Linear):
    """An output projection that is sharded by itself: it is called, so that what gathers its weight knows of it."""

    def forward(self, hidden: Tensor, *, question: HiddenQuestion | None = None) -> Any:
        """Logits, or the answer to a question, as `_asked` has it."""
        return super().forward(hidden) if question is None else _answer(question, hidden, self.weight)


def _is_plain(head: nn.Module) -> bool:
    """Return True if the head is a product with one complete, local weight and nothing else (adapter, shard, hook)."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False
    return getattr(head, "bias", None) is None and type(head.weight) in (nn.Parameter, Tensor)


def give_asked_head(model: Any) -> nn.Module | None:
    """Let the output projection of a causal model be called for figures, where it is a plain product; else None."""
    head = model.get_output_embeddings()
    if model.config.model_type not in PLAIN_HEADS or head is None or not _is_plain(head):
        return None
    head.__class__ = AskedHead
    return head  # type: ignore[no-any-return]


def _vocabulary_part(head: nn.Module) -> VocabularyPart | None:
    """Return which rows of the head this process has, where tensor parallelism shares them; else None."""
    weight: Any = getattr(head, "weight", None)
    is_linear = type(head) is nn.Linear and getattr(head, "bias", None) is None
    if not (is_linear and isinstance(weight, DTensor) and tuple(weight.placements) == (Shard(0),)):
        return None
    mesh = weight.device_mesh
    widest = -(-weight.shape[0] // mesh.size())
    return VocabularyPart(first=mesh.get_local_rank() * widest, widest=widest, group=mesh.get_group())


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _answer(question: HiddenQuestion, hidden_NH: Tensor, weight_VH: Tensor, own: VocabularyPart | None = None) -> Any:
    return question.of_hidden(hidden_NH, weight_VH, own)


@dataclass(frozen=True)
class _TokenQuestion:
    """Figures of one token at each position, or their summed loss."""

    target_N: Tensor | None
    summed: bool
    temperature: float

    def of_hidden(self, hidden_NH: Tensor, weight_VH: Tensor, own: VocabularyPart | None) -> TokenFigures | LossFigures:
        """Answer from hidden states."""
        assert self.target_N is not None, "positions without a token to ask about"
        if self.summed:
            return summed_token_loss(hidden_NH, weight_VH, self.target_N, own=own)
        return token_figures(hidden_NH, weight_VH, self.target_N, temperature=self.temperature, own=own)

    def of_logits(self, logits_NV: Tensor) -> TokenFigures | LossFigures:
        """Answer from logits."""
        assert self.target_N is not None, "positions without a token to ask about"
        figures = figures_of_logits(logits_NV, self.target_N, temperature=self.temperature)
        if not self.summed:
            return figures
        detached = (figures.log_probability_N.detach(), figures.entropy_N.detach(), figures.is_likeliest_N)
        return LossFigures(-figures.log_probability_N.sum(), *detached)


def own_targets(ids_BT: Tensor, counted_BT: Tensor, parts: RowParts | None) -> tuple[Tensor, Tensor, Tensor]:
    """Own token ids, the positions among them that counted tokens follow, through all rows, and those tokens.

    The token after the last position of a part is another process's, so that rows are cut when targets are known.
    """
    asked_BT, next_BT = (nn.functional.pad(item[:, 1:], (0, 1)) for item in (counted_BT, ids_BT))
    if parts is not None:
        ids_BT, asked_BT, next_BT = (parts.cut(item) for item in (ids_BT, asked_BT, next_BT))
    at_N = asked_BT.flatten().nonzero().squeeze(1)
    return ids_BT, at_N, next_BT.flatten().index_select(0, at_N)


def token_losses(
    call: Callable[..., Any],
    ids_BT: Tensor,
    counted_BT: Tensor,
    *,
    more: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    parts: RowParts | None = None,
) -> LossFigures:
    """Summed cross-entropy of the counted tokens, each predicted from those before it; the first is never counted.

    `more` are inputs of the model beside the ids: a mask, positions, where conversations of a row begin. Padding at
    the right needs none: what follows a token does not reach it. Ids and counted tokens on the host are moved to
    `device` here, after the counted ones are numbered: on an accelerator the host would have to wait for their number.
    With `parts` the figures are those of this process's positions.
    """
    ids_BT, at_N, target_N = own_targets(ids_BT, counted_BT, parts)
    place = ids_BT.device if device is None else device
    ids_BT, at_N, target_N = (on_device(item, place) for item in (ids_BT, at_N, target_N))
    inputs = {"attention_mask": None, "position_ids": None, **(more or {}), "input_ids": ids_BT}
    if parts is not None:
        inputs = parts.inputs(inputs, ids_BT)
    losses: LossFigures = call(**inputs, at_N=at_N, target_N=target_N, summed=True)
    if parts is not None:
        parts.check()
    return losses
