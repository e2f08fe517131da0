"""Direct preference optimisation: a language model learns from pairs what a preference model would have told it.

Legend: B answers, two for each pair, the chosen one first; T tokens, N tokens of all answers.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Pair, read_pairs
from charter.inference.score import pad_right
from charter.models.chat import encode_answer, encode_prompt
from charter.models.runtime import precision
from charter.models.token_forward import TokenFigures
from charter.spec.stage import DpoStage
from charter.train.losses import DpoLoss, dpo_loss, ipo_loss
from charter.train.models import frozen_model, stage_model, trained_model
from charter.train.setup import set_up
from charter.train.supervised import BatchLoss, train_and_publish

ANSWER_SHARE = 3 / 4
"""Of `seq_len`, at most, for an answer; the prompt is cut at the left to what the longer answer leaves."""


@dataclass(frozen=True)
class EncodedDpoPair:
    """The tokens of a pair: one prompt, two answers, and how probable it is that the first is the better one."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    chosen_probability: float


def encode_pair(tokenizer: Any, pair: Pair, *, max_tokens: int) -> EncodedDpoPair:
    """A pair as tokens; both answers follow the very same prompt, so what is cut of it is cut for both."""
    longest = max(1, int(max_tokens * ANSWER_SHARE))
    chosen, rejected = (
        encode_answer(tokenizer, pair.prompt, answer, max_tokens=longest) for answer in (pair.chosen, pair.rejected)
    )
    room = max(1, max_tokens - max(len(chosen), len(rejected)))
    prompt = encode_prompt(tokenizer, pair.prompt, max_tokens=room)
    return EncodedDpoPair(tuple(prompt), tuple(chosen), tuple(rejected), pair.chosen_probability)


def answer_log_probabilities(
    call: Callable[..., Any], pairs: Sequence[EncodedDpoPair], *, padding: int, dtype: str, device: torch.device
) -> Tensor:
    """log p(answer | prompt) of both answers of each pair, [B], by `call`, a causal language model; differentiable.

    Padding is at the right, where causal attention never looks, so no mask is needed.
    """
    rows = [(*pair.prompt, *answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    lengths = [len(answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    ids_BT, _, is_answer_BT = (item.to(device) for item in pad_right(rows, lengths, padding=padding))
    place_N = is_answer_BT.flatten().nonzero().squeeze(1)
    with precision(dtype, device):
        figures: TokenFigures = call(input_ids=ids_BT, at_N=place_N - 1, target_N=ids_BT.flatten()[place_N])
    each_N = figures.log_probability_N
    return each_N.new_zeros(ids_BT.numel()).index_copy(0, place_N, each_N).view(ids_BT.shape).sum(1)


def summed_loss(loss: DpoLoss, probability_B: Tensor, pairs: Sequence[EncodedDpoPair]) -> BatchLoss:
    """The loss of a micro-batch as a sum over its pairs, with what is reported of them."""
    answers = sum(len(pair.chosen) + len(pair.rejected) for pair in pairs)
    counters = {"pairs": len(pairs), "tokens": answers + 2 * sum(len(pair.prompt) for pair in pairs)}
    margin_B = loss.chosen_reward_B - loss.rejected_reward_B
    right = ((margin_B > 0) == (probability_B >= 0.5)).sum()
    sums = {
        "accuracy": right,
        "reward_margin": margin_B.sum(),
        "chosen_reward": loss.chosen_reward_B.sum(),
        "rejected_reward": loss.rejected_reward_B.sum(),
    }
    return BatchLoss(loss.loss_B.sum(), float(len(probability_B)), sums, counters, logits=answers)


def pairs_loss(
    policy: Callable[..., Any],
    reference: Callable[..., Any],
    pairs: Sequence[EncodedDpoPair],
    spec: DpoStage,
    *,
    padding: int,
    device: torch.device,
) -> BatchLoss:
    """Summed loss of some pairs; both models see the same rows in one pass each.

    The reference is asked anew in every step: what it says depends in the last bits on which rows share a batch, so
    an answer kept from another batch would make a resumed run differ.
    """
    chosen_B, rejected_B = (
        answer_log_probabilities(policy, pairs, padding=padding, dtype=spec.dtype, device=device).view(-1, 2).unbind(1)
    )
    with torch.no_grad():
        reference_chosen_B, reference_rejected_B = (
            answer_log_probabilities(reference, pairs, padding=padding, dtype=spec.dtype, device=device)
            .view(-1, 2)
            .unbind(1)
        )
    probability_B = torch.tensor([pair.chosen_probability for pair in pairs], device=device)
    loss_of = {"dpo": dpo_loss, "ipo": ipo_loss}[spec.loss]
    loss = loss_of(
        chosen_B,
        rejected_B,
        reference_chosen_B,
        reference_rejected_B,
        probability_B,
        beta=spec.beta,
        label_smoothing=spec.label_smoothing,
    )
    return summed_loss(loss, probability_B, pairs)


def run(stage: StageDir) -> None:
    """Train to the target step and publish the policy."""
    setup = set_up(stage)
    spec = setup.job.spec
    assert isinstance(spec, DpoStage)
    policy = stage_model(setup)
    reference = frozen_model(setup, copy.deepcopy(policy.model), spec.dtype, weights=policy.source)
    trained = trained_model(setup, policy, spec, dropout=spec.dropout)
    pairs = setup.rows("data", read_pairs)
    data = [encode_pair(policy.tokenizer, pair, max_tokens=spec.seq_len) for pair in pairs]

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        chosen = [data[row] for row in rows]
        return pairs_loss(
            trained.parallel.call, reference.module, chosen, spec, padding=policy.padding_id, device=setup.device
        )

    train_and_publish(setup, spec, trained, len(data), loss_of, sequences_per_row=2, reads_reference=True)


if __name__ == "__main__":
    stage_main(run)
