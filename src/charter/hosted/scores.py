"""Rewards of a stage that another engine computes: read as its rewards.py writes them, watched, and put into metrics.

No engine's log has what the alarm needs, the gold of every answer and the mean of every group. So `rewards.py` appends
the rewards of each answer to a file of its process, and Charter's process beside the engine puts groups and rollouts
together again: answers to one line of the prompts' file, in the order in which they were scored. A prompt has a line
for every time that it is drawn, so what an engine has dropped of a group stays apart from the next time.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.engines.common.capabilities import has_own_score
from charter.engines.common.reward_file import SCORES
from charter.errors import StageError
from charter.spec.ppo_stage import PpoStage
from charter.tracking.overoptimisation import (
    FEWEST,
    OveroptimisationWatch,
    RolloutMeans,
    forget_alarm,
    rollout_means,
)
from charter.train.rewards.mixture import reward_metrics

WATCHED = "watched_rollouts.json"
"""In the stage's directory: means of the rollouts so far; a resumed stage keeps those up to its checkpoint."""
Scores = Mapping[str, float | None]
"""Rewards of one answer; None where one does not apply. The first of the list that is missing has failed."""
Spent = Callable[[], Mapping[str, float]]
"""Seconds and usd of the judges so far, as `NAME/seconds` and `NAME/usd`."""


