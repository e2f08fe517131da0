"""Draw the next token from logits by inverting a distribution function.

Sums run through products with triangular matrices in blocks, because CUDA's own running sum of floating-point
numbers is not deterministic.

Legend: B sequences, V vocabulary, M blocks of K tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is drawn."""

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: str = "fp32"


def uniform_draws(seeds: Sequence[int], count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for each seed: row b depends on `seeds[b]` alone."""
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def choose(logits_BV: Tensor, draw_B: Tensor, settings: SamplingSettings) -> Tensor:
    """The first token whose cumulative probability exceeds the draw; the likeliest one at temperature 0."""
    if settings.temperature == 0:
        return logits_BV.argmax(-1)
    probability_BV = torch.softmax(logits_BV.float() / settings.temperature, -1).double()
    if settings.top_p < 1:
        sorted_BV, order_BV = torch.sort(probability_BV, dim=-1, descending=True, stable=True)
        outside_BV = prefix_sums(sorted_BV) - sorted_BV >= settings.top_p
        probability_BV = probability_BV.masked_fill(outside_BV.gather(-1, order_BV.argsort(-1)), 0)
    block_BMK = _blocks(probability_BV)
    sum_BM = block_BMK.sum(-1)
    until_BM = sum_BM @ _upper(sum_BM)
    target_B = draw_B.to(until_BM) * until_BM[:, -1]
    block_B = _first_above(until_BM, target_B, sum_BM)
    inside_BK = block_BMK.gather(1, block_B[:, None, None].expand(-1, 1, block_BMK.shape[2])).squeeze(1)
    before_B = (until_BM - sum_BM).gather(1, block_B[:, None]).squeeze(1)
    token_B = _first_above(before_B[:, None] + inside_BK @ _upper(inside_BK), target_B, inside_BK)
    return block_B * block_BMK.shape[2] + token_B


def prefix_sums(values_BV: Tensor) -> Tensor:
    """Inclusive running sums along the last dimension.

    >>> prefix_sums(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0, 6.0]]
    """
    block_BMK = _blocks(values_BV)
    sum_BM = block_BMK.sum(-1)
    before_BM = sum_BM @ _upper(sum_BM) - sum_BM
    return (block_BMK @ _upper(block_BMK) + before_BM[:, :, None]).flatten(1)[:, : values_BV.shape[1]]


def _blocks(values_BV: Tensor) -> Tensor:
    """[B, M, K] with K about the root of V, padded with zeros."""
    size = math.isqrt(values_BV.shape[1] - 1) + 1
    count = -(-values_BV.shape[1] // size)
    padded = torch.nn.functional.pad(values_BV, (0, size * count - values_BV.shape[1]))
    return padded.view(len(values_BV), count, size)


def _upper(like: Tensor) -> Tensor:
    """The square matrix whose product from the right makes running sums of the last dimension."""
    width = like.shape[-1]
    return torch.ones((width, width), dtype=like.dtype, device=like.device).triu()


def _first_above(until_BN: Tensor, target_B: Tensor, weight_BN: Tensor) -> Tensor:
    """The first index whose running sum exceeds the target; at most the last one that has weight."""
    first_B = (until_BN <= target_B[:, None]).sum(-1)
    places_N = torch.arange(until_BN.shape[1], device=until_BN.device)
    last_B = torch.where(weight_BN > 0, places_N, 0).amax(-1)
    return torch.minimum(first_B, last_B)
