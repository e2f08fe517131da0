"""The suite `goodhart`: whether quality rises with the reward over the kept checkpoints of PPO, or they part.

The reward is what the policy was trained on, so it rises; the held-out judge (without one, the independent check) was
not. Which checkpoints are kept is an execution field (`storage`), so this suite measures what is there.
"""

from collections.abc import Iterator, Sequence

from charter.artifacts.checkpoint_list import listed
from charter.errors import DataError
from charter.evaluate import goodhart_curve
from charter.evaluate.answers import REWARD_UNIT
from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, mean, resampled
from charter.evaluate.goodhart_curve import Point
from charter.evaluate.judging import Contest
from charter.evaluate.sampled import RoleAnswers, divergences
from charter.models.checkpoint_weights import policy_of_checkpoint
from charter.models.language_model import LanguageModel

KEY, START = "goodhart", "start"
MIN_CHECKPOINTS = 2
"""With the start three points: through two every line fits, and nothing can part."""


def goodhart(bench: Bench) -> list[Figure]:
    """Reward, quality and KL of every kept checkpoint, and how the first two go with the third."""
    points, ties = _points(bench)
    table = goodhart_curve.table(points)
    note = f"{len(points)} points from the start to {points[-1].name}; quality is the share won {_by_whom(bench)}"
    note += f"; {ties} answers without a valid verdict count as ties" if ties else ""
    parting = goodhart_curve.parting(points)
    told = f"; they part between {parting[0]} and {parting[1]}" if parting else "; they do not part"
    found = [figure for point in points for figure in _figures(point)]
    for key, label, statistic, unit, remark in (
        ("reward_slope", "Reward gained per nat of KL", goodhart_curve.reward_slope, "per nat", note),
        ("quality_slope", "Quality gained per nat of KL", goodhart_curve.quality_slope, "per nat", note + told),
        ("correlation", "Rank correlation of reward and quality", goodhart_curve.rank_correlation, "Spearman", note),
    ):
        seed = bench.seed(KEY, key)
        found += resampled(f"{KEY}.{key}", label, statistic, table, seed=seed, unit=unit, note=remark)
    return found


def _points(bench: Bench) -> tuple[list[Point], int]:
    """The start and every kept checkpoint; and how many verdicts are missing."""
    start, count, ties = bench.answers("against"), len(bench.prompts), 0
    points = [Point(name=START, kl=(0.0,) * count, reward=tuple(bench.rewards("against")), quality=(0.5,) * count)]
    for name, model in _policies(bench):
        answers = bench.answers_of(model, name)
        quality, missing = _quality(bench, answers, start)
        ties += missing
        points.append(
            Point(
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
    kept = [found for found in listed(published.parent.parent) if found.position.part == 0]
    if item.stage_kind != "ppo" or len(kept) < MIN_CHECKPOINTS:
        raise DataError(
            f"stage {bench.job.stage}: checkpoints_of names {item.name}, a stage of kind {item.stage_kind} with "
            f"{len(kept)} checkpoints; the suite goodhart needs a ppo stage with {MIN_CHECKPOINTS} or more: set "
            "storage.keep_every and run that stage again"
        )
    for found in kept:
        model = policy_of_checkpoint(published, found.path)
        model.model.to(bench.device).eval()
        yield f"step {found.position}", model


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


def _figures(point: Point) -> Sequence[Figure]:
    """The curve: reward and quality at a point, each at its KL."""
    name, at = point.name.replace(" ", "_"), sum(point.kl) / len(point.kl)
    found = [
        mean(f"{KEY}.{name}.reward", f"Reward at {point.name}", point.reward, unit=REWARD_UNIT, at=at),
        mean(f"{KEY}.{name}.kl", f"KL at {point.name}", point.kl, unit="nats/answer"),
    ]
    quality = mean(f"{KEY}.{name}.quality", f"Quality at {point.name}", point.quality, unit=SHARE, at=at)
    return [*found, quality] if point.name != START else found[:1]
