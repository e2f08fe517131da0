"""Run by the engine's own Python in a directory with kto.yaml: KTOTrainer's loss of the first batch, and its parts.

Prints one JSON object: `loss` and its reference `point`; `label` of each row; `nats`, log p - log p_ref of each row's
answer; `others`, the same of its prompt with the answer of the row before, by a plain forward pass of both models.
"""

import json

import torch
from datasets import load_dataset
from trl import KTOTrainer
from trl.scripts.kto import make_parser

NOISE = 0.05
"""Of the reference, so that it is no longer the policy: of this one answers to other prompts are more probable."""


def nats(trainer, rows):
    """log p - log p_ref of the answers of (prompt, answer), one after the other."""
    sums = []
    for prompt, answer in rows:
        ids = torch.tensor([prompt + answer])
        each = []
        for model in (trainer.model, trainer.ref_model):
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            each.append(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum().item())
        sums.append(each[0] - each[1])
    return sums


def main():
    _, settings, model, data = make_parser().parse_args_and_config(args=["--config", "kto.yaml"])
    rows = load_dataset("json", data_files=data.datasets[0].data_files, split="train")
    trainer = KTOTrainer(model=model.model_name_or_path, args=settings, train_dataset=rows)
    torch.manual_seed(0)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.add_(NOISE * torch.randn_like(weight))
        loss = trainer.compute_loss(trainer.model, dict(batch)).item()
        columns = (batch[name].tolist() for name in ("input_ids", "attention_mask", "completion_mask"))
        parts = []
        for ids, there, answers in zip(*columns, strict=True):
            kept = [(token, answer) for token, seen, answer in zip(ids, there, answers, strict=True) if seen]
            parts.append(([t for t, answer in kept if not answer], [t for t, answer in kept if answer]))
        others = [(prompt, before) for (prompt, _), (_, before) in zip(parts, [parts[-1], *parts[:-1]], strict=True)]
        found = {"nats": nats(trainer, parts), "others": nats(trainer, others)}
    point = trainer._metrics["train"]["kl"][-1]
    print(json.dumps({"loss": loss, "point": point, "label": batch["label"].tolist(), **found}))


if __name__ == "__main__":
    main()
