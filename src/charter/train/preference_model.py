"""Bradley-Terry preference model on hard or soft labels."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from charter.artifacts.draws import keyed_permutation
from charter.artifacts.group import PUBLISH
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Pair, read_pairs
from charter.errors import DataError
from charter.inference.score import score_rows
from charter.models.adapters import add_adapter, published_weights
from charter.models.context_split import RowParts
from charter.models.length_groups import token_batches
from charter.models.parallel import parallelize
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.runtime import on_device, seeded
from charter.physics.inference_memory import ROWS_OF_A_PASS, SCORING_ROWS, SCORING_TOKENS
from charter.spec.stage import PreferenceModelStage
from charter.train.encoded_pairs import EncodedPair, EncodedPairs
from charter.train.loop import publish_model
from charter.train.losses import preference_loss, ranked_right
from charter.train.models import stage_model
from charter.train.optimizers import make_optimizer
from charter.train.packing import own_parts
from charter.train.schedule import total_steps
from charter.train.setup import Setup, set_up
from charter.train.supervised import BatchLoss, SupervisedTask
from charter.train.work import count_supervised


def shuffled(pairs: Sequence[Pair], *, seed: int) -> list[Pair]:
    """The pairs with their labels permuted among them: same texts, same label values, no signal.

    The two answers are put in alphabetical order first, so that a label says "the first with probability p, by a
    margin m"; a margin of the second answer over the first is a negative one.
    """
    labels = [
        (pair.chosen_probability, pair.margin)
        if pair.chosen <= pair.rejected
        else (1 - pair.chosen_probability, -pair.margin)
        for pair in pairs
    ]
    order = keyed_permutation(len(pairs), seed=seed)
    return [
        dataclasses.replace(
            pair,
            chosen=min(pair.chosen, pair.rejected),
            rejected=max(pair.chosen, pair.rejected),
            chosen_probability=labels[source][0],
            margin=labels[source][1],
        )
        for pair, source in zip(pairs, order, strict=True)
    ]


def pair_loss(
    model: PreferenceModel,
    pairs: Sequence[EncodedPair],
    spec: PreferenceModelStage,
    *,
    call: Callable[..., Tensor] | None = None,
    groups: int | None = None,
    row_parts: RowParts | None = None,
) -> BatchLoss:
    """Summed Bradley-Terry loss of some pairs, how many the model ranks as the label does, and what it scores them.

    Processes that share rows have one loss, of which each has the gradient by its own positions; one counts it.
    """
    rows = [ids for pair in pairs for ids in pair.ids]
    lengths = [count for pair in pairs for count in pair.answer_tokens]
    scores = score_rows(model, rows, lengths, dtype=spec.dtype, call=call, groups=groups, row_parts=row_parts)
    chosen, rejected = scores.view(-1, 2).unbind(1)
    labels = torch.tensor([(pair.chosen_probability, pair.margin) for pair in pairs])
    label, margin = on_device(labels, chosen.device).T
    loss = preference_loss(
        chosen,
        rejected,
        label,
        margin_B=margin if spec.use_margin else None,
        label_smoothing=spec.label_smoothing,
        center_weight=spec.center_weight,
    )
    with torch.no_grad():
        right = ranked_right(chosen - rejected, label).sum()
        sums = {"accuracy": right, "score_margin": (chosen - rejected).sum(), "score": scores.sum() / 2}
        extremes = {"score_min": scores.min(), "score_max": scores.max()}
    counters = {"pairs": len(pairs), "tokens": sum(len(row) for row in rows)}
    result = BatchLoss(loss.sum(), float(len(pairs)), sums, counters, extremes=extremes)
    return result if row_parts is None or row_parts.counts_rows else result.counted_elsewhere()


@torch.no_grad()
def score_statistics(
    model: PreferenceModel,
    pairs: Sequence[EncodedPair],
    *,
    dtype: str,
    groups: int | None = None,
    budget_tokens: int = SCORING_TOKENS,
    row_parts: RowParts | None = None,
    tell: Callable[[], None] = lambda: None,
) -> tuple[float, float]:
    """Mean and deviation of the raw scores over all answers of the training pairs; `tell` is called at every batch.

    A pass has at most `budget_tokens`, or is one of `groups`.
    """
    model.scalar.eval()
    parts = []
    for start in range(0, len(pairs), SCORING_ROWS // 2):
        part = pairs[start : start + SCORING_ROWS // 2]
        rows = [ids for pair in part for ids in pair.ids]
        lengths = [count for pair in part for count in pair.answer_tokens]
        counts = [len(row) for row in rows]
        batches = token_batches(counts, budget_tokens=budget_tokens) if groups is None else [slice(0, len(rows))]
        parts += [
            score_rows(model, rows[one], lengths[one], dtype=dtype, groups=groups, row_parts=row_parts)
            for one in batches
        ]
        tell()
    scores = torch.cat(parts).double()
    return scores.mean().item(), max(scores.std(unbiased=False).item(), 1e-6)


def run(stage: StageDir) -> None:
    """Train to the target step, measure the scale of the scores, and publish the model."""
    setup = set_up(stage)
    spec = setup.job.spec_as(PreferenceModelStage)
    language_model = stage_model(setup)
    with seeded(setup.seed("head")):
        scalar = ScalarModel(language_model, dropout=spec.dropout)
    if spec.adapter is not None:
        add_adapter(scalar, spec.adapter, seed=setup.seed("adapter"))
    settings: dict[str, str | int | float] = {"pooling": spec.pooling, "context": spec.context, "seq_len": spec.seq_len}
    model = PreferenceModel(scalar, language_model, settings)
    pairs = EncodedPairs(model, stage_pairs(setup, spec))
    parallel = parallelize(scalar, setup.layout, setup.ranks, dtype=spec.dtype, weights=language_model.source)

    row_parts = own_parts(setup.ranks, language_model.model.config, setup.layout.attention, spec.seq_len)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        groups, some = passes(setup, 2 * len(rows)), [pairs[row] for row in rows]
        return pair_loss(model, some, spec, call=parallel.call, groups=groups, row_parts=row_parts)

    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=len(pairs), global_batch=spec.global_batch)
    head_rate = spec.learning_rate * spec.head_learning_rate_ratio
    groups = [(list(scalar.body.parameters()), spec.learning_rate), (list(scalar.head.parameters()), head_rate)]
    optimizer = make_optimizer(groups, spec, on_host=setup.moments_on_host)
    count_supervised(
        setup,
        language_model.model.config,
        sequences=2 * spec.global_batch,
        scalar_head=True,
        has_adapter=spec.adapter is not None,
    )
    SupervisedTask(setup, parallel, optimizer, spec, len(pairs), target, loss_of).train()
    setup.stage.beat(PUBLISH)
    # No pass is larger than those of training: weights, moments and gradients leave no more room at the end.
    trained_rows = 2 * setup.layout.micro_batch or SCORING_ROWS
    with parallel.gathered():
        mean, deviation = score_statistics(
            model,
            pairs,
            dtype=spec.dtype,
            groups=passes(setup, SCORING_ROWS, of_a_pass=min(ROWS_OF_A_PASS, trained_rows)),
            budget_tokens=min(SCORING_TOKENS, trained_rows * spec.seq_len),
            row_parts=row_parts,
            tell=setup.stage.alive,
        )
    settings |= {"score_mean": mean, "score_deviation": deviation}

    def save(path: Path, weights: Mapping[str, Tensor]) -> None:
        model.save(path, published_weights(scalar, weights, spec.adapter))

    publish_model(setup, parallel, save, target_step=target)


def stage_pairs(setup: Setup, spec: PreferenceModelStage) -> list[Pair]:
    """The pairs of the stage's data, shuffled labels and all."""
    pairs = setup.rows("data", read_pairs)
    if spec.use_margin and not any(pair.margin for pair in pairs):
        raise DataError(
            "use_margin: no row of the stage's data has a `margin` above 0; add the column, or leave it out"
        )
    return shuffled(pairs, seed=setup.seed("shuffle")) if spec.shuffle_labels else pairs


def passes(setup: Setup, rows: int, *, of_a_pass: int = ROWS_OF_A_PASS) -> int | None:
    """In how many passes rows of like length go through the model: the same everywhere where processes must agree."""
    return None if setup.ranks.world_size == 1 else max(1, rows // of_a_pass)


if __name__ == "__main__":
    stage_main(run)
