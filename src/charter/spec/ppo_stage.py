"""The stage of reinforcement learning: PPO, its relatives by groups, and their rewards."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, Self

from charter.errors import Problem
from charter.spec.layout import Adapter
from charter.spec.quantity import (
    AT_LEAST_ONE,
    SHARE_BETWEEN,
    Count,
    Names,
    added,
    check_ranges,
    execution,
)
from charter.spec.rewards import (
    CONSTITUTION,
    ENVIRONMENT_SOURCES,
    KL_IN_LOSS,
    OF_THE_ROW,
    REWARD_SOURCES,
    RUBRICS,
    AdvantageScale,
    Divergence,
    Environment,
    Estimator,
    KlEstimator,
    LossAggregation,
    Mismatch,
    RatioLevel,
    Reward,
    Surrogate,
)
from charter.spec.stage_base import (
    DATA,
    MODEL,
    NATIVE,
    Dtype,
    Guard,
    OptimizerName,
    Sampling,
    Schedule,
    Stage,
    WorkAmount,
)

VLLM_START_SECONDS, VLLM_SYNC_SECONDS, VLLM_SAMPLE_SECONDS = 900.0, 600.0, 3600.0
"""Longest that vLLM beside the trainer may take to start, to read new weights, and to answer a rollout (judgement)."""


@dataclass(frozen=True, kw_only=True)
class PpoStage(Sampling, Stage):
    """Proximal policy optimisation against a preference model (Schulman et al. 2017; Ouyang et al. 2022)."""

    REVISION: ClassVar[int] = 4
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"policy": MODEL, "reward": MODEL, "judge": MODEL, "teacher": MODEL, "prompts": DATA, "ptx_data": DATA}
    )
    MAKES: ClassVar[str] = MODEL
    ROLLS_OUT: ClassVar[bool] = True
    kind: Literal["ppo"] = "ppo"
    policy: str
    reward: str | None = None
    """The model that gives the reward: the short form of a list of one; or give `rewards`."""
    prompts: Names
    episodes: Count
    """Sampled answers in all; `episodes / rollout_batch` rollouts."""
    minibatch: Count = 32
    ppo_epochs: int = 1
    learning_rate: float = 1e-6
    value_learning_rate: float = 1e-6
    warmup_steps: Count = 0
    schedule: Schedule = "constant"
    min_learning_rate_ratio: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    gradient_clip: float = 1.0
    clip_ratio: float = 0.2
    value_clip: float = 0.2
    value_loss_weight: float = 0.5
    entropy_weight: float = 0.0
    gae_lambda: float = 0.95
    discount: float = 1.0
    kl_coefficient: float = 0.05
    kl_target: float | None = None
    """Nats per answer that the controller aims at (Ziegler et al. 2019); the coefficient is fixed without it."""
    kl_horizon: Count = 10_000
    whiten_advantages: bool = True
    reward_clip: float | None = None
    value_warmup_rollouts: Count = 0
    """First rollouts in which only the value model learns."""
    dtype: Dtype = "bf16"
    adapter: Adapter | None = None
    optimizer: OptimizerName = added("adamw")
    guard: Guard | None = None
    estimator: Estimator = added("gae")
    """`gae` with a value model; `reinforce` likewise, by whole returns less the value (Lee et al. 2023, appendix);
    `rloo` (Ahmadian et al. 2024), `grpo` (Shao et al. 2024) and `reinforce_pp_baseline` (scores less their group's
    mean) compare the answers to one prompt, without one; `reinforce_pp` (Hu et al. 2025) takes whole returns;
    `online_dpo` learns from the better of two answers against the worse by the loss of DPO (Guo et al. 2024), whose
    beta is `kl_coefficient`; `distill` learns from `teacher`, token by token of the policy's own answers: rewards are
    measured, if there are any, and not learnt from, and there is no KL penalty."""
    teacher: str | None = None
    """A model of the same tokens, whose log-probabilities the estimator `distill` raises the policy's towards."""
    divergence: Divergence | None = added(None)
    """`distill`: how the distributions of policy and teacher are compared at each token of an answer, instead of the
    log-probabilities of the sampled token alone: KL(policy | teacher) (`reverse`), KL(teacher | policy) (`forward`), or
    of both from a mixture (`jsd`; GKD, Agarwal et al. 2024)."""
    divergence_words: Count = added(100)
    """The teacher's likeliest words, which are compared one by one; all others count as one."""
    teacher_share: float = added(0.5)
    """`jsd`: the teacher's share in the mixture."""
    reward_from: Literal["preference_model", "judge"] = added("preference_model")
    """What `reward` names: a preference model, or a language model whose expected rating from 1 to 10 is the reward
    (direct RLAIF, Lee et al. 2023)."""
    rewards: tuple[Reward, ...] = added(())
    """Weighted rewards of every answer, instead of `reward`: functions, judges, at most one preference model."""
    mixture: Literal["sum_then_normalise", "normalise_then_sum"] = added("sum_then_normalise")
    """Several rewards as one: their weighted sum, which the estimator then compares; or each compared within its group
    before they are added (GDPO, arXiv:2601.05242; estimator grpo)."""
    gold: str | None = added(None)
    """A reward of the list with weight 0, which is measured and never learnt from: what the reward ought to mean."""
    on_overoptimisation: Literal["warn", "stop"] = execution("warn")
    """`gold`: what happens once the reward rises while the gold falls by more than noise: a warning, or an end."""
    max_failed_share: float = execution(0.05)
    """The stage fails when a larger share of a rollout's rewards has failed; up to it, their groups are left out."""
    environment: Environment | None = None
    """Tools, or an environment, that the policy talks to in several turns before its answer ends; one turn without."""
    samples_per_prompt: Count = added(1)
    """Answers to each prompt of a rollout; estimators that compare them need two or more. It divides rollout_batch."""
    kl_estimator: KlEstimator = added("k1")
    """Per-token KL penalty in the reward: the log-ratio, half its square, or its non-negative form (Schulman 2020)."""
    kl_in: Literal["loss", "reward"] | None = None
    """Place of the KL penalty: a term of the loss, always as k3, or part of each token's reward. Unless given, the loss
    for `grpo` and `reinforce_pp_baseline`, and the reward for the others."""
    loss_aggregation: LossAggregation = added("token")
    """Mean over all answer tokens of a minibatch; over answers of each answer's mean (`sequence`) or of its sum divided
    by `loss_horizon` (`constant`, Dr. GRPO); or over prompts of the token mean of their answers (`prompt`)."""
    loss_horizon: Count | None = None
    """Divisor of `loss_aggregation: constant`; max_new_tokens unless given."""
    clip_ratio_high: float | None = None
    """How far above 1 the ratio may go (clip-higher of DAPO, Yu et al. 2025); clip_ratio unless given."""
    ratio: RatioLevel = added("token")
    """Ratio of each token, or of whole answers: its geometric mean over the tokens (`sequence`, GSPO, Zheng et al.
    2025) or their product."""
    surrogate: Surrogate = added("clip")
    """`clip`: PPO's; `cispo`: the bounded ratio is a weight without gradient (arXiv:2506.13585), so that no token loses
    its own; a clip_ratio of 1 leaves out the lower bound; `sapo`: a smooth gate of the ratio instead of bounds
    (arXiv:2511.20347), so that clip_ratio decides nothing; `dppo`: clip_ratio and clip_ratio_high bound how far a
    token's probability moves, not its ratio, and what is beyond them is left out (arXiv:2602.04879)."""
    dual_clip: float | None = None
    """Bound of the loss of a negative advantage, in advantages (Ye et al. 2020); none unless given."""
    off_policy_mask: float | None = None
    """Nats per token: a token with a negative advantage is left out of the loss where the policy, over a whole answer,
    has moved further than this from the one that drew it (DeepSeek-V3.2, arXiv:2512.02556); none unless given."""
    scale_advantages: AdvantageScale = added("group")
    """Divisor of grpo's advantages: deviation of the group or of the batch, the group's mean (MaxRL), or `none` (Dr.
    GRPO, Liu et al. 2025)."""
    equal_groups: Literal["keep", "drop", "refill"] = added("keep")
    """Groups whose answers all have one score: kept, left out of the loss, or replaced by the groups of other prompts,
    sampled until the rollout is full (dynamic sampling of DAPO, Yu et al. 2025)."""
    most_batches: Count = added(3)
    """`refill`: samplings of one rollout, the first included; places still empty then are left out of the loss."""
    bootstrap_truncated: bool = added(False)
    """An answer cut at max_new_tokens goes on in the value model's eyes, instead of ending there."""
    missing_end_penalty: float | None = None
    """Subtracted from the score of an answer that has no end token."""
    stop_update_kl: float | None = None
    """The epochs over a rollout stop when the policy has moved so far from it: nats per token, k3."""
    mismatch_clip: float | None = None
    """Upper bound of the importance weight between generator and trainer where they are different programs: the short
    form of `mismatch: {method: tis, high: ...}`."""
    mismatch: Mismatch | None = None
    """Correction where generator and trainer are different programs; none unless given."""
    ptx_weight: float = added(0.0)
    """Weight of the language-modelling loss on `ptx_data` (PPO-ptx, Ouyang et al. 2022, eq. 2)."""
    ptx_data: Names = added(())
    """Conversations that the policy must not unlearn."""
    ptx_batch: Count = added(32)
    """Rows of `ptx_data` per policy update."""
    seq_len: Count = added(1024)
    """Longest row of `ptx_data` in tokens."""
    asynchrony: Literal["one_step_off", "in_flight"] | None = None
    """Age of the policy that draws a rollout: unless given, the policy that learns from it; `one_step_off`: that policy
    before its last update, so that sampling need not wait for learning; `in_flight`: an answer goes on by the newest
    weights after every update, and its oldest tokens are `max_age` updates old."""
    max_age: Count | None = None
    """`in_flight`: updates between the weights that draw an answer's first token and those that learn from it."""
    generator: Literal["native", "vllm"] = execution("native")
    """Who samples: this process, bit for bit repeatable, or vLLM, repeatable by stored answers only."""
    checkpoint_epochs: bool = execution(False)
    """Checkpoints also inside a rollout: when it is sampled, and after every epoch over it."""

    @property
    def silent_seconds(self) -> float:
        """Return what vLLM may take for new weights and a rollout: no process goes on before it answers."""
        return VLLM_SYNC_SECONDS + VLLM_SAMPLE_SECONDS if self.generator == "vllm" else 0.0

    @property
    def has_value_model(self) -> bool:
        """Return True if the estimator learns the value of states, instead of comparing answers."""
        return self.estimator in ("gae", "reinforce")

    @property
    def judges(self) -> tuple[str, ...]:
        """The language models whose ratings are rewards, each once."""
        if self.rewards:
            models = (item.model for item in self.rewards if item.kind == "judge")
            return tuple(dict.fromkeys(model for model in models if model is not None))
        return (self.reward,) if self.reward is not None and self.reward_from == "judge" else ()

    @property
    def preference_model(self) -> str | None:
        """The preference model whose score is a reward, if there is one."""
        if self.rewards:
            return next((item.model for item in self.rewards if item.kind == "preference_model"), None)
        return self.reward if self.reward_from == "preference_model" else None

    @property
    def judge_role(self) -> str:
        """Role of the judges among the stage's inputs: `reward` where one stands alone in the short form."""
        return "judge" if self.rewards else "reward"

    def role_of(self, judge: str) -> str:
        """The role in which a judge is asked: one of several has its name behind it."""
        return f"{self.judge_role}/{judge}" if len(self.judges) > 1 else self.judge_role

    @property
    def reads_constitution(self) -> bool:
        """Return True if a judge rates by the principles."""
        return any(item.rubric is not None and item.rubric.criteria == CONSTITUTION for item in self.rewards)

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Files of the user's reward functions, of criteria, and of tools and environment, each once."""
        rubrics = (item.rubric.criteria for item in self.rewards if item.rubric is not None)
        files = {
            REWARD_SOURCES: tuple(dict.fromkeys(item.source for item in self.rewards if item.source is not None)),
            RUBRICS: tuple(dict.fromkeys(path for path in rubrics if path not in (CONSTITUTION, OF_THE_ROW))),
            ENVIRONMENT_SOURCES: () if self.environment is None else self.environment.sources,
        }
        return {role: names for role, names in files.items() if names}

    def named(self, role: str) -> str | tuple[str, ...] | None:
        """The name or names in a role; the models of a list of rewards stand in the list."""
        if self.rewards and role == "reward":
            return self.preference_model
        if role == "judge":
            return (self.judges or None) if self.rewards else None
        return super().named(role)

    @property
    def has_reference(self) -> bool:
        """Return True if the policy's start is kept to measure the KL from it: only where a penalty reads it."""
        return self.kl_coefficient > 0 and self.teacher is None

    @property
    def shared_rows(self) -> Mapping[str, int]:
        """Return the rollout, whose groups stay together, and the batches that it is learnt in."""
        mix = {"ptx_batch": 1} if self.ptx_weight else {}
        return {"rollout_batch": self.samples_per_prompt, "minibatch": 1, **mix}

    def steps_of(self, rows: float) -> int:
        """Return its rollouts."""
        return self.episodes // self.rollout_batch

    def shortened(self, steps: int) -> Self:
        """Return the stage with so many rollouts, all of which train the policy."""
        return replace(self, episodes=steps * self.rollout_batch, value_warmup_rollouts=0)

    def amount_of(self, rows: float) -> WorkAmount:
        """Return its episodes, of which whole rollouts are made."""
        return WorkAmount(field="episodes", value=self.episodes, multiple=self.rollout_batch)

    @property
    def unit(self) -> int:
        """Answers of a group that share a micro-batch: both of a pair that is compared."""
        return 2 if self.estimator == "online_dpo" else 1

    @property
    def answers_together(self) -> int:
        """A group, but for answers in flight: they are drawn in pieces, each of which goes on with another text."""
        return 1 if self.asynchrony == "in_flight" else self.samples_per_prompt

    @property
    def ahead(self) -> int:
        """Rollouts that are drawn before the step that learns from them."""
        if self.asynchrony == "in_flight":
            return self.max_age or 0
        return 0 if self.asynchrony is None else 1

    def tokens_by(self, step: int, version: int) -> int:
        """Return the most tokens of an answer of a step's rollout that weights up to a version may have drawn.

        Each of the versions draws an equal share of `max_new_tokens`; the first draws what came before it too.

        >>> stage = PpoStage(policy="p", reward="r", prompts=(), episodes=64, asynchrony="in_flight", max_age=3,
        ...                  max_new_tokens=10)
        >>> [stage.tokens_by(5, version) for version in range(1, 6)], stage.tokens_by(1, 0)
        ([0, 3, 5, 8, 10], 8)
        """
        parts = self.ahead + 1
        drawn = max(0, version - step + parts)
        return -(-self.max_new_tokens * drawn // parts)

    def version_of(self, step: int) -> int:
        """Return the updates behind the oldest weights that draw the rollout of a step (from 0).

        >>> stage = PpoStage(policy="p", reward="r", prompts=(), episodes=64, asynchrony="one_step_off")
        >>> [stage.version_of(step) for step in range(4)]
        [0, 0, 1, 2]
        """
        return max(0, step - self.ahead)

    @property
    def has_kl_loss(self) -> bool:
        """Return True if the KL penalty is a term of the loss, and not part of the reward."""
        return self.kl_in == "loss" or (self.kl_in is None and self.estimator in KL_IN_LOSS)

    @property
    def old_from_update(self) -> bool:
        """Return True if the first minibatch's own pass may say the log-probabilities that its ratios are taken to.

        It is the pass of the policy that sampled, and nothing reads them before: no reward is charged for a KL, no
        token weighed by the generator's own. Each answer is learnt from once: no later epoch reads them.
        """
        is_charged = self.has_reference and not self.has_kl_loss
        is_compared = is_charged or self.teacher is not None or self.correction is not None
        return self.ppo_epochs == 1 and self.asynchrony is None and not is_compared

    @property
    def correction(self) -> Mismatch | None:
        """The correction for another program's sampling, in its long form."""
        return self.mismatch or (None if self.mismatch_clip is None else Mismatch(high=self.mismatch_clip))


def check_asynchrony(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Yield what answers in flight cannot have: they are of one turn, are drawn once, and their age has a bound."""
    if stage.asynchrony != "in_flight":
        if stage.max_age is not None:
            hint = "asynchrony: in_flight, or remove max_age"
            yield Problem(message="bounds the age of answers in flight alone", path=f"{path}.max_age", hint=hint)
        return
    if stage.max_age is None or not 1 <= stage.max_age < stage.max_new_tokens:
        message = f"answers in flight need a bound of their age, from 1 to max_new_tokens - 1; found {stage.max_age}"
        yield Problem(message=message, path=f"{path}.max_age", hint="max_age: 2")
    for name, is_there, reason in (
        (
            "environment",
            stage.environment is not None and stage.engine == NATIVE,
            "the native engine draws answers of several turns by one version",
        ),
        ("equal_groups", stage.equal_groups == "refill", "a group that is drawn again begins when the others end"),
    ):
        if is_there:
            hint = f"asynchrony: one_step_off, or change {name}"
            yield Problem(message=f"{reason}: not in_flight", path=f"{path}.{name}", hint=hint)


MOST_ERROR = 0.2
"""Bound of the relative error that the KL controller answers to (Ziegler et al. 2019, section 2.2)."""


def check_controller(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Yield why the coefficient of the KL penalty cannot follow its target, where there is one."""
    if stage.kl_target is None:
        return
    if stage.kl_coefficient == 0:
        hint = "give kl_coefficient a start above 0, or remove kl_target"
        yield Problem(message="a coefficient of 0 never adapts to a target", path=f"{path}.kl_target", hint=hint)
    if MOST_ERROR * stage.rollout_batch >= stage.kl_horizon >= 1:
        message = (
            f"a rollout of {stage.rollout_batch} answers may take {MOST_ERROR:g} x {stage.rollout_batch} / "
            f"{stage.kl_horizon} of the coefficient away, which is all of it or more: it would not stay above 0"
        )
        hint = f"kl_horizon: {10 * stage.rollout_batch}"
        yield Problem(message=message, path=f"{path}.kl_horizon", hint=hint)


_NOT_OF_PAIRS: tuple[tuple[str, object], ...] = (
    ("kl_target", None),
    ("kl_in", None),
    ("clip_ratio", 0.2),
    ("clip_ratio_high", None),
    ("ratio", "token"),
    ("surrogate", "clip"),
    ("dual_clip", None),
    ("off_policy_mask", None),
    ("loss_aggregation", "token"),
    ("entropy_weight", 0.0),
    ("mismatch", None),
    ("mismatch_clip", None),
)
"""Options of a loss of tokens, and what they are unless given."""


_NOT_OF_DIVERGENCES = frozenset(("kl_target", "kl_in", "loss_aggregation"))
"""Options of tokens' losses that say nothing of a ratio."""


def check_divergence(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Yield what goes with a teacher alone, and options of a ratio, which a divergence does not have."""
    ranges = (("divergence_words", AT_LEAST_ONE), ("teacher_share", SHARE_BETWEEN))
    yield from check_ranges(stage, path, ranges)
    if stage.divergence is None:
        return
    if stage.estimator != "distill":
        message = f"the estimator {stage.estimator} compares no distributions of words"
        yield Problem(message=message, path=f"{path}.divergence", hint="estimator: distill, or remove divergence")
    for name, unset in _NOT_OF_PAIRS:
        if name not in _NOT_OF_DIVERGENCES and (value := getattr(stage, name)) != unset:
            message = f"a divergence has no ratio of probabilities, and no bonus beside it; found {value}"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}")


def check_online_dpo(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Yield what the loss of pairs lacks or cannot have."""
    if stage.estimator != "online_dpo":
        return
    if stage.samples_per_prompt > 2:
        message = f"the estimator online_dpo compares two answers; found {stage.samples_per_prompt}"
        yield Problem(message=message, path=f"{path}.samples_per_prompt", hint="samples_per_prompt: 2")
    if stage.minibatch % 2:
        message = f"{stage.minibatch} answers are no whole pairs"
        yield Problem(message=message, path=f"{path}.minibatch", hint=f"minibatch: {stage.minibatch + 1}")
    if stage.kl_coefficient <= 0:
        message = "is the beta of online_dpo, which must be above 0"
        yield Problem(message=message, path=f"{path}.kl_coefficient", hint="kl_coefficient: 0.1")
    for name, unset in _NOT_OF_PAIRS:
        if (value := getattr(stage, name)) != unset:
            message = f"the estimator online_dpo has a loss of pairs, not of tokens; found {value}"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}")
