"""The suite `goodhart`: whether quality rises with the reward over the kept checkpoints of PPO, or they part.

The reward is what the policy was trained on, so it rises; the held-out judge (without one, the independent check) was
not. Which checkpoints are kept is an execution field (`storage`), so this suite measures what is there.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from charter.artifacts.checkpoints import damage, listed
from charter.errors import DataError
from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, mean, resampled
from charter.evaluate.judging import Contest
from charter.evaluate.likelihood import RoleAnswers, divergences
from charter.evaluate.preferences import REWARD_UNIT
from charter.evaluate.statistics import Floats
from charter.models.language_model import LanguageModel, load_language_model

POLICY = "modules/policy/"
"""Before the names of the policy's parameters in a checkpoint."""


def policy_of_checkpoint(published: Path, checkpoint: Path) -> LanguageModel:
    """The model of directory `published` with the policy's weights of a checkpoint of the same stage."""
    if (wrong := damage(checkpoint)) is not None:
        raise DataError(f"{checkpoint} is damaged: {wrong}\n  remove it, or take it from a replica")
    reader = FileSystemReader(checkpoint)
    saved = {
        name.removeprefix(POLICY)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if name.startswith(POLICY) and isinstance(entry, TensorStorageMetadata)
    }
    model = load_language_model(published)
    here = dict(model.model.named_parameters())
    if lora := sorted(name for name in saved if ".lora_" in name):
        raise DataError(
            f"{checkpoint} holds an adapter ({lora[0]}), which is merged only when the stage ends; "
            "checkpoints of stages that train all weights can be read"
        )
    if saved != set(here):
        raise DataError(
            f"{checkpoint} does not hold the model of {published}: {', '.join(sorted(saved ^ set(here))[:3])}"
        )
    # One process without a process group is what is meant here, so torch need not warn of it.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with torch.no_grad():
        tensors = {f"{POLICY}{name}": parameter.detach() for name, parameter in here.items()}
        try:
            load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            causes = {type(failure[0]).__name__ for failure in error.failures.values()}
            raise DataError(f"{checkpoint}: its tensors cannot be read: {', '.join(sorted(causes))}") from error
    return model


@dataclass(frozen=True, kw_only=True)
class GoodhartPoint:
    """Measurements at one checkpoint, a value per prompt."""

    name: str
    kl: tuple[float, ...]
    reward: tuple[float, ...]
    quality: tuple[float, ...]


def curve_table(points: Sequence[GoodhartPoint]) -> Floats:
    """[prompts, 3 x points]: KL of every point, then reward, then quality."""
    columns = [getattr(point, name) for name in ("kl", "reward", "quality") for point in points]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], 1)


def reward_slope(means: Floats) -> Floats:
    """Reward per nat of KL, by least squares over the points."""
    kl, reward, _ = _split(means)
    return _slope(kl, reward)


def quality_slope(means: Floats) -> Floats:
    """Quality per nat of KL, by least squares over the points."""
    kl, _, quality = _split(means)
    return _slope(kl, quality)


def rank_correlation(means: Floats) -> Floats:
    """Spearman's correlation of reward and quality over the points; NaN where one of them never changes."""
    _, reward, quality = _split(means)
    return _correlation(_ranks(reward), _ranks(quality))


def parting_point(points: Sequence[GoodhartPoint]) -> tuple[str, str] | None:
    """The first two neighbours by KL between which the reward rises and the quality falls; None where none do."""
    at = sorted(points, key=lambda point: sum(point.kl) / len(point.kl))
    for before, after in pairwise(at):
        if sum(after.reward) > sum(before.reward) and sum(after.quality) < sum(before.quality):
            return before.name, after.name
    return None


def _split(means: Floats) -> tuple[Floats, Floats, Floats]:
    kl, reward, quality = np.split(means, 3, axis=-1)
    return kl, reward, quality


def _slope(x: Floats, y: Floats) -> Floats:
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    square = (x * x).sum(-1)
    slopes: Floats = np.where(square > 0, (x * y).sum(-1) / np.where(square > 0, square, 1), np.nan)
    return slopes


def _correlation(x: Floats, y: Floats) -> Floats:
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    correlations: Floats = np.where(scale > 0, (x * y).sum(-1) / np.where(scale > 0, scale, 1), np.nan)
    return correlations


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    less = (values[..., None, :] < values[..., :, None]).sum(-1)
    same = (values[..., None, :] == values[..., :, None]).sum(-1)
    ranks: Floats = less + (same - 1) / 2
    return ranks


