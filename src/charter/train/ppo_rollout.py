"""A rollout in progress: what was sampled, under which policy, and what each token earned.

Legend: B answers of this process, R answer tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from charter.models.ranks import Ranks
from charter.train.kl_penalty import KlEstimator, kl_penalty
from charter.train.rollout import Sequences

_SEQUENCES = "sequences."


@dataclass(frozen=True)
class Rollout:
    """Everything that the epochs over a rollout need; what an estimator has no use for is None."""

    sequences: Sequences
    log_probability_BR: Tensor
    reference_BR: Tensor
    advantage_BR: Tensor
    score_B: Tensor
    ended_B: Tensor
    """Whether the answer has its end token."""
    value_BR: Tensor | None = None
    return_BR: Tensor | None = None
    weight_BR: Tensor | None = None
    """Importance weights where generator and trainer are different programs."""

    @property
    def mask_BR(self) -> Tensor:
        """Which answer tokens are real."""
        return self.sequences.answer_mask_BR

    def sums(self, *, kl_estimator: KlEstimator) -> dict[str, float]:
        """Sums over the answers, fetched from the device at once.

        `kl` is the log-ratio to the reference, the k1 estimate of KL(policy | reference); `kl_penalty` the estimate
        that the reward is charged for; `answer_entropy` is -log p, whose mean estimates the entropy of whole answers.
        """
        mask, old, reference = self.mask_BR, self.log_probability_BR, self.reference_BR
        found = {
            "kl": ((old - reference) * mask).double().sum(),
            "kl_penalty": (kl_penalty(old, reference, estimator=kl_estimator) * mask).double().sum(),
            "answer_entropy": -(old * mask).double().sum(),
            "reward_mean": self.score_B.double().sum(),
            "response_tokens": mask.sum().double(),
            "ended_share": self.ended_B.sum().double(),
            "tokens": self.sequences.mask_BT.sum().double(),
        }
        return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))

    def to_buffers(self, ranks: Ranks) -> dict[str, Tensor]:
        """All processes' rollouts as one, rank after rank: what a checkpoint holds. The answers' width is the same."""
        own = self._tensors()
        width = max(ranks.gather(self.sequences.ids_BT.shape[1]))
        for name in ("ids_BT", "mask_BT"):
            value = own[_SEQUENCES + name]
            own[_SEQUENCES + name] = torch.nn.functional.pad(value, (0, width - value.shape[1]))
        return {name: _gathered(value, ranks) for name, value in own.items()}

    @classmethod
    def from_buffers(cls, buffers: Mapping[str, Tensor], ranks: Ranks) -> "Rollout":
        """This process's part of what `to_buffers` gave."""
        own = {name: value.to(ranks.device).chunk(ranks.data_size)[ranks.data_rank] for name, value in buffers.items()}
        sequences = Sequences(**{item.name: own.pop(_SEQUENCES + item.name) for item in fields(Sequences)})
        return cls(sequences=sequences, **own)

    def _tensors(self) -> dict[str, Tensor]:
        named = {_SEQUENCES + item.name: getattr(self.sequences, item.name) for item in fields(Sequences)}
        named |= {item.name: getattr(self, item.name) for item in fields(self) if item.name != "sequences"}
        return {name: value for name, value in named.items() if value is not None}


def _gathered(value: Tensor, ranks: Ranks) -> Tensor:
    if ranks.data_size == 1:
        return value
    sent = value.to(torch.uint8) if value.dtype == torch.bool else value.contiguous()
    parts = [torch.empty_like(sent) for _ in range(ranks.data_size)]
    torch.distributed.all_gather(parts, sent, group=ranks.data_group)
    return torch.cat(parts).to(value.dtype)
