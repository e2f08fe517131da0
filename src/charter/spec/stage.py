"""The kinds of stage: one frozen dataclass each, and what is known of all kinds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from charter.errors import Problem
from charter.spec.ppo_stage import PpoStage
from charter.spec.quantity import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE_BELOW_HALF,
    Count,
    Names,
    added,
    check_ranges,
    execution,
)
from charter.spec.rewards import (
    ENVIRONMENT_SOURCES,
    Environment,
)
from charter.spec.stage_base import DATA, MODEL, NATIVE, Optimization, Sampling, Stage, WorkAmount


@dataclass(frozen=True, kw_only=True)
class PrepareStage(Stage):
    """Filter and de-duplicate data, and take out what evaluation sets hold too; what is rejected is kept with why."""

    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"data": DATA, "held_out": DATA})
    kind: Literal["prepare"] = "prepare"
    data: Names
    held_out: Names = ()
    """Evaluation sets: a row that shares a run of `overlap_words` words with one of them is rejected."""
    overlap_words: Count = 13
    """Length of that run (GPT-3, arXiv:2005.14165, appendix C); a shorter text is compared whole."""
    exact_duplicates: bool = True
    """Reject rows whose text, with case and spacing evened out, was there before."""
    near_duplicates: float | None = 0.8
    """Reject rows more alike to an earlier one than this (Jaccard, MinHash over runs of five words); null: never."""
    min_characters: Count = 1
    """Of a prompt, and of every answer."""
    max_characters: Count | None = None
    """Of a whole row."""
    max_rows: Count | None = None
    """At most so many rows are kept, in file order."""


@dataclass(frozen=True, kw_only=True)
class GenerateStage(Sampling, Stage):
    """Expand a seed set of prompts by few-shot continuation, or sample answers to prompts."""

    REVISION: ClassVar[int] = 2
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"policy": MODEL, "prompts": DATA})
    kind: Literal["generate"] = "generate"
    policy: str
    prompts: Names
    makes: Literal["answers", "prompts"] = "answers"
    """`answers`: conversations that end in the policy's answer; `prompts`: new prompts in the manner of the given ones
    (red teaming, Bai et al. 2022, section 3.2)."""
    num_prompts: Count | None = None
    """Of `answers`: prompts used, all unless given; of `prompts`: new ones to be made."""
    answers_per_prompt: Count = 1
    few_shot: Count = 8
    """Given prompts that a new one is shown after; drawn anew for each."""

    def amount_of(self, rows: float) -> WorkAmount:
        """Return its prompts."""
        return WorkAmount(field="num_prompts", value=rows)

    @property
    def answers_together(self) -> int:
        """All answers to a prompt; new prompts are each drawn from examples of their own."""
        return self.answers_per_prompt if self.makes == "answers" else 1


@dataclass(frozen=True, kw_only=True)
class PretrainStage(Optimization, Stage):
    """Train a language model on plain text, from scratch or onwards."""

    REVISION: ClassVar[int] = 3
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"init": MODEL, "data": DATA})
    MAKES: ClassVar[str] = MODEL
    kind: Literal["pretrain"] = "pretrain"
    init: str
    data: Names


@dataclass(frozen=True, kw_only=True)
class SftStage(Optimization, Stage):
    """Supervised fine-tuning; the loss counts assistant turns only."""

    REVISION: ClassVar[int] = 2
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"init": MODEL, "data": DATA})
    MAKES: ClassVar[str] = MODEL
    kind: Literal["sft"] = "sft"
    init: str
    data: Names
    packing: bool = added(False)
    """Conversations share a row of `seq_len` tokens, each seeing only itself; rows, not conversations, are batched."""


JudgeFormat = Literal["multiple_choice", "yes_no", "yes_no_mean"]


@dataclass(frozen=True, kw_only=True)
class JudgeStage(Optimization, Stage):
    """Fine-tune a model to answer the constitution's comparison questions as human labels do.

    `multiple_choice` asks which of (A) and (B) is better, in both orders; `yes_no` asks of each answer alone
    whether it is good under the principle, and compares the log-odds; `yes_no_mean` reads them after every token of
    the answer and averages, for judges too small to gather an answer at its end.
    """

    REVISION: ClassVar[int] = 3
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"init": MODEL, "pairs": DATA})
    MAKES: ClassVar[str] = MODEL
    SEQUENCES_PER_ROW: ClassVar[int] = 2
    kind: Literal["judge"] = "judge"
    init: str
    pairs: Names
    format: JudgeFormat = "multiple_choice"
    cross_entropy_weight: float = 0.2
    """Weight of the plain token loss beside the pairwise Bradley-Terry loss on the log-odds."""


@dataclass(frozen=True, kw_only=True)
class CritiqueStage(Sampling, Stage):
    """Answer, criticise under a drawn principle, revise; in rounds (Bai et al. 2022, section 3)."""

    REVISION: ClassVar[int] = 4
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"policy": MODEL, "critic": MODEL, "prompts": DATA, "demonstrations": DATA}
    )
    kind: Literal["critique"] = "critique"
    policy: str
    critic: str
    prompts: Names
    revisions: int = 1
    num_prompts: Count | None = None
    demonstrations: str | None = None
    """Data set of worked critiques (records of a critique stage, or `messages` of six turns) that the critic is shown
    before its own."""
    few_shot: Count = added(0)
    """How many of them are shown, drawn anew for each prompt."""

    def steps_of(self, rows: float) -> int:
        """Return its batches of prompts, each of which gives as many rows as there are rounds."""
        return ceil(rows / self.revisions / self.rollout_batch)

    def shortened(self, steps: int) -> Self:
        """Return the stage over the first prompts."""
        rows = steps * self.rollout_batch
        return replace(self, num_prompts=rows if self.num_prompts is None else min(self.num_prompts, rows))

    def amount_of(self, rows: float) -> WorkAmount:
        """Return its prompts."""
        return WorkAmount(field="num_prompts", value=rows / self.revisions)


VOTE_TOKENS = 8
"""Longest sampled vote: a letter with brackets and a few words of wording."""


@dataclass(frozen=True, kw_only=True)
class LabelStage(Sampling, Stage):
    """AI preference labels: the judge compares two answers under a principle (Bai et al. 2022, section 4).

    Pairs come from `candidates` (answers that exist), from sampling `pairs` pairs from `policy` on `prompts`, or both.
    The label is soft: the normalised probability of the judge's choice, averaged over both orders.
    """

    REVISION: ClassVar[int] = 4
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"judge": MODEL, "policy": MODEL, "prompts": DATA, "candidates": DATA, "demonstrations": DATA}
    )
    kind: Literal["label"] = "label"
    judge: str
    policy: str | None = None
    prompts: Names = ()
    pairs: Count = 0
    candidates: Names = ()
    both_orders: bool = True
    format: JudgeFormat = "multiple_choice"
    principles_per_pair: Count = added(1)
    """Principles that a pair is judged under, drawn without repetition; their labels are averaged."""
    chain_of_thought: bool = added(False)
    """The judge reasons before it chooses (Bai et al. 2022, section 4.1; Lee et al. 2023, section 2.1)."""
    reasoning_tokens: Count = added(256)
    """Longest chain of thought."""
    clamp: float | None = None
    """`0.4`: probabilities are kept within 40 to 60 %, as Bai et al. do after a chain of thought."""
    demonstrations: str | None = None
    """Data set of judged pairs (`prompt`, `chosen`, `rejected`) that every question begins with."""
    few_shot: Count = added(0)
    """How many of them are shown, drawn anew for each pair."""
    votes: Count = added(0)
    """Sampled answers that stand in where the judge gives no log-probabilities; 0: such a pair is set aside."""
    max_invalid_share: float = execution(0.05)
    """The stage fails when more pairs than this share have no valid judgement."""

    def steps_of(self, rows: float) -> int:
        """Return its batches of pairs."""
        return ceil(rows / self.rollout_batch)

    def shortened(self, steps: int) -> Self:
        """Return the stage with fewer sampled pairs; how many candidates there are is up to their data."""
        return replace(self, pairs=min(self.pairs, steps * self.rollout_batch))

    def amount_of(self, rows: float) -> WorkAmount | None:
        """Return the pairs that it samples, where it has no others."""
        return WorkAmount(field="pairs", value=self.pairs) if self.pairs and not self.candidates else None


@dataclass(frozen=True, kw_only=True)
class PreferenceModelStage(Optimization, Stage):
    """Bradley-Terry preference model on hard or soft labels."""

    REVISION: ClassVar[int] = 2
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"init": MODEL, "data": DATA})
    MAKES: ClassVar[str] = MODEL
    SEQUENCES_PER_ROW: ClassVar[int] = 2
    kind: Literal["preference_model"] = "preference_model"
    init: str
    data: Names
    pooling: Literal["last", "mean"] = "last"
    """Score read at the last token, or averaged over the answer's tokens."""
    context: Literal["full", "last_turn"] = "full"
    """How much of the conversation the model sees before the answer."""
    head_learning_rate_ratio: float = 1.0
    shuffle_labels: bool = False
    """A control: the labels are permuted among the pairs, so that they carry no signal."""
    label_smoothing: float = added(0.0)
    """Labels are moved by so much towards the other answer."""
    use_margin: bool = added(False)
    """The `margin` of a row is subtracted from the score difference (Touvron et al. 2023, section 3.2.2)."""
    center_weight: float = added(0.0)
    """Weight of the squared sum of both scores, which keeps them near zero (Eisenstein et al. 2023)."""


