"""Fine-tune a judge on human preference pairs, prompted with the constitution as it will be when it labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Pair, read_pairs
from charter.errors import DataError
from charter.feedback.constitution import Constitution, Principle, load_constitution
from charter.feedback.local_models import log_odds
from charter.feedback.wording import CHOICES, MULTIPLE_CHOICE, multiple_choice_text, one_answer_text
from charter.models.language_model import LanguageModel
from charter.spec.stage import JudgeStage
from charter.train.models import stage_model, trained_model
from charter.train.setup import set_up
from charter.train.supervised import BatchLoss, train_and_publish


def judge_loss(
    judge: LanguageModel,
    pairs: Sequence[tuple[Pair, Principle]],
    spec: JudgeStage,
    *,
    call: Callable[..., Any] | None = None,
) -> BatchLoss:
    """Bradley-Terry loss on the judge's log-odds, plus a share of the plain loss on the right choice's token.

    All formats ask two questions per pair; the right choice is known for each.
    """
    texts: list[str] = []
    right: list[int] = []
    for pair, principle in pairs:
        if spec.format == MULTIPLE_CHOICE:
            both = (pair.chosen, pair.rejected)
            texts += [multiple_choice_text(pair.prompt, *shown, principle.compare) for shown in (both, both[::-1])]
        else:
            answers = (pair.chosen, pair.rejected)
            texts += [one_answer_text(spec.format, pair.prompt, answer, principle.compare) for answer in answers]
        right += [0, 1]
    counted = _Counted(call or judge.model)
    choices = CHOICES[spec.format]
    odds_B, both_B2 = log_odds(judge, texts, choices, max_tokens=spec.seq_len, dtype=spec.dtype, call=counted)
    first, second = odds_B.view(-1, 2).unbind(1)
    margin = first - second
    choice = -both_B2.gather(1, torch.tensor(right, device=both_B2.device)[:, None]).view(-1, 2).mean(1)
    loss = (-functional.logsigmoid(margin) + spec.cross_entropy_weight * choice).sum()
    sums = {"accuracy": (margin > 0).sum()}
    counters = {"pairs": len(pairs), "tokens": counted.tokens}
    return BatchLoss(loss, float(len(pairs)), sums, counters, logits=counted.logits)


@dataclass
class _Counted:
    """Runs a language model, and counts what it reads and answers."""

    call: Callable[..., Any]
    tokens: int = 0
    logits: int = 0

    def __call__(self, **inputs: Any) -> Any:
        """Call the model."""
        self.tokens += int(inputs["attention_mask"].sum())
        self.logits += len(inputs["input_ids"]) * int(inputs["logits_to_keep"])
        return self.call(**inputs)


def run(stage: StageDir) -> None:
    """Train to the target step and publish the judge."""
    setup = set_up(stage)
    job, spec = setup.job, setup.job.spec_as(JudgeStage)
    if job.constitution is None:
        raise DataError("a judge needs `constitution:` in charter.yaml; `charter init` writes an example")
    constitution: Constitution = load_constitution(Path(job.constitution))
    judge = stage_model(setup)
    trained = trained_model(setup, judge, spec, dropout=spec.dropout)
    pairs = setup.rows("pairs", read_pairs)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        batch = [(pairs[row], constitution.draw(job.seed, job.stage, pairs[row].id, step)) for row in rows]
        return judge_loss(judge, batch, spec, call=trained.parallel.call)

    judge.tokenizer.model_max_length = spec.seq_len
    train_and_publish(setup, spec, trained, len(pairs), loss_of, sequences_per_row=2)


if __name__ == "__main__":
    stage_main(run)
