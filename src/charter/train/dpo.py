"""Direct preference optimisation: a language model learns from pairs what a preference model would have told it.

Legend: B answers, two for each pair, the chosen one first; T tokens, N tokens of all answers.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import read_pairs
from charter.errors import DataError
from charter.inference.score import pad_right
from charter.models.context_split import RowParts
from charter.models.runtime import on_device, precision
from charter.models.token_forward import TokenFigures, own_targets
from charter.spec.stage import DpoStage
from charter.train.encoded_pairs import EncodedDpoPair, encode_dpo_pair
from charter.train.losses import DpoLoss, dpo_loss, ipo_loss, kto_loss, orpo_loss, ranked_right, simpo_loss
from charter.train.models import frozen_model, stage_model, trained_model
from charter.train.packing import own_parts
from charter.train.setup import Setup, set_up
from charter.train.supervised import BatchLoss, train_and_publish


def answer_log_probabilities(
    call: Callable[..., Any],
    pairs: Sequence[EncodedDpoPair],
    *,
    padding: int,
    dtype: str,
    device: torch.device,
    parts: RowParts | None = None,
) -> Tensor:
    """log p(answer | prompt) of both answers of each pair, [B], by `call`, a causal language model; differentiable.

    Padding is at the right, where causal attention never looks, so no mask is needed. Processes that share rows by
    `parts` have the same sums.
    """
    rows = [(*pair.prompt, *answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    lengths = [len(answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    # What is read is counted on the host: on an accelerator it would have to wait for the count.
    ids_BT, _, is_answer_BT = pad_right(rows, lengths, padding=padding)
    if parts is not None:
        ids_BT, at_N, target_N = (on_device(item, device) for item in own_targets(ids_BT, is_answer_BT, parts))
        with precision(dtype, device):
            figures: TokenFigures = call(**parts.inputs({}, ids_BT), at_N=at_N, target_N=target_N)
        parts.check()
        each_N = figures.log_probability_N
        own_BT = each_N.new_zeros(ids_BT.numel()).index_copy(0, at_N, each_N).view(ids_BT.shape)
        return parts.total(own_BT.sum(1))
    host_N = is_answer_BT.flatten().nonzero().squeeze(1)
    target_N, place_N, ids_BT = (on_device(item, device) for item in (ids_BT.flatten()[host_N], host_N, ids_BT))
    with precision(dtype, device):
        figures = call(input_ids=ids_BT, at_N=place_N - 1, target_N=target_N)
    each_N = figures.log_probability_N
    return each_N.new_zeros(ids_BT.numel()).index_copy(0, place_N, each_N).view(ids_BT.shape).sum(1)


def summed_loss(loss: DpoLoss, probability_B: Tensor, pairs: Sequence[EncodedDpoPair]) -> BatchLoss:
    """The loss of a micro-batch as a sum over its pairs, with what is reported of them."""
    answers = sum(len(pair.chosen) + len(pair.rejected) for pair in pairs)
    counters = {"pairs": len(pairs), "tokens": answers + 2 * sum(len(pair.prompt) for pair in pairs)}
    margin_B = loss.chosen_reward_B - loss.rejected_reward_B
    right = ranked_right(margin_B, probability_B).sum()
    sums = {
        "accuracy": right,
        "reward_margin": margin_B.sum(),
        "chosen_reward": loss.chosen_reward_B.sum(),
        "rejected_reward": loss.rejected_reward_B.sum(),
    }
    return BatchLoss(loss.loss_B.sum(), float(len(probability_B)), sums, counters, logits=answers)


def pairs_loss(
    policy: Callable[..., Any],
    reference: Callable[..., Any] | None,
    pairs: Sequence[EncodedDpoPair],
    spec: DpoStage,
    *,
    padding: int,
    device: torch.device,
    reference_point: Tensor | None = None,
    parts: RowParts | None = None,
) -> BatchLoss:
    """Summed loss of some pairs; both models see the same rows in one pass each.

    The reference is asked anew in every step: what it says depends in the last bits on which rows share a batch, so
    an answer kept from another batch would make a resumed run differ.
    """

    def both(model: Callable[..., Any]) -> tuple[Tensor, ...]:
        sums_B = answer_log_probabilities(model, pairs, padding=padding, dtype=spec.dtype, device=device, parts=parts)
        return sums_B.view(-1, 2).unbind(1)

    chosen_B, rejected_B = both(policy)
    probability_B = on_device(torch.tensor([pair.chosen_probability for pair in pairs]), device)
    if reference is None:
        return summed_loss(_without_reference(chosen_B, rejected_B, probability_B, pairs, spec), probability_B, pairs)
    with torch.no_grad():
        reference_chosen_B, reference_rejected_B = both(reference)
    figures = (chosen_B, rejected_B, reference_chosen_B, reference_rejected_B, probability_B)
    beta, smoothing = spec.beta, spec.label_smoothing
    if spec.loss == "kto":
        assert reference_point is not None, "kto compares with a figure of the whole batch"
        loss = kto_loss(*figures, beta=beta, reference_point=reference_point, label_smoothing=smoothing)
        result = summed_loss(loss, probability_B, pairs)
        return replace(result, sums={**result.sums, "reference_point": reference_point * len(pairs)})
    loss_of = {"dpo": dpo_loss, "ipo": ipo_loss}[spec.loss]
    return summed_loss(loss_of(*figures, beta=beta, label_smoothing=smoothing), probability_B, pairs)


def _without_reference(
    chosen_B: Tensor, rejected_B: Tensor, probability_B: Tensor, pairs: Sequence[EncodedDpoPair], spec: DpoStage
) -> DpoLoss:
    """Loss of pairs by the mean log-probability of each answer's tokens."""
    lengths_B2 = torch.tensor([[len(pair.chosen), len(pair.rejected)] for pair in pairs], dtype=chosen_B.dtype)
    of_chosen_B, of_rejected_B = on_device(lengths_B2, chosen_B.device).unbind(1)
    means = (chosen_B / of_chosen_B, rejected_B / of_rejected_B, probability_B)
    if spec.loss == "orpo":
        return orpo_loss(*means, beta=spec.beta, label_smoothing=spec.label_smoothing)
    margin, smoothing = spec.target_margin, spec.label_smoothing
    return simpo_loss(*means, beta=spec.beta, target_margin=margin, label_smoothing=smoothing)


