"""Supervised fine-tuning: the loss counts the tokens of assistant turns only."""

from collections.abc import Sequence

import torch
from torch import Tensor

from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import DataError
from charter.models.chat import Encoded, encode_conversation
from charter.models.dropout import set_dropout
from charter.models.language_model import LanguageModel
from charter.models.runtime import configure
from charter.spec.dataset import read_conversations
from charter.spec.stage import SftStage
from charter.train.models import starting_model
from charter.train.pretrain import language_loss
from charter.train.schedule import total_steps
from charter.train.supervised import BatchLoss, SupervisedRun, make_optimizer


def encoded_conversations(job: Job, model: LanguageModel, *, seq_len: int) -> list[Encoded]:
    """The stage's conversations as tokens; those without an answer to learn are refused."""
    rows = [
        encode_conversation(model.tokenizer, conversation.turns, max_tokens=seq_len)
        for item in job.inputs["data"]
        for conversation in read_conversations(item.location(), item.data)
    ]
    kept = [row for row in rows if any(row.is_answer)]
    if not kept:
        raise DataError("no conversation with an assistant turn in the stage's data; the loss would count nothing")
    return kept


def collate(rows: Sequence[Encoded], *, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, counted tokens and attention mask, padded at the right to the longest row."""
    width = max(len(row.ids) for row in rows)
    ids_BT = torch.full((len(rows), width), padding, dtype=torch.long)
    counted_BT = torch.zeros((len(rows), width), dtype=torch.bool)
    mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row.ids)] = torch.tensor(row.ids)
        counted_BT[index, : len(row.ids)] = torch.tensor(row.is_answer)
        mask_BT[index, : len(row.ids)] = 1
    return ids_BT, counted_BT, mask_BT


def run(stage: StageDir) -> None:
    """Train to the target step and publish the model."""
    job, spec = stage.job, stage.job.spec
    assert isinstance(spec, SftStage)
    device = configure(job.frozen)
    model = starting_model(job)
    model.model.to(device)
    set_dropout(model.model, spec.dropout)
    data = encoded_conversations(job, model, seq_len=spec.seq_len)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        ids_BT, counted_BT, mask_BT = collate([data[row] for row in rows], padding=model.padding_id)
        return language_loss(model, ids_BT, counted_BT, mask_BT, dtype=spec.dtype)

    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=len(data), global_batch=spec.global_batch)
    optimizer = make_optimizer([(list(model.model.parameters()), spec.learning_rate)], spec)
    SupervisedRun(stage, model.model, optimizer, spec, len(data), target, loss_of).train()
    stage.publish_outputs(lambda directory: model.save(directory / "model"), step=target, target_step=target)


if __name__ == "__main__":
    stage_main(run)
