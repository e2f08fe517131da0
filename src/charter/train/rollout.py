"""One PPO rollout: sample answers, score them, and put everything that the update needs side by side.

Legend: B answers, Q prompt tokens (padded left), R answer tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from charter.inference.generate import Answers
from charter.inference.score import token_log_probabilities
from charter.models.language_model import LanguageModel
from charter.models.preference import ScalarModel
from charter.models.runtime import precision


@dataclass(frozen=True)
class Sequences:
    """Prompts and answers as one padded tensor of fixed shape, with what is known of each answer token."""

    ids_BT: Tensor
    mask_BT: Tensor
    position_BT: Tensor
    answer_mask_BR: Tensor

    def rows(self, index: Tensor) -> "Sequences":
        """Some of the sequences."""
        return Sequences(self.ids_BT[index], self.mask_BT[index], self.position_BT[index], self.answer_mask_BR[index])

    @property
    def answer_tokens(self) -> int:
        """Width of the answers, R."""
        return self.answer_mask_BR.shape[1]


def as_sequences(answers: Answers, *, answer_width: int, padding: int) -> Sequences:
    """Prompts and answers side by side; answers padded at the right to `answer_width`, so that shapes never change."""
    missing = answer_width - answers.answer_BR.shape[1]
    answer_BR = torch.nn.functional.pad(answers.answer_BR, (0, missing), value=padding)
    answer_mask_BR = torch.nn.functional.pad(answers.answer_mask_BR, (0, missing), value=False)
    mask_BT = torch.cat([answers.prompt_mask_BQ, answer_mask_BR.long()], 1)
    return Sequences(
        torch.cat([answers.prompt_BQ, answer_BR], 1),
        mask_BT,
        (mask_BT.cumsum(1) - 1).clamp_min(0),
        answer_mask_BR,
    )


def answer_log_probabilities(
    model: LanguageModel, sequences: Sequences, *, temperature: float, dtype: str, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """log p of each answer token at the sampling temperature, and the entropy there, both [B, R].

    Differentiable; the entropy only when asked, since it keeps a second copy of the logits.
    """
    width = sequences.answer_tokens
    with precision(dtype, sequences.ids_BT.device):
        logits_BTV = model.model(
            input_ids=sequences.ids_BT,
            attention_mask=sequences.mask_BT,
            position_ids=sequences.position_BT,
            use_cache=False,
            logits_to_keep=width + 1,
        ).logits
    logits_BTV = logits_BTV.float() / (temperature or 1.0)
    log_probability_BR = token_log_probabilities(logits_BTV, sequences.ids_BT[:, -width - 1 :])
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        all_BRV = torch.log_softmax(logits_BTV[:, :-1], -1)
        entropy_BR = -(all_BRV.exp() * all_BRV).sum(-1)
    return log_probability_BR, entropy_BR


def answer_values(value_model: ScalarModel, sequences: Sequences, *, dtype: str) -> Tensor:
    """The value of the state before each answer token, [B, R], differentiable."""
    with precision(dtype, sequences.ids_BT.device):
        values_BT: Tensor = value_model(sequences.ids_BT, sequences.mask_BT, sequences.position_BT)
    return values_BT[:, -sequences.answer_tokens - 1 : -1]


@dataclass(frozen=True)
class Rollout:
    """A finished rollout: what was sampled under which policy, and what it earned."""

    sequences: Sequences
    log_probability_BR: Tensor
    reference_BR: Tensor
    value_BR: Tensor
    score_B: Tensor

    @property
    def mask_BR(self) -> Tensor:
        """Which answer tokens are real."""
        return self.sequences.answer_mask_BR

    def kl_nats(self) -> float:
        """Mean over answers of the summed log-ratio to the reference: the k1 estimate of KL(policy | reference)."""
        difference_BR = (self.log_probability_BR - self.reference_BR) * self.mask_BR
        return difference_BR.sum(1).mean().item()


@torch.no_grad()
def evaluate_sequences(
    policy: LanguageModel,
    reference: LanguageModel,
    value_model: ScalarModel,
    sequences: Sequences,
    minibatches: Sequence[Tensor],
    *,
    temperature: float,
    dtype: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Old log-probabilities, the reference's, and old values, computed minibatch by minibatch.

    The minibatches are those of the first PPO epoch: logits depend on the rows of a batch, and the same batch
    gives the same bits, so that the first minibatch's ratio is exactly 1.
    """
    shape = sequences.answer_mask_BR.shape
    log_probability, reference_, value = (torch.zeros(shape, device=sequences.ids_BT.device) for _ in range(3))
    for index in minibatches:
        part = sequences.rows(index)
        log_probability[index] = answer_log_probabilities(policy, part, temperature=temperature, dtype=dtype)[0]
        reference_[index] = answer_log_probabilities(reference, part, temperature=temperature, dtype=dtype)[0]
        value[index] = answer_values(value_model, part, dtype=dtype)
    mask = sequences.answer_mask_BR
    return log_probability * mask, reference_ * mask, value * mask