@dataclass
class ScoreFiles:
    """The files that the processes of an engine append to, and the groups that are not complete yet."""

    directory: Path
    samples: int
    _positions: dict[Path, int] = field(default_factory=dict)
    _open: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)

    def groups(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield the groups that are complete since the last call, as lines of the files, by when they were scored."""
        lines = [line for path in sorted(self.directory.glob("*.jsonl")) for line in self._new_lines(path)]
        for line in sorted(lines, key=lambda line: line["at"]):
            group = self._open.setdefault(line["place"], [])
            group.append(line)
            if len(group) == self.samples:
                yield self._open.pop(line["place"])

    def _new_lines(self, path: Path) -> list[Mapping[str, Any]]:
        """Return the whole lines that were appended; the rest of one that is being written comes with the next call."""
        with path.open("rb") as file:
            file.seek(self._positions.get(path, 0))
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._positions[path] = self._positions.get(path, 0) + len(complete)
        return [json.loads(line) for line in complete.splitlines()]


@dataclass
class RolloutScores:
    """The rollouts of a stage from the one after its checkpoint, and the watch over reward and gold."""

    spec: PpoStage
    directory: Path
    """Of the stage."""
    files: ScoreFiles
    names: tuple[str, ...]
    """Rewards that rewards.py gives."""
    first_step: int
    spent: Spent
    watch: OveroptimisationWatch = field(init=False)
    _watched: dict[int, RolloutMeans] = field(init=False)
    _groups: list[list[Scores]] = field(default_factory=list)
    _sums: dict[int, dict[str, float]] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _before: Mapping[str, float] = field(init=False)
    _rollouts: int = field(init=False)

    def __post_init__(self) -> None:
        path = self.directory / WATCHED
        stored = durable.read_json(path)["rollouts"] if path.exists() else {}
        before = {int(number): RolloutMeans(**means) for number, means in stored.items()}
        self._watched = {number: means for number, means in sorted(before.items()) if number <= self.first_step}
        self.watch = OveroptimisationWatch()
        for means in self._watched.values():
            self.watch.look(means)
        if self.watch.alarm is None:
            forget_alarm(self.directory)
        self._rollouts, self._before = self.first_step, self.spent()

    @property
    def gold(self) -> str | None:
        """Return the name of the gold; None where nothing is compared with it."""
        return None if has_own_score(self.spec) else self.spec.gold

    def reason_to_stop(self, step: int) -> str:
        """Return why the stage ends after a step where the file asks for a stop; empty where it goes on."""
        if self.spec.on_overoptimisation != "stop":
            return ""
        if self.watch.alarm is not None:
            return self.watch.alarm.stopped
        if self._rollouts == self.first_step <= step - FEWEST:
            return f"nothing watches the rewards: the engine is at step {step}, and its processes wrote no {SCORES}"
        return ""

    def check(self, step: int) -> None:
        """Raise the reason where there is one."""
        if reason := self.reason_to_stop(step):
            raise StageError(reason)

    def read(self) -> None:
        """Take in what was scored since the last call; a rollout that is complete is watched."""
        for lines in self.files.groups():
            self._groups.append([line["rewards"] for line in lines])
            for line in lines:
                for name, seconds in line["seconds"].items():
                    self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            if len(self._groups) * self.spec.samples_per_prompt >= self.spec.rollout_batch:
                self._end_rollout()

    def metrics(self, steps: range) -> dict[str, float]:
        """Figures of each reward over the rollouts of some steps; of rollouts before them nothing is needed again."""
        rollouts = [self._sums[step] for step in steps if step in self._sums]
        self._sums = {step: sums for step, sums in self._sums.items() if step >= steps.stop}
        if not rollouts:
            return {}
        sums = {name: sum(item[name] for item in rollouts) for name in rollouts[0]}
        for name in self.names:  # of a rollout, as Charter's own engine tells them
            for figure in ("seconds", "usd"):
                sums[f"{name}/{figure}"] /= len(rollouts)
        figures = reward_metrics(self.names, sums, answers=len(rollouts) * self.spec.rollout_batch)
        if self.gold is not None:
            figures["overoptimised"] = sums["overoptimised"] / len(rollouts)
        return {name: value for name, value in figures.items() if math.isfinite(value)}

    def _end_rollout(self) -> None:
        groups, self._groups = self._groups, []
        self._rollouts += 1
        spent = self.spent()
        sums = {f"{name}/seconds": self._seconds.get(name, 0.0) for name in self.names}
        sums |= {f"{name}/usd": 0.0 for name in self.names}
        sums |= {name: value - self._before[name] for name, value in spent.items()}
        self._seconds, self._before = {}, spent
        for place, name in enumerate(self.names):
            answers = [answer for group in groups for answer in group]
            values = [value for answer in answers if (value := answer.get(name)) is not None]
            sums[f"{name}/applied"] = len(values)
            sums[f"{name}/sum"] = sum(values)
            sums[f"{name}/square"] = sum(value**2 for value in values)
            sums[f"{name}/failed"] = sum(len(answer) == place for answer in answers)
        if self.gold is not None:
            self._look(groups, self.gold)
            sums["overoptimised"] = float(self.watch.alarm is not None)
        self._sums[self._rollouts] = sums

    def _look(self, groups: Sequence[Sequence[Scores]], gold: str) -> None:
        weights = {item.name: item.weight for item in self.spec.rewards if item.name in self.names}
        sound = [group for group in groups if all(len(answer) == len(self.names) for answer in group)]
        means = rollout_means(watched_sums(sound, weights, gold))
        if means is None:
            return
        alarm = self.watch.look(means)
        self._watched[self._rollouts] = means
        stored = {str(number): asdict(item) for number, item in self._watched.items()}
        durable.write_json(self.directory / WATCHED, {"rollouts": stored})
        if alarm is not None:
            alarm.write(self.directory, gold=gold)


def watched_sums(groups: Sequence[Sequence[Scores]], weights: Mapping[str, float], gold: str) -> dict[str, float]:
    """Sums of a rollout that the alarm compares, over the groups in which the gold applied to an answer.

    >>> sums = watched_sums([[{"a": 1.0, "g": 2.0}, {"a": 3.0, "g": None}], [{"a": 9.0, "g": None}]], {"a": 2.0}, "g")
    >>> sums["groups"], sums["answers"], sums["reward"], sums["gold"]
    (1.0, 1.0, 4.0, 2.0)
    """
    names = ("groups", "answers", "reward", "reward_square", "gold", "gold_square", "gold_answers")
    sums = dict.fromkeys((*names, "gold_answers_square"), 0.0)
    for group in groups:
        golds = [value for answer in group if (value := answer[gold]) is not None]
        if not golds:
            continue
        scores = [sum(weight * (answer[name] or 0.0) for name, weight in weights.items()) for answer in group]
        for name, value in (("reward", sum(scores) / len(scores)), ("gold", sum(golds) / len(golds))):
            sums[name] += value
            sums[f"{name}_square"] += value**2
        sums["groups"] += 1
        sums["answers"] += len(golds)
        sums["gold_answers"] += sum(golds)
        sums["gold_answers_square"] += sum(value**2 for value in golds)
    return sums
