"""Random tensors of a rollout, and what Charter's functions make of them; engines' own functions get the same numbers.

A name is a formula: `loss` or `loss.gradient` of it is compared, in fp64.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from charter.spec.rewards import SAPO_TEMPERATURES
from charter.train.losses import Summed, bradley_terry
from charter.train.ppo_math import (
    clipped_policy_loss,
    clipped_value_loss,
    generalised_advantages,
    grpo_advantages,
    kl_loss,
    kl_penalty,
    mismatch_weights,
    reinforce_advantages,
    rloo_advantages,
    whiten,
)

SEED, ANSWERS, TOKENS, SAMPLES = 11, 8, 12, 4
CLIP, CLIP_HIGH, DUAL, VALUE_CLIP, DISCOUNT, LAMBDA = 0.2, 0.28, 3.0, 0.3, 0.97, 0.9
LOW, HIGH = 0.5, 2.0
"""Bounds of the weights of tokens that another program sampled."""


def rollout(*, holes: bool = False) -> dict[str, Tensor]:
    """Tensors of one rollout: policies some tenths apart, answers of 1 to TOKENS tokens, `holes` where tools wrote."""
    source = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    old = -normal(ANSWERS, TOKENS).abs() - 0.1
    length = torch.randint(1, TOKENS + 1, (ANSWERS, 1), generator=source)
    length[0] = TOKENS
    mask = torch.arange(TOKENS) < length
    if holes:
        inside = torch.rand(ANSWERS, TOKENS, generator=source) < 0.3
        mask &= ~(inside & (torch.arange(TOKENS) > 0) & (torch.arange(TOKENS) < length - 1))
    new = old + 0.3 * normal(ANSWERS, TOKENS)
    return {
        "new": new.clamp_max(-0.01),
        "old": old,
        "reference": old + 0.4 * normal(ANSWERS, TOKENS),
        "generator": old + 0.5 * normal(ANSWERS, TOKENS),
        "mask": mask,
        "advantage": normal(ANSWERS, 1).expand(ANSWERS, TOKENS).contiguous(),
        "score": normal(ANSWERS),
        "reward": normal(ANSWERS, TOKENS) * mask,
        "value": normal(ANSWERS, TOKENS),
        "old_value": normal(ANSWERS, TOKENS),
        "return": normal(ANSWERS, TOKENS),
    }


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Lists of numbers for the process of an engine, and the settings."""
    numbers = {
        name: value.to(torch.int64 if value.dtype is torch.bool else value.dtype) for name, value in tensors.items()
    }
    settings = {
        "samples": SAMPLES,
        "clip": CLIP,
        "clip_high": CLIP_HIGH,
        "dual": DUAL,
        "sapo": SAPO_TEMPERATURES,
        "value_clip": VALUE_CLIP,
        "discount": DISCOUNT,
        "lambda": LAMBDA,
        "low": LOW,
        "high": HIGH,
        "tokens": TOKENS,
    }
    return {name: value.tolist() for name, value in numbers.items()} | settings


def with_gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> dict[str, Any]:
    """Return a loss and its gradient there, as an engine's process reports them."""
    at = at.clone().requires_grad_()
    value = loss(at)
    (gradient,) = torch.autograd.grad(value, at)
    return {"loss": value.item(), "gradient": gradient.tolist()}


def ours(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what Charter's functions give, by formula."""
    new, old, mask, score, reward = (tensors[name] for name in ("new", "old", "mask", "score", "reward"))
    value, old_value, target = (tensors[name] for name in ("value", "old_value", "return"))
    no_value = torch.zeros_like(reward)

    def policy(**changes: Any) -> dict[str, Any]:
        settings = {"clip_ratio": CLIP, **changes}
        function = partial(clipped_policy_loss, old_BR=old, advantage_BR=tensors["advantage"], mask_BR=mask, **settings)
        return with_gradient(lambda at: _mean(function(at)[0]), new)

    weights = {
        name: mismatch_weights(old, tensors["generator"], mask, low=LOW, high=HIGH, method=name)
        for name in ("tis", "icepop", "sequence_mask")
    }
    gae, gae_returns = generalised_advantages(reward, value, mask, discount=DISCOUNT, gae_lambda=LAMBDA)
    later, _ = reinforce_advantages(reward, no_value, mask, discount=DISCOUNT)
    divisor = torch.full((len(score),), float(mask.shape[1]))
    high = {"clip_ratio_high": CLIP_HIGH}
    return {
        "ppo.token": policy(**high),
        "ppo.sequence": policy(aggregation="sequence", **high),
        "ppo.constant": policy(aggregation="constant", divisor_B=divisor, **high),
        "ppo.dual": policy(dual_clip=DUAL, **high),
        "ppo.tis": policy(weight_BR=weights["tis"], **high),
        "ppo.icepop": policy(weight_BR=weights["icepop"], **high),
        "ppo.sequence_mask": policy(weight_BR=weights["sequence_mask"], **high),
        "gspo": policy(level="sequence", aggregation="sequence", **high),
        "gspo.token": policy(level="sequence", **high),
        "cispo": policy(surrogate="cispo", clip_ratio=1.0, **high),
        "sapo": policy(surrogate="sapo", aggregation="sequence"),
        "value": with_gradient(
            lambda at: _mean(clipped_value_loss(at, old_value, target, mask, value_clip=VALUE_CLIP)), value
        ),
        "kl.loss": with_gradient(lambda at: _mean(kl_loss(at, tensors["reference"], mask)), new),
        **{
            f"kl.{name}": (kl_penalty(new, tensors["reference"], estimator=name) * mask).tolist()
            for name in ("k1", "k2", "k3")
        },
        "grpo": grpo_advantages(score, mask, samples=SAMPLES).tolist(),
        "grpo.none": grpo_advantages(score, mask, samples=SAMPLES, scale="none").tolist(),
        "rloo": rloo_advantages(reward, mask, samples=SAMPLES).tolist(),
        "gae": gae.tolist(),
        "gae.whitened": whiten(gae, mask).tolist(),
        "gae.returns": (gae_returns * mask).tolist(),
        "reinforce": later.tolist(),
        "reinforce.whitened": whiten(later, mask).tolist(),
        "bradley_terry": with_gradient(
            lambda at: _mean(bradley_terry(at - old_value[:, 0], torch.ones(len(score), dtype=torch.float64))),
            value[:, 0],
        ),
    }


def assert_equal(left: Any, right: Any) -> None:
    """Compare a formula's numbers, or its loss and gradient, to a millionth; some engines compute in fp32."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for name in left:
            assert_equal(left[name], right[name])
    else:
        torch.testing.assert_close(torch.tensor(left), torch.tensor(right), rtol=1e-6, atol=1e-7)


def _mean(total: Summed | Tensor) -> Tensor:
    return total.mean if isinstance(total, Summed) else total.mean()