KEY, START = "goodhart", "start"
MIN_CHECKPOINTS = 2
"""With the start three points: through two every line fits, and nothing can part."""


def goodhart(bench: Bench) -> list[Figure]:
    """Reward, quality and KL of every kept checkpoint, and how the first two go with the third."""
    points, ties = _points(bench)
    table = curve_table(points)
    note = f"{len(points)} points from the start to {points[-1].name}; quality is the share won {_by_whom(bench)}"
    note += (
        f"; {ties} answer{' counts' if ties == 1 else 's count'} as a tie for want of a valid verdict" if ties else ""
    )
    parting = parting_point(points)
    parting_note = f"; they part between {parting[0]} and {parting[1]}" if parting else "; they do not part"
    figures = [figure for point in points for figure in _figures(point)]
    for key, label, statistic, unit, remark in (
        ("reward_slope", "Reward gained per nat of KL", reward_slope, "per nat", note),
        ("quality_slope", "Quality gained per nat of KL", quality_slope, "per nat", note + parting_note),
        ("correlation", "Rank correlation of reward and quality", rank_correlation, "Spearman", note),
    ):
        seed = bench.seed(KEY, key)
        figures += resampled(f"{KEY}.{key}", label, statistic, table, seed=seed, unit=unit, note=remark)
    return figures


def _points(bench: Bench) -> tuple[list[GoodhartPoint], int]:
    """The start and every kept checkpoint; and how many verdicts are missing."""
    start, count, ties = bench.answers("against"), len(bench.prompts), 0
    points = [
        GoodhartPoint(name=START, kl=(0.0,) * count, reward=tuple(bench.rewards("against")), quality=(0.5,) * count)
    ]
    for name, model in _policies(bench):
        answers = bench.answers_of(model, name)
        quality, missing = _quality(bench, answers, start)
        ties += missing
        points.append(
            GoodhartPoint(
                name=name,
                kl=tuple(divergences(model, bench.model("against"), answers, bench.spec)),
                reward=tuple(bench.rewards_of(answers)),
                quality=tuple(quality),
            )
        )
    return points, ties


def _policies(bench: Bench) -> Iterator[tuple[str, LanguageModel]]:
    """The policy of every kept checkpoint between two steps, one after the other; the last is the finished one."""
    item = bench.job.only("checkpoints_of")
    published = item.location()
    checkpoints = [checkpoint for checkpoint in listed(published.parent.parent) if checkpoint.position.part == 0]
    if item.stage_kind != "ppo" or len(checkpoints) < MIN_CHECKPOINTS:
        raise DataError(
            f"stage {bench.job.stage}: checkpoints_of names {item.name}, a stage of kind {item.stage_kind} with "
            f"{len(checkpoints)} checkpoints; the suite goodhart needs a ppo stage with {MIN_CHECKPOINTS} or more: set "
            "storage.keep_every and run that stage again"
        )
    for checkpoint in checkpoints:
        model = policy_of_checkpoint(published, checkpoint.path)
        model.model.to(bench.device).eval()
        yield f"step {checkpoint.position}", model


def _quality(bench: Bench, answers: RoleAnswers, start: RoleAnswers) -> tuple[list[float], int]:
    """Wins over the start, prompt by prompt, by whoever the reward does not know."""
    if not bench.has("judge"):
        return bench.proxy.wins(answers.texts, start.texts), 0
    rows = zip(bench.prompts, answers.texts, start.texts, strict=True)
    contests = [Contest(id=prompt.id, turns=prompt.turns, first=mine, second=theirs) for prompt, mine, theirs in rows]
    judged = bench.judging.verdicts(contests)
    quality = [0.5] * len(contests)
    for item in judged:
        quality[item.place] = item.verdict.probability_first
    return quality, len(contests) - len(judged)


def _by_whom(bench: Bench) -> str:
    return "by the judge's probability" if bench.has("judge") else "by the independent check, lengths not equal"


def _figures(point: GoodhartPoint) -> Sequence[Figure]:
    """The curve: reward and quality at a point, each at its KL."""
    name, at = point.name.replace(" ", "_"), sum(point.kl) / len(point.kl)
    figures = [
        mean(f"{KEY}.{name}.reward", f"Reward at {point.name}", point.reward, unit=REWARD_UNIT, at=at),
        mean(f"{KEY}.{name}.kl", f"KL at {point.name}", point.kl, unit="nats/answer"),
    ]
    quality = mean(f"{KEY}.{name}.quality", f"Quality at {point.name}", point.quality, unit=SHARE, at=at)
    return [*figures, quality] if point.name != START else figures[:1]
