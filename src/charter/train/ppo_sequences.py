"""Models, prompts and answers as PPO reads them: log-probabilities and values of tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from charter.errors import DataError
from charter.inference.generate import Answers
from charter.models.language_model import LanguageModel
from charter.models.parallel import Parallel
from charter.models.preference import PreferenceModel
from charter.models.runtime import on_device, precision
from charter.models.token_forward import TokenFigures


@dataclass(frozen=True)
class PpoModels:
    """The models of PPO as one process holds them."""

    policy: LanguageModel
    trained: Parallel
    """The policy as it is trained."""
    reference: Parallel | None
    """None where no penalty reads it."""
    reward: PreferenceModel | None
    """None where no preference model is a reward."""
    value: Parallel | None
    """None where the estimator compares answers instead."""
    teacher: Parallel | None = None


@dataclass(frozen=True)
class HostMasks:
    """Lengths and masks of sequences on the host, so that no micro-batch has to wait for them."""

    tokens_B: Tensor
    prompt_tokens_B: Tensor
    answer_mask_BR: Tensor

    def rows(self, index: Tensor) -> "HostMasks":
        """Return those of some of the sequences."""
        return HostMasks(self.tokens_B[index], self.prompt_tokens_B[index], self.answer_mask_BR[index])


@dataclass(frozen=True)
class Sequences:
    """Prompts, each followed by its answer, and what is known of each answer token.

    Padding is at the right, where causal attention never looks, so no mask is needed.
    """

    ids_BT: Tensor
    mask_BT: Tensor
    prompt_tokens_B: Tensor
    answer_mask_BR: Tensor

    @cached_property
    def masks(self) -> HostMasks:
        """Lengths and masks, read from the device once."""
        return HostMasks(self.mask_BT.sum(1).cpu(), self.prompt_tokens_B.cpu(), self.answer_mask_BR.cpu())

    def rows(self, index: Tensor) -> "Sequences":
        """Some of the sequences, by numbers on the host, without the columns that are padding in all of them."""
        masks, at_B = self.masks.rows(index), on_device(index, self.ids_BT.device)
        width = int(masks.tokens_B.max())
        part = Sequences(
            self.ids_BT[at_B, :width],
            self.mask_BT[at_B, :width],
            self.prompt_tokens_B[at_B],
            self.answer_mask_BR[at_B],
        )
        part.__dict__["masks"] = masks
        return part

    @property
    def answer_tokens(self) -> int:
        """Width of the answers, R."""
        return self.answer_mask_BR.shape[1]


def answer_lengths(mask_BR: Tensor) -> Tensor:
    """Tokens up to the last that is counted, those in between included that somebody else wrote.

    >>> answer_lengths(torch.tensor([[True, False, True, False], [False] * 4])).tolist()
    [3, 0]
    """
    places_R = torch.arange(1, mask_BR.shape[1] + 1, device=mask_BR.device)
    return torch.where(mask_BR, places_R, 0).amax(1)


def as_sequences(answers: Answers, *, answer_width: int, padding: int) -> Sequences:
    """Prompts and answers side by side, each row from its first column on; answers masked to `answer_width` tokens.

    Tokens before an answer's last are part of the sequence, whoever wrote them; the mask says which are the policy's.
    """
    missing = answer_width - answers.answer_BR.shape[1]
    answer_mask_BR = torch.nn.functional.pad(answers.answer_mask_BR, (0, missing), value=False)
    places_R = torch.arange(answers.answer_mask_BR.shape[1], device=answers.answer_mask_BR.device)
    is_answer_BR = places_R < answer_lengths(answers.answer_mask_BR)[:, None]
    real_BT = torch.cat([answers.prompt_mask_BQ.bool(), is_answer_BR], 1)
    length_B = real_BT.sum(1)
    first_B = (real_BT.shape[1] - answers.answer_mask_BR.shape[1]) - answers.prompt_mask_BQ.sum(1)
    places_T = torch.arange(int(length_B.max()), device=real_BT.device)
    column_BT = (first_B[:, None] + places_T).clamp_max(real_BT.shape[1] - 1)
    mask_BT = places_T < length_B[:, None]
    ids_BT = torch.cat([answers.prompt_BQ, answers.answer_BR], 1).gather(1, column_BT)
    return Sequences(
        torch.where(mask_BT, ids_BT, padding), mask_BT.long(), answers.prompt_mask_BQ.sum(1), answer_mask_BR
    )


def answer_log_probabilities(
    call: Callable[..., Any],
    sequences: Sequences,
    *,
    temperature: float,
    dtype: str,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """log p of each answer token at the sampling temperature, and the entropy there, both [B, R] and 0 at padding.

    `call` runs the model or what wraps it. Differentiable; the entropy only when asked.
    """
    read_BT, places = sequences.ids_BT[:, :-1], answer_places(sequences)
    with precision(dtype, read_BT.device):
        figures: TokenFigures = call(
            input_ids=read_BT, at_N=places.at_N, target_N=places.target_N, temperature=temperature or 1.0
        )
    entropy_N = figures.entropy_N if entropy_gradient else figures.entropy_N.detach()
    return places.spread(figures.log_probability_N), places.spread(entropy_N)


@dataclass(frozen=True)
class AnswerPlaces:
    """Places of the tokens of answers, N in all."""

    at_N: Tensor
    """The position before each, counted through all that is read."""
    target_N: Tensor
    """The tokens themselves."""
    place_N: Tensor
    """Their places among the answers."""
    shape: torch.Size

    def spread(self, value_N: Tensor) -> Tensor:
        """Return values of tokens at their places, [B, R], and 0 elsewhere."""
        return _spread(value_N, self.place_N, self.shape)


def answer_places(sequences: Sequences) -> AnswerPlaces:
    """Return the places at which a pass over all but the last token says something of the answers' tokens."""
    masks, (width, device) = sequences.masks, (sequences.ids_BT.shape[1], sequences.ids_BT.device)
    if bool((masks.prompt_tokens_B < 1).any()):
        raise DataError(
            "an answer without a prompt: nothing comes before its first token, so it has no probability; give every "
            "prompt at least one token (a chat template that begins with one, or a longer max_prompt_tokens)"
        )
    row_N, token_N = masks.answer_mask_BR.nonzero().unbind(1)
    column_N, shape = masks.prompt_tokens_B[row_N] + token_N, sequences.answer_mask_BR.shape
    return AnswerPlaces(
        at_N=on_device(row_N * (width - 1) + column_N - 1, device),
        target_N=sequences.ids_BT.flatten().index_select(0, on_device(row_N * width + column_N, device)),
        place_N=on_device(row_N * shape[1] + token_N, device),
        shape=shape,
    )


def _spread(value_N: Tensor, place_N: Tensor, shape: torch.Size) -> Tensor:
    return value_N.new_zeros(shape.numel()).index_copy(0, place_N, value_N).view(shape)


def answer_values(call: Callable[..., Tensor], sequences: Sequences, *, dtype: str) -> Tensor:
    """The value of the state before each answer token, and after the last one, [B, S], differentiable.

    `call` runs the value model or what wraps it. 0 where an answer is padding.
    """
    ids_BT, masks, device = sequences.ids_BT, sequences.masks, sequences.ids_BT.device
    states_S = torch.arange(sequences.answer_tokens + 1)
    is_state_BS = states_S <= answer_lengths(masks.answer_mask_BR)[:, None]
    column_BS = masks.prompt_tokens_B[:, None] - 1 + states_S
    row_B1 = torch.arange(len(ids_BT))[:, None]
    at_N = on_device((row_B1 * ids_BT.shape[1] + column_BS)[is_state_BS], device)
    with precision(dtype, device):
        value_N = call(ids_BT, at_N=at_N)
    return _spread(value_N, on_device(is_state_BS.flatten().nonzero().squeeze(1), device), is_state_BS.shape)
