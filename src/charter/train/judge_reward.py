"""Direct RLAIF: the reward of an answer is what a judge would rate it, without a preference model in between."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from charter.data.dataset import Turn
from charter.errors import DataError, StageError
from charter.feedback.answering import open_answerer
from charter.feedback.asking import Invalid
from charter.feedback.rating import Rated, Rating, rating
from charter.feedback.records import Answerer, answered
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
    def open(setup: Setup, stack: ExitStack, role: str) -> "JudgeReward":
        """The judge that the stage names in a role; `stack` gives it back."""
        if setup.ranks.world_size > 1:
            raise DataError(
                f"a judge as the reward runs in one process, and this stage has {setup.ranks.world_size}\n"
                "  give it one accelerator, or train a preference model on the judge's labels and use that"
            )
        answerer = stack.enter_context(open_answerer(setup.stage, [role]))
        return JudgeReward(setup, answerer, role, setup.job.only(role).name not in setup.job.serving)

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
