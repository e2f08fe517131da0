"""Direct RLAIF: the reward of an answer is what a judge would rate it, without a preference model in between.

Rated by the three aims, or by a rubric's criteria: the constitution's, a file's, those of the prompt's row.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Turn
from charter.errors import DataError, StageError
from charter.feedback.answering import open_answerer
from charter.feedback.asking import Invalid
from charter.feedback.comparing import (
    ROW_COLUMN,
    AnswerGroup,
    Rated,
    Rating,
    chosen_criteria,
    criteria_of,
    drawn_criteria,
    load_rubric,
    rating,
    rubric_rating,
)
from charter.feedback.constitution import Principle
from charter.feedback.inputs import role_constitution
from charter.feedback.records import Answerer, answered
from charter.inference.limited import Failed
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import CONSTITUTION, OF_THE_ROW, RUBRICS, Reward, Rubric
from charter.train.rewards.mixture import Answer, Score
from charter.train.setup import Setup


@dataclass(frozen=True)
class JudgeReward:
    """A judge, with its weights here or behind an endpoint, that rates the answers of a rollout."""

    setup: Setup
    answerer: Answerer
    role: str
    """Of the judge among the stage's inputs."""
    is_exact: bool
    """Whether the same answers are rated with the same bits again; stored answers of an endpoint are not relied on."""

    @staticmethod
    def open(setup: Setup, spec: PpoStage, stack: ExitStack) -> "dict[str, JudgeReward]":
        """The judges that the stage names, by their models; `stack` gives them back."""
        if not spec.judges:
            return {}
        served = setup.job.serving
        here = [name for name in spec.judges if name not in served]
        if here and setup.ranks.world_size > 1:
            raise DataError(
                f"the judge {here[0]!r} is loaded in one process, and this stage has {setup.ranks.world_size}\n"
                "  serve it, give the stage one accelerator, or train a preference model on the judge's labels"
            )
        answerer = stack.enter_context(open_answerer(setup.stage, [spec.judge_role]))
        return {
            name: JudgeReward(setup, answerer, spec.role_of(name), is_exact=name not in served) for name in spec.judges
        }

    def score(self, step: int, conversations: Sequence[tuple[Sequence[Turn], str]]) -> Tensor:
        """Rewards from -1 to 1; a rollout with an answer that has no rating cannot be learnt from."""
        ratings = self.ratings(step, conversations)
        reasons = Counter(item.reason for item in ratings if isinstance(item, Invalid))
        if reasons:
            why = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
            raise StageError(
                f"the judge gave no rating for {reasons.total()} of {len(ratings)} answers of rollout {step} ({why})\n"
                "  a judge that gives log-probabilities of its tokens is needed; rollouts before this one are kept"
            )
        return torch.tensor([item.reward for item in ratings if not isinstance(item, Invalid)])

    def ratings(self, name: object, conversations: Sequence[tuple[Sequence[Turn], str]]) -> Sequence[Rating | Invalid]:
        """The rating of each answer, or why it has none; draws hang on `name` and the answer's number."""
        items = [
            Rated(id=f"{name}/{number}", turns=tuple(turns), answer=answer)
            for number, (turns, answer) in enumerate(conversations)
        ]
        job = self.setup.job
        return answered(rating(items, seed=job.seed, stage=job.stage, role=self.role), self.answerer)

    def settled_micro_usd(self) -> int:
        """Known cost of the calls of this stage so far; 0 where all judges are in this process."""
        return self.answerer.settled_micro_usd()

    def marks(self, groups: Sequence[AnswerGroup], rubric: Rubric) -> Sequence[float | Invalid]:
        """The mark of each answer by a rubric, or why it has none."""
        job = self.setup.job
        return answered(rubric_rating(groups, rubric, seed=job.seed, stage=job.stage, role=self.role), self.answerer)


def judge_score(reward: Reward, judge: JudgeReward, *, samples: int) -> Score:
    """Scores of a judge of the list, group by group; an answer without a mark has failed."""
    job, rubric = judge.setup.job, reward.rubric

    def rated(answers: Sequence[Answer]) -> list[float | Failed | None]:
        conversations = [(answer.conversation, answer.text) for answer in answers]
        ratings = judge.ratings(answers[0].seed if answers else 0, conversations)
        return [Failed(item.reason) if isinstance(item, Invalid) else item.reward for item in ratings]

    if rubric is None:
        return rated
    criteria = () if rubric.criteria == OF_THE_ROW else chosen_criteria(_criteria(judge.setup, rubric), rubric)

    def marked(answers: Sequence[Answer]) -> list[float | Failed | None]:
        groups = [
            _group(answers[place : place + samples], reward.name, criteria, rubric, seed=job.seed)
            for place in range(0, len(answers), samples)
        ]
        marks = iter(judge.marks([group for group in groups if group.criteria], rubric))
        scores: list[float | Failed | None] = []
        for group in groups:
            drawn = [next(marks) if group.criteria else None for _ in group.answers]
            scores += [Failed(mark.reason) if isinstance(mark, Invalid) else mark for mark in drawn]
        return scores

    return marked


def _criteria(setup: Setup, rubric: Rubric) -> Sequence[Principle]:
    if rubric.criteria == CONSTITUTION:
        return role_constitution(setup.job).principles
    files = {item.name: item for item in setup.job.inputs.get(RUBRICS, ())}
    return load_rubric(files[f"{RUBRICS} {rubric.criteria}"].location())


def _group(
    answers: Sequence[Answer], name: str, criteria: Sequence[Principle], rubric: Rubric, *, seed: int
) -> AnswerGroup:
    """Answers to one prompt with their criteria; a row without criteria of its own has none."""
    first = answers[0]
    if rubric.criteria == OF_THE_ROW:
        own = first.row.get(ROW_COLUMN) or ()
        own = own if isinstance(own, list | tuple) else [own]
        criteria = chosen_criteria(criteria_of(own, origin=f"column {ROW_COLUMN}"), rubric) if own else ()
    drawn = drawn_criteria(criteria, rubric, draw_seed(seed, "rubric", name, first.seed))
    return AnswerGroup(
        id=f"{name}/{first.seed}",
        turns=first.turns,
        answers=tuple(answer.text for answer in answers),
        criteria=drawn,
    )
