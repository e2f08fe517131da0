"""Floating-point operations of what a stage has really read, by the planner's formula."""

from collections.abc import Mapping
from dataclasses import dataclass

from charter.estimate.shapes.flops import forward_flops_per_token
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Operations of some work."""

    model: float = 0.0
    """What the mathematics of the model needs: of real tokens, each counted once per pass."""
    repeated: float = 0.0
    """What recomputation does again; no part of model operations or of MFU."""

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(model=self.model + other.model, repeated=self.repeated + other.repeated)

    def __mul__(self, count: float) -> "Operations":
        return Operations(model=count * self.model, repeated=count * self.repeated)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One model as a stage runs it."""

    architecture: Architecture
    scalar_head: bool = False
    """One number per token: the product with the vocabulary is not done."""
    frozen_base: bool = False
    """Only adapters are trained: no weight gradients of the base."""
    recompute: Recompute = Recompute.NONE

    def forward(self, tokens: float, sequences: float, *, head_share: float = 1.0) -> Operations:
        """A forward pass over `tokens` tokens in `sequences` sequences.

        `tokens x forward_flops_per_token(mean length)`. Lengths enter by their mean, so that of n sequences the
        attention scores are low by 1 + (deviation / mean)^2.
        """
        return Operations(model=tokens * self._per_token(tokens, sequences, head_share)[0])

    def training(self, tokens: float, sequences: float, *, head_share: float = 1.0) -> Operations:
        """Forward and backward: `3 F`, with a frozen base `2 F + F_mixing`; recomputation repeats scores or `F - head`.

        Source: Kaplan et al. 2020, section 2.1; Korthikanti et al. 2022, section 4 (`estimate.shapes.flops`).
        """
        total, head, mixing, scores = self._per_token(tokens, sequences, head_share)
        trained = 2 * total + mixing if self.frozen_base else 3 * total
        again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: scores, Recompute.FULL: total - head}[self.recompute]
        return Operations(model=tokens * trained, repeated=tokens * again)

    def _per_token(self, tokens: float, sequences: float, head_share: float) -> tuple[float, float, float, float]:
        length = max(tokens / max(sequences, 1.0), 1.0)
        share = 0.0 if self.scalar_head else head_share
        found = forward_flops_per_token(self.architecture, length, head_share=share)
        return found.total, found.head, found.mixing, found.scores


LOGITS = "logits"
"""Counter of the positions whose logits are computed."""
MINIBATCHES = "minibatches"
"""Counter of the minibatches that a step of reinforcement learning has trained on."""


@dataclass(frozen=True, kw_only=True)
class SupervisedWork:
    """Operations of a stage that trains one model on sequences; DPO reads them with a frozen reference too."""

    model: Reader
    sequences_per_step: float
    """Over all processes: rows of a step times sequences of a row (two of a pair)."""
    reference: Reader | None = None

    def __call__(self, counters: Mapping[str, int]) -> Operations:
        """Of one step, in which `tokens` tokens were read and `logits` positions have a loss (all, if not counted)."""
        tokens = float(counters.get("tokens", 0))
        share = _share(counters)
        done = self.model.training(tokens, self.sequences_per_step, head_share=share)
        if self.reference is not None:
            done += self.reference.forward(tokens, self.sequences_per_step, head_share=share)
        return done


@dataclass(frozen=True, kw_only=True)
class PolicyWork:
    """Operations of a step of reinforcement learning: sample, score with every model, then train."""

    policy: Reader
    reward: Reader
    value: Reader | None
    """None where no critic is trained (rloo, grpo)."""
    minibatches: int
    """Of an epoch."""

    def __call__(self, counters: Mapping[str, int]) -> Operations:
        """Of one rollout of `episodes` answers: `tokens` of prompts and answers, `logits` of them answers."""
        tokens, sequences = float(counters.get("tokens", 0)), float(counters.get("episodes", 1))
        share, epochs = _share(counters), counters.get(MINIBATCHES, 0) / self.minibatches
        read = self.policy.forward(tokens, sequences, head_share=share)
        done = read * 3 + self.reward.forward(tokens, sequences)
        done += self.policy.training(tokens, sequences, head_share=share) * epochs
        if self.value is not None:
            done += self.value.forward(tokens, sequences) + self.value.training(tokens, sequences) * epochs
        return done


def _share(counters: Mapping[str, int]) -> float:
    """Logits per token."""
    tokens = counters.get("tokens", 0)
    return counters.get(LOGITS, tokens) / tokens if tokens else 1.0