@dataclass(frozen=True, kw_only=True)
class DpoStage(Optimization, Stage):
    """Direct preference optimisation (Rafailov et al. 2023) and its relatives."""

    REVISION: ClassVar[int] = 2
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"init": MODEL, "data": DATA})
    MAKES: ClassVar[str] = MODEL
    SEQUENCES_PER_ROW: ClassVar[int] = 2
    ANSWER_SHARE: ClassVar[float] = 3 / 4
    """Of `seq_len`, at most, for an answer, whose tokens alone have a loss; a prompt is cut at the left to the rest."""
    kind: Literal["dpo"] = "dpo"
    init: str
    """Where the policy starts, and the frozen reference of a loss that has one."""
    data: Names
    beta: float = 0.1
    loss: Literal["dpo", "ipo", "kto", "simpo", "orpo"] = added("dpo")
    """`dpo`: logistic loss of the difference of both rewards, which keeps growing apart; `ipo`: squared distance of the
    difference of both log-ratios from 1 / (2 beta) nats (Azar et al. 2023); `kto`: each answer by itself, against what
    answers to other prompts have gained (Ethayarajh et al. 2024). Without a reference model: `simpo`, logistic loss of
    the difference of both mean log-probabilities of a token, times beta (Meng et al. 2024); `orpo`, language loss of
    the chosen answer, plus beta times the logistic loss of the difference of both log-odds (Hong et al. 2024)."""
    target_margin: float = added(0.0)
    """`simpo`: by how much the chosen answer's reward, beta x nats of a token, should exceed the other's."""
    label_smoothing: float = added(0.0)
    """Share of labels taken to be wrong (conservative DPO, Mitchell 2023)."""

    @property
    def has_reference(self) -> bool:
        """Return True if the loss compares the policy with where it starts."""
        return self.loss in ("dpo", "ipo", "kto")


