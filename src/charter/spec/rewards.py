"""Rewards of reinforcement learning and options of its loss, as a stage of `kind: ppo` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from charter.spec.quantity import Bytes, Count, Names, Seconds, execution

LossAggregation = Literal["token", "sequence", "constant", "prompt"]
KlEstimator = Literal["k1", "k2", "k3"]
AdvantageScale = Literal["group", "batch", "mean", "none"]
RatioLevel = Literal["token", "sequence", "product"]
Surrogate = Literal["clip", "cispo"]
MismatchMethod = Literal["tis", "icepop", "sequence_mask"]
Estimator = Literal["gae", "rloo", "grpo", "reinforce", "reinforce_pp", "reinforce_pp_baseline"]
GROUPED = frozenset({"rloo", "grpo", "reinforce_pp_baseline"})
"""Estimators that compare the answers to one prompt."""
KL_IN_LOSS = frozenset({"grpo", "reinforce_pp_baseline"})
"""Estimators whose KL penalty is a term of the loss unless `kl_in` says otherwise; the others have it in the reward."""

REWARD_SOURCES = "reward_sources"
"""Role of the files of the user's reward functions among a stage's inputs."""
RUBRICS = "rubrics"
"""Role of the files with a judge's criteria among a stage's inputs."""
CONSTITUTION, OF_THE_ROW = "constitution", "row"
"""Criteria of a rubric that stand in no file of their own."""
SHIPPED_REWARDS = ("exact", "number", "choice", "regex", "tags", "json_schema", "overlong", "repetition")
"""Reward functions by the name after `charter:`."""
RewardKind = Literal["function", "preference_model", "judge"]
SHIPPED_REWARD = "charter:"
"""Begins the name of a reward function that is shipped; other functions are `path/to/file.py:name`."""


@dataclass(frozen=True, kw_only=True)
class Rubric:
    """Criteria by which a judge rates an answer, and the form in which it is asked.

    Answers to one prompt are rated by the same criteria. A criterion that the judge does not answer is a failure of
    the answer's reward, never a low one.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    criteria: str = CONSTITUTION
    """`constitution`: the comparison question of each of its principles; `row`: the column `rubric` of the prompt's
    row, a list of texts or of `{id, text, weight}`; or the path of a file `{schema: charter.rubric/v1, criteria: [{id,
    text, weight}]}`, whose content is part of the stage's key."""
    ask: Literal["pointwise", "checklist", "pairwise"] = "pointwise"
    """`pointwise`: the expected figure from 1 to 10 under each criterion, moved to -1 to 1; `checklist`: the
    probability that the answer meets it, 0 to 1; `pairwise`: the probability that it is better than the answers beside
    it in its group, in both orders, 0 to 1."""
    only: Names = ()
    """Ids of the criteria that are used; all of them unless given."""
    per_prompt: Count | None = None
    """So many criteria are drawn by weight for each prompt of a rollout; all of them unless given."""
    combine: Literal["mean", "min"] = "mean"
    """Mean over the criteria by weight (drawn ones count alike), or the worst of them."""
    opponents: Count = 1
    """`pairwise`: how many answers that follow in its group each answer is compared with."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """One of the rewards whose weighted sum an answer gets.

    A function is called for each answer in a process of its own, without the network where the machine allows it; it
    takes by name what it needs of `answer`, `prompt`, `turns`, `truth` (the `answer` column of the prompt's row),
    `row`, `tokens`, `ended` and `seed`, and returns a finite number, or None where it does not apply.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    """Of its metrics."""
    kind: RewardKind
    call: str | None = None
    """`function`: `charter:exact`, `number`, `choice`, `regex`, `tags`, `json_schema`, `overlong` or `repetition`, or a
    function of your own as `path/to/file.py:name`; its source is part of the stage's key, and it imports nothing of the
    project's other files."""
    arguments: Mapping[str, Any] | None = None
    """`function`: further arguments of the call."""
    model: str | None = None
    """`preference_model`, `judge`: the model that scores; a judge gives its expected rating, from -1 to 1."""
    rubric: Rubric | None = None
    """`judge`: criteria, and how they are asked; without it, how helpful, honest and harmless the answer is."""
    weight: float = 1.0
    timeout: Seconds = execution(10.0)
    """`function`: longest time of one call; beyond it the call has failed, which is no reward of 0."""
    memory: Bytes = execution(2 * 2**30)
    """`function`: address space of its process."""
    processes: Count = execution(1)
    """`function`: calls at the same time."""

    @property
    def source(self) -> str | None:
        """File of a function of the user's own."""
        is_own = self.kind == "function" and self.call is not None and not self.call.startswith(SHIPPED_REWARD)
        return str(self.call).rpartition(":")[0] if is_own else None


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Correction for a generator whose probabilities differ from the trainer's: rho = trainer / generator.

    `tis` holds rho within [low, high]; `icepop` leaves out tokens outside of them; `sequence_mask` leaves out answers
    whose geometric mean of rho is outside, and weighs the tokens of the others by rho.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    method: MismatchMethod = "tis"
    low: float | None = None
    """Lower bound; none unless given."""
    high: float | None = None
    """Upper bound; none unless given."""
    level: RatioLevel = "token"
    """rho of each token, or of a whole answer: its geometric mean (`sequence`) or its product (`product`)."""
