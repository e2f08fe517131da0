"""Train a language model on plain text; the texts are packed end to end, so no token is padding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import DataError
from charter.models.dropout import set_dropout
from charter.models.language_model import LanguageModel
from charter.models.runtime import configure, precision
from charter.spec.dataset import read_texts
from charter.spec.stage import PretrainStage
from charter.train.losses import summed_cross_entropy
from charter.train.models import starting_model
from charter.train.schedule import total_steps
from charter.train.supervised import BatchLoss, SupervisedRun, make_optimizer


def packed_rows(job: Job, tokenizer: Any, *, seq_len: int) -> Tensor:
    """All texts of the stage's data as rows of `seq_len` tokens; the last, incomplete row is left out."""
    stream: list[int] = []
    for item in job.inputs["data"]:
        for conversation in read_texts(item.location(), item.data):
            messages = [{"role": turn.role, "content": turn.content} for turn in conversation.turns]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            stream += tokenizer(text, add_special_tokens=False)["input_ids"]
            if stream[-1] != tokenizer.eos_token_id:
                stream.append(tokenizer.eos_token_id)
    rows = len(stream) // seq_len
    if rows == 0:
        raise DataError(f"the data has {len(stream)} tokens, fewer than one row of seq_len {seq_len}; lower seq_len")
    return torch.tensor(stream[: rows * seq_len]).view(rows, seq_len)


def language_loss(
    model: LanguageModel, ids_BT: Tensor, counted_BT: Tensor, mask_BT: Tensor, *, dtype: str
) -> BatchLoss:
    """Summed cross-entropy of the counted tokens of one micro-batch."""
    device = next(model.model.parameters()).device
    ids_BT, counted_BT, mask_BT = ids_BT.to(device), counted_BT.to(device), mask_BT.to(device)
    with precision(dtype, device):
        logits_BTV = model.model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
    loss = summed_cross_entropy(logits_BTV, ids_BT, counted_BT)
    return BatchLoss(loss, float(counted_BT[:, 1:].sum()), {}, {"tokens": int(mask_BT.sum())})


def run(stage: StageDir) -> None:
    """Train to the target step and publish the model."""
    job, spec = stage.job, stage.job.spec
    assert isinstance(spec, PretrainStage)
    device = configure(job.frozen)
    model = starting_model(job)
    model.model.to(device)
    set_dropout(model.model, spec.dropout)
    rows_NT = packed_rows(job, model.tokenizer, seq_len=spec.seq_len)
    everything_T = torch.ones(spec.seq_len, dtype=torch.bool)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        ids_BT = rows_NT[list(rows)]
        counted_BT = everything_T.expand_as(ids_BT)
        return language_loss(model, ids_BT, counted_BT, counted_BT.long(), dtype=spec.dtype)

    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=len(rows_NT), global_batch=spec.global_batch)
    optimizer = make_optimizer([(list(model.model.parameters()), spec.learning_rate)], spec)
    SupervisedRun(stage, model.model, optimizer, spec, len(rows_NT), target, loss_of).train()
    stage.publish_outputs(lambda directory: model.save(directory / "model"), step=target, target_step=target)


if __name__ == "__main__":
    stage_main(run)
