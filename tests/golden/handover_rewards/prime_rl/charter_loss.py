"""Charter's loss of one answer for prime-rl, which divides the sum by all tokens of the batch.

The ratio is of the weights that learn to those that drew each token, as the generator said.
"""

import torch
from prime_rl.trainer.rl.loss import LossOutputs


def loss(inputs, *, low, high, dual_clip, surrogate):
    mask, new = inputs.loss_mask, inputs.trainer_logprobs
    zero = torch.zeros_like(new)
    ratio = torch.exp(torch.where(mask, new - inputs.inference_logprobs, zero))
    held = ratio.clamp(1 - low, 1 + high)
    advantage = inputs.advantages
    if surrogate == "cispo":
        terms = -held.detach() * advantage * new
    else:
        terms = -torch.minimum(ratio * advantage, held * advantage)
        if dual_clip is not None:
            terms = torch.where(advantage < 0, torch.minimum(terms, -dual_clip * advantage), terms)
    if inputs.loss_weights is not None:
        terms = terms * inputs.loss_weights
    outside = torch.where(mask, (ratio != held).float(), zero).sum() / mask.sum().clamp_min(1)
    return LossOutputs(loss=torch.where(mask, terms, zero).sum(), metrics={"clip_fraction": outside.detach()})
