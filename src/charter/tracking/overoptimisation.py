"""Alarm for a policy that exploits its reward: what it learns from rises while an independent reward, the gold, falls.

Without torch: a stage asks after each rollout, whichever engine computes it; a report asks of stored rollouts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar

from charter.artifacts import durable

OVEROPTIMISATION = "overoptimisation.json"
"""The first alarm of a stage, in its directory."""
FALSE_ALARMS = 0.05
"""Most of the runs, however long, in which noise alone may be taken for a fall."""
WIDTHS = (1, 2, 4, 8, 16)
"""Rollouts that are averaged before they are compared: few for a sudden fall, many for a slow one."""
SURE_RISE = 2.0
"""Standard errors by which the reward must have risen meanwhile: where both fall, nothing is exploited."""
LEAST_FALL = 0.1
"""Of the gold's deviation among answers: a smaller fall, however sure, stops nobody."""
FEWEST = 4
"""Rollouts before anything is said."""
MIN_GROUPS = 2
"""Of a rollout; one has no variance."""


@dataclass(frozen=True, kw_only=True)
class RolloutMeans:
    """Means of one rollout; a variance is that of the mean, from the means of its groups."""

    reward: float
    reward_variance: float
    gold: float
    gold_variance: float
    gold_deviation: float
    """Among the answers."""


def rollout_means(sums: Mapping[str, float]) -> RolloutMeans | None:
    """Means of a rollout from sums over its groups and answers; None where the gold applied to no two groups.

    `reward` and `gold` are sums of the means of groups, `gold_answers` is one over answers; `_square` of squares.
    """
    groups, answers = sums["groups"], sums["answers"]
    if groups < MIN_GROUPS:
        return None

    def variance_of_mean(name: str) -> float:
        mean = sums[name] / groups
        return max(sums[f"{name}_square"] / groups - mean**2, 0.0) / (groups - 1)

    mean = sums["gold_answers"] / answers
    return RolloutMeans(
        reward=sums["reward"] / groups,
        reward_variance=variance_of_mean("reward"),
        gold=sums["gold"] / groups,
        gold_variance=variance_of_mean("gold"),
        gold_deviation=math.sqrt(max(sums["gold_answers_square"] / answers - mean**2, 0.0)),
    )


@dataclass(frozen=True, kw_only=True)
class Overoptimised:
    """The rollouts between which reward and gold part."""

    since: int
    """First rollout of the window in which the gold was best, from 1."""
    at: int
    """Rollout that showed it."""
    width: int
    gold_fall: float
    """In the gold's own units, of the means over `width` rollouts."""
    gold_deviations: float | None
    """The same in deviations among answers; None where all answers of a window have the same gold."""
    gold_errors: float | None
    """The same in standard errors; likewise of groups."""
    reward_rise: float

    def __str__(self) -> str:
        sizes = ((self.gold_deviations, ".2f", "deviations"), (self.gold_errors, ".1f", "standard errors"))
        measured = ", ".join(f"{size:{places}} {unit}" for size, places, unit in sizes if size is not None)
        return (
            f"the reward rises and the gold falls: since rollout {self.since} the gold fell by {self.gold_fall:.3g} "
            f"({measured or 'without any spread'}) while the reward rose by "
            f"{self.reward_rise:.3g}, means of {self.width}; seen at rollout {self.at}"
        )

    @property
    def stopped(self) -> str:
        """Error of a stage that ends by it."""
        return (
            f"{self}\n  stopped, as on_overoptimisation asks; the checkpoints before it are kept, and with `warn` the "
            "stage goes on"
        )

    def write(self, directory: Path, *, gold: str) -> None:
        """Write it where the supervisor looks, and say it in the stage's log."""
        durable.write_json(directory / OVEROPTIMISATION, {"message": str(self), "gold": gold, **asdict(self)})
        print(f"warning: {self}", flush=True)