def check_dpo(stage: DpoStage, path: str) -> Iterator[Problem]:
    """Yield what is out of range, and a margin that the loss does not have."""
    ranges = (("beta", POSITIVE), ("label_smoothing", SHARE_BELOW_HALF), ("target_margin", NOT_NEGATIVE))
    yield from check_ranges(stage, path, ranges)
    if stage.target_margin > 0 and stage.loss != "simpo":
        message = f"the loss {stage.loss} has no margin to reach; found {stage.target_margin}"
        yield Problem(message=message, path=f"{path}.target_margin", hint="loss: simpo, or remove target_margin")


Suite = Literal[
    "perplexity",
    "judge_agreement",
    "pm_accuracy",
    "pm_calibration",
    "win_rate",
    "judge_win_rate",
    "independent_check",
    "hhh",
    "multiple_choice",
    "refusal",
    "exact_match",
    "goodhart",
    "probes",
    "lm_eval",
]


@dataclass(frozen=True, kw_only=True)
class EvalStage(Sampling, Stage):
    """Measure what was made, on data that no stage has seen; every figure with its 95 % interval."""

    REVISION: ClassVar[int] = 4
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "policy": MODEL,
            "against": MODEL,
            "control": MODEL,
            "judge": MODEL,
            "reward": MODEL,
            "control_reward": MODEL,
            "also_rewards": MODEL,
            "pairs": DATA,
            "prompts": DATA,
            "independent_pairs": DATA,
            "also_judges": MODEL,
            "questions": DATA,
            "refusal_prompts": DATA,
            "benign_prompts": DATA,
            "checkpoints_of": MODEL,
            "probes": DATA,
        }
    )
    kind: Literal["eval"] = "eval"
    policy: str
    against: str | None = None
    control: str | None = None
    """The policy trained on shuffled labels: what a gain must be larger than."""
    control_reward: str | None = None
    """The preference model that the control was trained against: its reward rises too, without any signal."""
    judge: str | None = None
    judge_format: JudgeFormat = "multiple_choice"
    reward: str | None = None
    also_rewards: Names = ()
    """Further preference models whose accuracy is reported beside the reward's."""
    pairs: Names = ()
    """Held-out human preference pairs."""
    prompts: Names = ()
    """Held-out prompts for the policies."""
    independent_pairs: Names = ()
    """Human pairs that no other stage used, for a check that shares nothing with the reward."""
    suites: tuple[Suite, ...] = ("win_rate",)
    num_prompts: Count | None = None
    also_judges: Names = ()
    """Further judges whose agreement with the judge and with human labels is reported."""
    questions: Names = ()
    """Multiple-choice questions (`question`, `choices`, `answer`) for the suite `multiple_choice`."""
    refusal_prompts: Names = ()
    """Prompts that should be refused, for the suite `refusal`."""
    benign_prompts: Names = ()
    """Prompts that should not be: the same suite reports over-refusal on them."""
    checkpoints_of: str | None = None
    """PPO stage over whose kept checkpoints the suite `goodhart` compares the reward with the held-out judge."""
    probes: Names = ()
    """Fixed judged pairs for the suite `probes`: a judge that answers them otherwise than before has drifted."""
    environment: Environment | None = None
    """Tools, or an environment, that the models talk to before an answer ends; for the suite `exact_match`."""
    lm_eval_tasks: Names = ()
    """Directories or files of local lm-evaluation-harness tasks, for the suite `lm_eval`."""

    @property
    def reads_constitution(self) -> bool:
        """Return True if a judge compares answers under the principles."""
        return self.judge is not None

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Files of the tasks of lm-evaluation-harness, and of tools and environment."""
        own = () if self.environment is None else self.environment.sources
        tasks = {"lm_eval_tasks": tuple(self.lm_eval_tasks)} if self.lm_eval_tasks else {}
        return {**tasks, **({ENVIRONMENT_SOURCES: own} if own else {})}


def is_hosted(stage: Stage) -> bool:
    """Return True if another engine computes the stage, and Charter starts, watches and verifies it."""
    return stage.engine != NATIVE


def references(stage: Stage) -> dict[str, tuple[str, ...]]:
    """The names that a stage reads, by role: `{"policy": ("sl_cai",), "prompts": ("red_team",)}`."""
    by_role: dict[str, tuple[str, ...]] = {}
    for role in stage.REFERENCES:
        value = stage.named(role)
        names = () if value is None else (value,) if isinstance(value, str) else tuple(value)
        if names:
            by_role[role] = names
    return by_role


AnyStage = (
    PrepareStage
    | GenerateStage
    | PretrainStage
    | SftStage
    | JudgeStage
    | CritiqueStage
    | LabelStage
    | PreferenceModelStage
    | PpoStage
    | DpoStage
    | EvalStage
)

STAGE_KINDS: Mapping[str, type[Stage]] = MappingProxyType(
    {
        "prepare": PrepareStage,
        "generate": GenerateStage,
        "pretrain": PretrainStage,
        "sft": SftStage,
        "judge": JudgeStage,
        "critique": CritiqueStage,
        "label": LabelStage,
        "preference_model": PreferenceModelStage,
        "ppo": PpoStage,
        "dpo": DpoStage,
        "eval": EvalStage,
    }
)
TRAINS = frozenset({"pretrain", "sft", "judge", "preference_model", "ppo", "dpo"})
"""Kinds of stage that update weights: their processes work on every step together."""
MAKES_RECORDS = frozenset({"critique", "label", "generate"})
"""Kinds of stage whose batches may be shared by several processes (`resources.shards`)."""
