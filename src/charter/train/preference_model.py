"""Bradley-Terry preference model on hard or soft labels."""

import dataclasses
from collections.abc import Sequence

import torch

from charter.artifacts.draws import draw_seed, keyed_permutation
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.inference.score import encode_scored, score_rows
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.runtime import configure, seeded
from charter.spec.dataset import Pair, read_pairs
from charter.spec.stage import PreferenceModelStage
from charter.train.losses import bradley_terry
from charter.train.models import starting_model
from charter.train.schedule import total_steps
from charter.train.supervised import BatchLoss, SupervisedRun, make_optimizer

SCORING_BATCH = 64


def shuffled(pairs: Sequence[Pair], *, seed: int) -> list[Pair]:
    """The pairs with their labels permuted among them: same texts, same label values, no signal.

    The two answers are put in alphabetical order first, so that a label says "the first with probability p".
    """
    labels = [
        pair.chosen_probability if pair.chosen <= pair.rejected else 1 - pair.chosen_probability for pair in pairs
    ]
    order = keyed_permutation(len(pairs), seed=seed)
    return [
        dataclasses.replace(
            pair,
            chosen=min(pair.chosen, pair.rejected),
            rejected=max(pair.chosen, pair.rejected),
            chosen_probability=labels[source],
        )
        for pair, source in zip(pairs, order, strict=True)
    ]


def pair_loss(model: PreferenceModel, pairs: Sequence[Pair], *, dtype: str) -> BatchLoss:
    """Summed Bradley-Terry loss of some pairs, and how many the model ranks as the label does."""
    limit = int(model.settings["seq_len"])
    encoded = [
        encode_scored(model, p.prompt, answer, max_tokens=limit) for p in pairs for answer in (p.chosen, p.rejected)
    ]
    scores = score_rows(model, [row for row, _ in encoded], [length for _, length in encoded], dtype=dtype)
    chosen, rejected = scores.view(-1, 2).unbind(1)
    margin = chosen - rejected
    label = torch.tensor([pair.chosen_probability for pair in pairs], device=margin.device)
    right = ((margin > 0) == (label >= 0.5)).sum()
    return BatchLoss(
        bradley_terry(margin, label).sum(), float(len(pairs)), {"accuracy": float(right)}, {"pairs": len(pairs)}
    )


@torch.no_grad()
def score_statistics(model: PreferenceModel, pairs: Sequence[Pair], *, dtype: str) -> tuple[float, float]:
    """Mean and deviation of the raw scores over all answers of the training pairs."""
    model.scalar.eval()
    limit = int(model.settings["seq_len"])
    encoded = [
        encode_scored(model, p.prompt, answer, max_tokens=limit) for p in pairs for answer in (p.chosen, p.rejected)
    ]
    scores = torch.cat(
        [
            score_rows(model, [row for row, _ in part], [length for _, length in part], dtype=dtype)
            for start in range(0, len(encoded), SCORING_BATCH)
            for part in [encoded[start : start + SCORING_BATCH]]
        ]
    ).double()
    return scores.mean().item(), max(scores.std(unbiased=False).item(), 1e-6)


def run(stage: StageDir) -> None:
    """Train to the target step, measure the scale of the scores, and publish the model."""
    job, spec = stage.job, stage.job.spec
    assert isinstance(spec, PreferenceModelStage)
    device = configure(job.frozen)
    language_model = starting_model(job)
    with seeded(draw_seed(job.seed, job.stage, "head")):
        scalar = ScalarModel(language_model, dropout=spec.dropout).to(device)
    settings: dict[str, str | int | float] = {"pooling": spec.pooling, "context": spec.context, "seq_len": spec.seq_len}
    model = PreferenceModel(scalar, language_model, settings)
    pairs = [pair for item in job.inputs["data"] for pair in read_pairs(item.location(), item.data)]
    if spec.shuffle_labels:
        pairs = shuffled(pairs, seed=draw_seed(job.seed, job.stage, "shuffle"))

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        return pair_loss(model, [pairs[row] for row in rows], dtype=spec.dtype)

    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=len(pairs), global_batch=spec.global_batch)
    head_rate = spec.learning_rate * spec.head_learning_rate_ratio
    groups = [
        (list(scalar.body.parameters()), spec.learning_rate),
        (list(scalar.head.parameters()), head_rate),
    ]
    optimizer = make_optimizer(groups, spec)
    SupervisedRun(stage, scalar, optimizer, spec, len(pairs), target, loss_of).train()
    mean, deviation = score_statistics(model, pairs, dtype=spec.dtype)
    settings |= {"score_mean": mean, "score_deviation": deviation}
    stage.publish_outputs(lambda directory: model.save(directory / "model"), step=target, target_step=target)


if __name__ == "__main__":
    stage_main(run)