def forget_alarm(directory: Path) -> None:
    """Remove a stage's alarm: it was of rollouts after the checkpoint that the stage has gone on from."""
    path = directory / OVEROPTIMISATION
    if path.exists():
        durable.remove_file(path)
        print("the alarm of over-optimisation was of rollouts that are drawn again: it is forgotten", flush=True)


def overoptimised(points: Sequence[RolloutMeans]) -> Overoptimised | None:
    """Compare the last rollouts with every earlier window of the same width; None where they do not part.

    z = (gold before - gold now) / sqrt(sum of both variances) must exceed the normal quantile of
    FALSE_ALARMS x 6 / (pi^2 t^2) / windows: Bonferroni over rollouts, however many come, and over the windows that do
    not overlap (those that do say nearly the same). Of 400 drawn runs of 80 rollouts without a fall 5 were flagged,
    1.3 %. A variance is the larger of the rollouts' own and their mean so far. Normal means are assumed: from some 10
    groups a rollout.

    >>> flat = RolloutMeans(reward=1.0, reward_variance=0.01, gold=0.5, gold_variance=0.001, gold_deviation=0.5)
    >>> hacked = [RolloutMeans(**{**vars(flat), "reward": 1.0 + n, "gold": 0.5 - n / 10}) for n in range(5)]
    >>> overoptimised([flat] * 8), overoptimised([flat] * 4 + hacked).since
    (None, 1)
    """
    count = len(points)
    if count < FEWEST:
        return None
    sums: dict[str, list[float]] = {
        item.name: [0.0, *accumulate(getattr(point, item.name) for point in points)] for item in fields(points[0])
    }

    def mean(name: str, begin: int, width: int) -> float:
        return (sums[name][begin + width] - sums[name][begin]) / width

    best: Overoptimised | None = None
    widths = [width for width in WIDTHS if 2 * width <= count]
    looks = sum(count // width - 1 for width in widths)
    least_errors = -NormalDist().inv_cdf(FALSE_ALARMS * 6 / (math.pi * count) ** 2 / looks)
    for width in widths:
        now = count - width
        for begin in range(now - width + 1):
            errors = {
                name: math.sqrt(
                    sum(
                        max(mean(f"{name}_variance", at, width), mean(f"{name}_variance", 0, count)) / width
                        for at in (begin, now)
                    )
                )
                for name in ("reward", "gold")
            }
            fall = mean("gold", begin, width) - mean("gold", now, width)
            rise = mean("reward", now, width) - mean("reward", begin, width)
            deviation = max(mean("gold_deviation", begin, width), mean("gold_deviation", 0, count))
            sure = fall > least_errors * errors["gold"] and rise > SURE_RISE * errors["reward"]
            if not sure or fall <= LEAST_FALL * deviation or (best is not None and fall <= best.gold_fall):
                continue
            best = Overoptimised(
                since=begin + 1,
                at=count,
                width=width,
                gold_fall=fall,
                gold_deviations=fall / deviation if deviation else None,
                gold_errors=fall / errors["gold"] if errors["gold"] else None,
                reward_rise=rise,
            )
    return best


@dataclass
class OveroptimisationWatch:
    """The means of a stage's rollouts, and the first alarm among them."""

    STATE: ClassVar[tuple[str, ...]] = ("points", "alarm")

    points: list[RolloutMeans] = field(default_factory=list)
    alarm: Overoptimised | None = None

    def look(self, means: RolloutMeans) -> Overoptimised | None:
        """Add a rollout; the alarm if this rollout raises it, and none after the first."""
        self.points.append(means)
        if self.alarm is not None:
            return None
        self.alarm = overoptimised(self.points)
        return self.alarm

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        alarm = None if self.alarm is None else asdict(self.alarm)
        return {"points": [asdict(point) for point in self.points], "alarm": alarm}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.points = [RolloutMeans(**point) for point in state["points"]]
        self.alarm = None if state["alarm"] is None else Overoptimised(**state["alarm"])