def others_of(data: Sequence[EncodedDpoPair]) -> list[int]:
    """For each row the next one, on from the start after the last, that has another prompt.

    >>> data = [EncodedDpoPair((prompt,), (1,), (2,), 1.0) for prompt in (7, 7, 8, 7)]
    >>> others_of(data)
    [2, 2, 3, 2]
    """
    following = [*range(1, len(data)), 0]
    ends = [row for row, after in enumerate(following) if data[row].prompt != data[after].prompt]
    if not ends:
        raise DataError("loss: kto compares answers with those to other prompts, and all pairs have the same one")
    others = [0] * len(data)
    for back in range(len(data)):
        row = ends[-1] - back
        after = following[row]
        others[row] = after if data[row].prompt != data[after].prompt else others[after]
    return others


@dataclass
class ReferencePoint:
    """The reference point of KTO: KL(policy | reference) of a step's whole batch, from answers to other prompts.

    Every prompt of the batch is read with both answers of the next row that has another prompt, by both models and
    without dropout. All micro-batches and processes of a step share the one mean. It is measured in every step, and
    no state.
    """

    setup: Setup
    policy: nn.Module
    reference: nn.Module
    data: Sequence[EncodedDpoPair]
    spec: DpoStage
    padding: int
    parts: RowParts | None = None
    nats: Tensor = field(init=False)
    log_ratio: Tensor = field(init=False)
    """The mean before it is cut at 0, for the record."""
    others: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.log_ratio = self.nats = torch.zeros((), dtype=torch.float64, device=self.setup.device)
        self.others = others_of(self.data)

    def unrelated(self, row: int) -> EncodedDpoPair:
        """The prompt of a row, cut at the left, with the answers of another."""
        other = self.data[self.others[row]]
        room = max(1, self.spec.seq_len - max(len(other.chosen), len(other.rejected)))
        return replace(other, prompt=self.data[row].prompt[-room:])

    @torch.no_grad()
    def measure(self, parts: Sequence[Sequence[int]]) -> None:
        """Mean log-ratio of unrelated answers over all rows of all processes, at least 0."""
        device, sums = self.setup.device, torch.zeros(2, dtype=torch.float64, device=self.setup.device)
        self.policy.eval()
        for rows in parts:
            self.setup.stage.alive()
            pairs = [self.unrelated(row) for row in rows]
            ours_B, theirs_B = (
                answer_log_probabilities(
                    model, pairs, padding=self.padding, dtype=self.spec.dtype, device=device, parts=self.parts
                )
                for model in (self.policy, self.reference)
            )
            ratio_B = (ours_B - theirs_B).double()
            sums += torch.stack([ratio_B.sum(), torch.ones_like(ratio_B).sum()])
        self.policy.train()
        total, count = self.setup.ranks.sum(sums).unbind()
        self.log_ratio = total / count.clamp_min(1)
        self.nats = self.log_ratio.clamp_min(0)


def run(stage: StageDir) -> None:
    """Train to the target step and publish the policy."""
    setup = set_up(stage)
    spec = setup.job.spec_as(DpoStage)
    policy = stage_model(setup)
    reference = None
    if spec.has_reference:
        reference = frozen_model(setup, copy.deepcopy(policy.model), spec.dtype, weights=policy.source).module
    trained = trained_model(setup, policy, spec, dropout=spec.dropout)
    pairs = setup.rows("data", read_pairs)
    data = [encode_dpo_pair(policy.tokenizer, pair, max_tokens=spec.seq_len) for pair in pairs]

    padding = policy.padding_id
    parts = own_parts(setup.ranks, policy.model.config, setup.layout.attention, spec.seq_len)
    point = None
    if spec.loss == "kto" and reference is not None:
        point = ReferencePoint(setup, trained.parallel.module, reference, data, spec, padding, parts)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        result = pairs_loss(
            trained.parallel.call,
            reference,
            [data[row] for row in rows],
            spec,
            padding=padding,
            device=setup.device,
            reference_point=None if point is None else point.nats,
            parts=parts,
        )
        if point is not None:
            result = replace(result, sums={**result.sums, "unrelated_log_ratio": point.log_ratio * len(rows)})
        return result if parts is None or parts.counts_rows else result.counted_elsewhere()

    train_and_publish(
        setup,
        spec,
        trained,
        len(data),
        loss_of,
        sequences_per_row=2,
        reads_reference=spec.has_reference,
        before_step=None if point is None else point.measure,
    )


if __name__ == "__main__":
    stage_main(run)
