"""Train a language model on plain text; the texts are packed end to end, so no token is padding."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.models.context_split import RowParts
from charter.models.runtime import precision
from charter.models.token_forward import token_losses
from charter.spec.stage import PretrainStage
from charter.train.models import stage_model, trained_model
from charter.train.packing import own_parts
from charter.train.setup import set_up
from charter.train.supervised import BatchLoss, train_and_publish
from charter.train.token_data import text_stream


def language_loss(
    call: Callable[..., Any],
    ids_BT: Tensor,
    counted_BT: Tensor,
    *,
    dtype: str,
    device: torch.device,
    tokens: int | None = None,
    more: Mapping[str, Any] | None = None,
    parts: RowParts | None = None,
) -> BatchLoss:
    """Summed cross-entropy of the counted tokens of one micro-batch, with the mean entropy and the share guessed right.

    `tokens` are those that are not padding; `more` are inputs of the model beside the ids (`token_losses`). Of a row
    that several processes share by `parts` each has the loss of its own positions, and one counts the tokens.
    """
    with precision(dtype, device):
        figures = token_losses(call, ids_BT, counted_BT, more=more, device=device, parts=parts)
    read = ids_BT.numel() if tokens is None else tokens
    read = read if parts is None or parts.counts_rows else 0
    sums = {"entropy": figures.entropy_N.sum(), "token_accuracy": figures.is_likeliest_N.sum()}
    count = len(figures.entropy_N)
    return BatchLoss(figures.loss_sum, float(count), sums, {"tokens": read}, logits=count)


def run(stage: StageDir) -> None:
    """Train to the target step and publish the model."""
    setup = set_up(stage)
    spec = setup.job.spec_as(PretrainStage)
    model = stage_model(setup)
    rows_NT = text_stream(stage, model.tokenizer, seq_len=spec.seq_len, ranks=setup.ranks)
    setup.count_skipped(rows_NT.skipped)
    trained = trained_model(setup, model, spec, dropout=spec.dropout)
    parts = own_parts(setup.ranks, trained.model.model.config, setup.layout.attention, spec.seq_len)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        ids_BT = rows_NT[rows]
        everything_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        return language_loss(
            trained.parallel.call, ids_BT, everything_BT, dtype=spec.dtype, device=setup.device, parts=parts
        )

    train_and_publish(setup, spec, trained, len(rows_NT), loss_of)


if __name__ == "__main__":
    stage_main(run)
