"""Supervised fine-tuning: the loss counts the tokens of assistant turns only."""

from collections.abc import Callable, Sequence

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.models.runtime import FLASH
from charter.spec.stage import SftStage
from charter.train.models import TrainedModel, stage_model, trained_model
from charter.train.packing import (
    VARLEN,
    check_packable,
    model_inputs,
    own_parts,
    pack,
    packed_attention,
    packed_batch,
    take_bounds,
)
from charter.train.pretrain import language_loss
from charter.train.setup import Setup, set_up
from charter.train.supervised import BatchLoss, train_and_publish
from charter.train.token_data import TokenRows, collate, conversation_rows

Rows = Callable[[Sequence[int], int], BatchLoss]


def run(stage: StageDir) -> None:
    """Train to the target step and publish the model."""
    setup = set_up(stage)
    spec = setup.job.spec_as(SftStage)
    model = stage_model(setup)
    data = conversation_rows(stage, model.tokenizer, seq_len=spec.seq_len, ranks=setup.ranks)
    setup.count_skipped(data.skipped)
    trained = trained_model(setup, model, spec, dropout=spec.dropout)
    count, loss_of = _packed(setup, spec, trained, data) if spec.packing else _single(setup, spec, trained, data)
    train_and_publish(setup, spec, trained, count, loss_of, sequences_per_row=len(data) / count)


def _single(setup: Setup, spec: SftStage, trained: TrainedModel, data: TokenRows) -> tuple[int, Rows]:
    """A conversation is a row."""
    parts = own_parts(setup.ranks, trained.model.model.config, setup.layout.attention, spec.seq_len)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        chosen = [data[row] for row in rows]
        ids_BT, counted_BT = collate(chosen, padding=trained.model.padding_id)
        tokens = sum(len(row.ids) for row in chosen)
        return language_loss(
            trained.parallel.call,
            ids_BT,
            counted_BT,
            dtype=spec.dtype,
            device=setup.device,
            tokens=tokens,
            parts=parts,
        )

    return len(data), loss_of


def _packed(setup: Setup, spec: SftStage, trained: TrainedModel, data: TokenRows) -> tuple[int, Rows]:
    """Conversations share rows by a precomputed index."""
    check_packable(trained.model.model.config, spec.seq_len)
    index = pack(data.lengths(), spec.seq_len)
    attention = packed_attention(setup.layout.attention, dtype=spec.dtype, dropout=spec.dropout, device=setup.device)
    if attention == VARLEN:
        take_bounds()
    parts = own_parts(setup.ranks, trained.model.model.config, setup.layout.attention, spec.seq_len)
    multiple = setup.ranks.context_size

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        chosen = [[data[item] for item in index[row]] for row in rows]
        batch = packed_batch(chosen, padding=trained.model.padding_id, multiple=multiple)
        tokens = batch.tokens
        batch = batch.flattened(multiple) if attention in (FLASH, VARLEN) else batch
        inputs = model_inputs(batch, attention=attention, device=setup.device)
        return language_loss(
            trained.parallel.call,
            batch.ids_BT,
            batch.counted_BT,
            dtype=spec.dtype,
            device=setup.device,
            tokens=tokens,
            more=inputs,
            parts=parts,
        )

    return len(index), loss_of


if __name__ == "__main__":
    stage_main(run)
