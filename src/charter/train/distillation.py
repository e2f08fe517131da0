"""Learning from a teacher: by the sampled tokens, or by the words that the teacher finds likeliest.

Legend: B sequences, R answer tokens, N positions, K words at each, C positions of a chunk, H hidden size, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from charter.models.runtime import precision
from charter.models.token_forward import (
    VocabularyPart,
    add_gradients,
    chunk_log_softmax,
    logit_chunks,
    matmul_inputs,
)
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Divergence
from charter.train.ppo_sequences import Sequences, answer_places


def distillation_advantages(teacher_BR: Tensor, sampled_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """Log-probability of each sampled token by a teacher, less that of the sampling policy; 0 outside of the mask.

    A_t = log t(y_t) - log q(y_t), the negative reverse KL(q | t) by one sample, in nats: each token gets its own alone,
    as with a discount of 0. Its gradient is that of the KL where the policy is still q.
    Sources: on-policy distillation, Agarwal et al. 2024 (arXiv:2306.13649), with the one-sample estimate of the reverse
    KL as Gu et al. 2024 (arXiv:2306.08543) derive it.

    >>> teacher, sampled = torch.tensor([[-1.0, -2.0, -9.0]]), torch.tensor([[-1.5, -1.0, -1.0]])
    >>> distillation_advantages(teacher, sampled, torch.tensor([[True, True, False]])).tolist()
    [[0.5, -1.0, 0.0]]
    """
    return torch.where(mask_BR, teacher_BR - sampled_BR, 0.0)


def divergence(policy_NK: Tensor, teacher_NK: Tensor, kind: Divergence, *, teacher_share: float = 0.5) -> Tensor:
    """Divergence of two distributions at each position, in nats, from log p of the same K words, the rest as one word.

    `reverse`: KL(policy | teacher), `forward`: KL(teacher | policy), `jsd`: w KL(teacher | m) + (1 - w) KL(policy | m)
    with m = w teacher + (1 - w) policy, w the teacher's share.
    Sources: Hinton et al. 2015 (arXiv:1503.02531) for `forward`; Gu et al. 2024 (arXiv:2306.08543) for `reverse`;
    Agarwal et al. 2024 (arXiv:2306.13649), eq. 1, for `jsd`.

    >>> policy, teacher = (torch.tensor([[p, 1 - p]]).log() for p in (0.5, 0.25))
    >>> round(divergence(policy, teacher, "reverse").item(), 4), round(divergence(policy, teacher, "forward").item(), 4)
    (0.1438, 0.1308)
    """
    policy, teacher = with_rest(policy_NK), with_rest(teacher_NK)
    if kind == "forward":
        return _nats(teacher, policy)
    if kind == "reverse":
        return _nats(policy, teacher)
    mixture = torch.logaddexp(teacher + math.log(teacher_share), policy + math.log1p(-teacher_share))
    return teacher_share * _nats(teacher, mixture) + (1 - teacher_share) * _nats(policy, mixture)


def with_rest(log_NK: Tensor) -> Tensor:
    """The words and, as one more, all others: at least the rounding of a sum, so that none is impossible.

    >>> with_rest(torch.tensor([[0.5, 0.25]]).log()).exp().tolist()
    [[0.5, 0.25, 0.25]]
    """
    rest_N1 = (1 - log_NK.exp().sum(1, keepdim=True)).clamp_min(8 * torch.finfo(log_NK.dtype).eps)
    return torch.cat([log_NK, rest_N1.log()], 1)


def _nats(of_NK: Tensor, from_NK: Tensor) -> Tensor:
    """KL(of | from) of each position."""
    return (of_NK.exp() * (of_NK - from_NK)).sum(1)


def answer_divergences(
    policy: Callable[..., Any], teacher: Callable[..., Any], sequences: Sequences, spec: PpoStage
) -> tuple[Tensor, Tensor, Tensor]:
    """log p and entropy as `answer_log_probabilities` has them, and how far the policy's words are from the teacher's.

    All [B, R] and 0 at padding; the last is differentiable, the others are not.
    """
    assert spec.divergence is not None
    places, temperature = answer_places(sequences), spec.temperature or 1.0
    inputs = {"input_ids": sequences.ids_BT[:, :-1], "at_N": places.at_N}
    with precision(spec.dtype, sequences.ids_BT.device):
        with torch.no_grad():
            rated: WordFigures = teacher(**inputs, question=LikeliestWords(spec.divergence_words, temperature))
        words = GivenWords(torch.cat([places.target_N[:, None], rated.word_NK], 1), temperature)
        figures: WordFigures = policy(**inputs, question=words)
    log_N1, log_NK = figures.log_probability_NK.tensor_split([1], 1)
    nats_N = divergence(log_NK, rated.log_probability_NK, spec.divergence, teacher_share=spec.teacher_share)
    return places.spread(log_N1.detach().squeeze(1)), places.spread(figures.entropy_N), places.spread(nats_N)


class WordFigures(NamedTuple):
    """Log-probabilities of several words at each position."""

    word_NK: Tensor
    log_probability_NK: Tensor
    """Differentiable where the words were given."""
    entropy_N: Tensor
    """Nats, of the whole distribution; without a gradient."""


@dataclass(frozen=True)
class GivenWords:
    """Asks for the log-probabilities of given words."""

    word_NK: Tensor
    temperature: float

    def of_hidden(self, hidden_NH: Tensor, weight_VH: Tensor, own: VocabularyPart | None) -> WordFigures:
        """Answer from hidden states.

        >>> figures = GivenWords(torch.tensor([[3, 0]]), 1.0).of_hidden(torch.zeros(1, 2), torch.ones(4, 2), None)
        >>> [round(value, 4) for value in figures.log_probability_NK[0].tolist()]
        [-1.3863, -1.3863]
        """
        figures = _GivenWords.apply(hidden_NH, weight_VH, self.word_NK, self.temperature, own)  # type: ignore[no-untyped-call]
        return WordFigures(self.word_NK, *figures)

    def of_logits(self, logits_NV: Tensor) -> WordFigures:
        """Answer from logits."""
        all_NV = torch.log_softmax(logits_NV.float() / self.temperature, -1)
        return WordFigures(self.word_NK, all_NV.gather(1, self.word_NK), _entropy(all_NV.detach()))


@dataclass(frozen=True)
class LikeliestWords:
    """Asks for so many of the likeliest words, at most all, and their log-probabilities; likelier ones first."""

    words: int
    temperature: float

    @torch.no_grad()
    def of_hidden(self, hidden_NH: Tensor, weight_VH: Tensor, own: VocabularyPart | None) -> WordFigures:
        """Answer from hidden states."""
        hidden, weight = matmul_inputs(hidden_NH, weight_VH)
        answers = []
        for part in logit_chunks(hidden, weight, own):
            all_CV = chunk_log_softmax(hidden[part], weight, self.temperature, own)
            log_CK, word_CK = all_CV.topk(min(self.words, all_CV.shape[1]), -1)
            if own is not None:
                log_CK, word_CK = _likeliest_of_all(log_CK, word_CK + own.first, self.words, own)
            answers.append((word_CK, log_CK, _entropy(all_CV, own)))
        return WordFigures(*(torch.cat(items) for items in zip(*answers, strict=True)))

    @torch.no_grad()
    def of_logits(self, logits_NV: Tensor) -> WordFigures:
        """Answer from logits."""
        all_NV = torch.log_softmax(logits_NV.float() / self.temperature, -1)
        log_NK, word_NK = all_NV.topk(min(self.words, all_NV.shape[1]), -1)
        return WordFigures(word_NK, log_NK, _entropy(all_NV))


def _entropy(all_CV: Tensor, own: VocabularyPart | None = None) -> Tensor:
    entropy_C = -(all_CV.exp() * all_CV).sum(-1)
    return entropy_C if own is None else own.sum(entropy_C)


def _likeliest_of_all(log_CK: Tensor, word_CK: Tensor, words: int, own: VocabularyPart) -> tuple[Tensor, Tensor]:
    """Choose from the words that each process has chosen among its own."""
    size = dist.get_world_size(own.group)
    missing = words - log_CK.shape[1]  # places that nobody chooses, unless all words are fewer
    logs = nn.functional.pad(log_CK, (0, missing), value=-torch.inf).contiguous()
    numbers = nn.functional.pad(word_CK, (0, missing)).contiguous()
    all_logs, all_numbers = ([torch.empty_like(item) for _ in range(size)] for item in (logs, numbers))
    dist.all_gather(all_logs, logs, group=own.group)
    dist.all_gather(all_numbers, numbers, group=own.group)
    best_CK, at_CK = torch.cat(all_logs, 1).topk(words, -1)
    return best_CK, torch.cat(all_numbers, 1).gather(1, at_CK)


class _GivenWords(torch.autograd.Function):
    """log p of the words of each position, and the entropy there; differentiable in the first."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, word_NK: Tensor, temperature: float, own: VocabularyPart | None
    ) -> tuple[Tensor, Tensor]:
        """Return log p of every word, and the entropy of every position."""
        hidden, weight = matmul_inputs(hidden_NH, weight_VH)
        log_NK = hidden.new_empty(word_NK.shape, dtype=torch.float32)
        entropy_N = hidden.new_empty(len(word_NK), dtype=torch.float32)
        for part in logit_chunks(hidden, weight, own):
            all_CV = chunk_log_softmax(hidden[part], weight, temperature, own)
            if own is None:
                log_NK[part] = all_CV.gather(1, word_NK[part])
            else:
                place_CK, is_own_CK = own.places(word_NK[part], all_CV.shape[1])
                log_NK[part] = own.sum(all_CV.gather(1, place_CK).masked_fill_(~is_own_CK, 0))
            entropy_N[part] = _entropy(all_CV, own)
        ctx.save_for_backward(hidden, weight, word_NK)
        ctx.temperature, ctx.own, ctx.dtypes = temperature, own, (hidden_NH.dtype, weight_VH.dtype)
        ctx.mark_non_differentiable(entropy_N)
        return log_NK, entropy_N

    @staticmethod
    def backward(ctx: Any, upstream_NK: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, from logits made again: d(log p_k) = 1[v = k] - p."""
        hidden, weight, word_NK = ctx.saved_tensors
        own: VocabularyPart | None = ctx.own
        gradient_NH = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        gradient_VH = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for part in logit_chunks(hidden, weight, own):
            place_CK, by_word_CK = word_NK[part], upstream_NK[part] / ctx.temperature
            by_logits_CV = chunk_log_softmax(hidden[part], weight, ctx.temperature, own).exp_()
            by_logits_CV.mul_(-by_word_CK.sum(1, keepdim=True))
            if own is not None:
                place_CK, is_own_CK = own.places(place_CK, by_logits_CV.shape[1])
                by_word_CK = by_word_CK * is_own_CK
            by_logits_CV.scatter_add_(1, place_CK, by_word_CK)
            add_gradients(by_logits_CV.to(hidden.dtype), hidden[part], weight, gradient_NH, gradient_VH, part)
            del by_logits_CV  # else it would live beside the next chunk's
        if own is not None and gradient_NH is not None:
            own.sum(gradient_NH)
        by_hidden = None if gradient_NH is None else gradient_NH.to(ctx.dtypes[0])
        by_weight = None if gradient_VH is None else gradient_VH.to(ctx.dtypes[1])
        return by_hidden, by_weight, None, None, None
