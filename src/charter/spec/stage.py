"""The kinds of stage: one frozen dataclass each.

A field is part of a stage's identity unless it is marked `execution()`: changing a learning rate makes a
stage stale, changing where it runs does not. The fields that name another stage, a model or a data set are
listed in `REFERENCES`, so that the graph can be drawn and checked without knowing the kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal

from charter.spec.layout import Adapter
from charter.spec.quantity import Count, Names, Reads, Seconds, added, execution
from charter.spec.rewards import (
    CONSTITUTION,
    ENVIRONMENT_SOURCES,
    KL_IN_LOSS,
    OF_THE_ROW,
    REWARD_SOURCES,
    RUBRICS,
    AdvantageScale,
    Environment,
    Estimator,
    KlEstimator,
    LossAggregation,
    Mismatch,
    RatioLevel,
    Reward,
    Surrogate,
)

Schedule = Literal["constant", "linear", "cosine"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
FP8 = "fp8"
OptimizerName = Literal["adamw", "adamw_8bit"]
OnDivergence = Literal["stop", "skip", "roll_back"]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Response to a loss that is not finite or jumps: stop, leave the update out, or go back and around it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    on_divergence: OnDivergence = "stop"
    spike_ratio: float | None = None
    """A loss of so many times its running mean counts as divergence; only what is not finite does without it."""
    roll_back_steps: Count = 100
    """`roll_back`: how far before the divergence training goes on from (PaLM, arXiv:2204.02311, section 5.1)."""
    skip_steps: Count = 200
    """`roll_back`: how many steps' data are left out from there."""
    most: Count = 3
    """Divergences in all, after which the stage fails."""


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Settings of the optimizer; shared by every stage that trains."""

    learning_rate: float = 1e-5
    epochs: float | None = None
    steps: Count | None = None
    """Optimizer steps; give either epochs or steps."""
    global_batch: Count = 64
    """Sequences (or pairs) per optimizer step."""
    seq_len: Count = 1024
    warmup_steps: Count = 0
    schedule: Schedule = "cosine"
    min_learning_rate_ratio: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    gradient_clip: float = 1.0
    dropout: float = 0.0
    """Share of token embeddings and attention weights dropped; in a preference model, of the head's input."""
    dtype: Dtype = "bf16"
    """Precision of the forward and backward pass; weights and optimizer are kept in fp32. `fp8`: matrix products of the
    layers in 8 bits, all else in bf16; engine megatron."""
    adapter: Adapter | None = None
    optimizer: OptimizerName = added("adamw")
    """`adamw_8bit` keeps Adam's moments in 8 bits (Dettmers et al. 2022, arXiv:2110.02861)."""
    guard: Guard | None = None
    """What happens when the loss is not finite or jumps; the stage stops unless given."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of sampling text from a model."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: Count = 512
    min_new_tokens: Count = 0
    """The end-of-text token is banned before this many tokens."""
    max_prompt_tokens: Count = 512
    """Longer prompts are cut at the left."""
    rollout_batch: Count = 64
    """Sequences generated together: the fixed unit that is replayed whole after a crash."""
    mean_new_tokens: Count | None = execution(None)
    """Mean tokens of an answer where it is known, for the plan alone; `max_new_tokens` unless given."""

    @property
    def expected_new_tokens(self) -> int:
        """Tokens of an answer that a plan counts."""
        return min(self.mean_new_tokens or self.max_new_tokens, self.max_new_tokens)


MODEL, DATA = "model", "data"
NATIVE: Final = "native"
Engine = str
"""Name of what updates weights; `charter.engines` lists those that there are, and checks a project's."""


AUTO = "auto"
StageEngine = Annotated[Engine, Reads(lambda value: value, {"type": "string"})]
"""An engine, or `auto`, which `spec.load` turns into the one that was chosen."""


@dataclass(frozen=True, kw_only=True)
class ServerPool:
    """Servers of one model that Charter starts for the time of a stage, and ends with it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    engine: Literal["vllm", "charter"] = "vllm"
    """`charter` is the small server of `charter run serve`."""
    replicas: Count = 1
    """Servers over all nodes; each answers for the whole model."""
    tensor: Count = 1
    """Accelerators of one server."""
    max_num_seqs: Count | None = None
    """Sequences that a server decodes together."""
    max_tokens: Count | None = None
    """Longest prompt and answer together; the model's own limit unless given."""
    memory_share: float | None = None
    """Share of an accelerator's memory that a server takes."""


@dataclass(frozen=True, kw_only=True)
class StageResources:
    """Resources of one stage; they override the project's `resources`."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    accelerators: str | None = None
    """`H100:8`, SkyPilot's spelling; `cpu` for none."""
    num_nodes: int | None = None
    use_spot: bool | None = None
    cpus: int | None = None
    """Processor cores: the threads of a local stage."""
    shards: int | None = None
    """Processes that share the batches of a stage that makes records; each has `cpus` cores. The records are the same
    whatever their number, which may change between runs."""
    micro_batch: int | None = None
    """Sequences of a forward and backward pass on one replica; of a pair both answers count."""
    zero: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    interleave: int | None = None
    """Chunks of layers per pipeline stage."""
    context: int | None = None
    """Accelerators that share one sequence."""
    expert: int | None = None
    """Accelerators over which routed experts are spread."""
    replicas: int | None = None
    """Whole copies of what ZeRO-3 shards (hybrid sharding): 1, or one per node."""
    sequence_parallel: bool | None = None
    offload: Literal["none", "optimizer", "all"] | None = None
    """What is kept in host memory: nothing, the optimizer's state, or parameters too."""
    attention: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] | None = None
    """Attention implementation of the model classes; `sdpa` unless given."""
    compile: bool | None = None
    """`torch.compile` of the training forward pass."""
    pools: Mapping[str, ServerPool] | None = None
    """Pools of servers that answer for models of this stage, by the name of the model or stage."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Fields of every stage: its kind, its seed, and the execution fields that never make it stale."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    REVISION: ClassVar[int] = 1
    """Raised by hand when the computation of this kind changes."""
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Field name -> what it must name: `model` (a model, or a stage that makes one) or `data` (likewise)."""
    SEQUENCES_PER_ROW: ClassVar[int] = 1
    """Sequences that a row of its data becomes: two where answers are compared."""
    MAKES: ClassVar[str] = DATA
    """What its output is to a later stage."""
    RUNS: ClassVar[bool] = True
    """Whether the native engine runs this kind yet; the others only plan."""

    kind: str
    # Not counted among a stage's fields, since the seed that its draws derive from is in its identity, whoever gave it.
    seed: int | None = execution()
    """Of this stage's draws; the project's unless given."""
    resources: StageResources | None = execution()
    engine: StageEngine = execution("native")
    """Who computes it: this package, or another one, whose layouts are then planned and whose processes are started.
    `auto`: the quickest of those under `engines:` that keeps what `exact` demands, this package where none does."""
    engine_by: Literal["file", "plan"] = execution("file")
    """`plan`: the engine was `auto`, and was chosen; not to be written by hand."""
    checkpoint_every: Count = execution(100)
    """Optimizer steps, rollouts or batches of records between checkpoints."""
    checkpoint_interval: Seconds | None = execution()
    """Also a checkpoint when so much time has passed since the last one, at the next boundary."""
    hang_timeout: Seconds | None = execution()
    """A process without a sign of life for so long is taken to hang, and restarted; by its own pace unless given."""
    expected_fingerprint: str | None = execution()
    """Pin: refuse to run this stage under any other fingerprint, keep a finished one that has it."""
    timeout: Seconds | None = execution()
    needs_approval: bool = execution(False)
    """Held until a person has looked at samples of what it reads and said `charter approve STAGE`."""

    def named(self, role: str) -> str | tuple[str, ...] | None:
        """The name or names that stand in a role of `REFERENCES`."""
        value: str | tuple[str, ...] | None = getattr(self, role)
        return value

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Files that are neither data nor models, by role: their content is part of the stage's key."""
        return {}

    @property
    def reads_constitution(self) -> bool:
        """Return True if the project's principles are an input."""
        return self.kind in ("judge", "critique", "label")


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


@dataclass(frozen=True, kw_only=True)
class PretrainStage(Optimization, Stage):
    """Train a language model on plain text, from scratch or onwards."""

    REVISION: ClassVar[int] = 2
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

    REVISION: ClassVar[int] = 3
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


@dataclass(frozen=True, kw_only=True)
class LabelStage(Sampling, Stage):
    """AI preference labels: the judge compares two answers under a principle (Bai et al. 2022, section 4).

    Pairs come from `candidates` (answers that exist), from sampling `pairs` pairs from `policy` on `prompts`, or both.
    The label is soft: the normalised probability of the judge's choice, averaged over both orders.
    """

    REVISION: ClassVar[int] = 3
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
class PpoStage(Sampling, Stage):
    """Proximal policy optimisation against a preference model (Schulman et al. 2017; Ouyang et al. 2022)."""

    REVISION: ClassVar[int] = 3
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"policy": MODEL, "reward": MODEL, "judge": MODEL, "teacher": MODEL, "prompts": DATA, "ptx_data": DATA}
    )
    MAKES: ClassVar[str] = MODEL
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
    `distill` learns from `teacher`, token by token of the policy's own answers: rewards are measured, if there are any,
    and not learnt from, and there is no KL penalty."""
    teacher: str | None = None
    """A model of the same tokens, whose log-probabilities the estimator `distill` raises the policy's towards."""
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
    its own; a clip_ratio of 1 leaves out the lower bound."""
    dual_clip: float | None = None
    """Bound of the loss of a negative advantage, in advantages (Ye et al. 2020); none unless given."""
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
    asynchrony: Literal["one_step_off"] | None = None
    """Age of the policy that draws a rollout: unless given, the policy that learns from it; `one_step_off`: that policy
    before its last update, so that sampling need not wait for learning."""
    generator: Literal["native", "vllm"] = execution("native")
    """Who samples: this process, bit for bit repeatable, or vLLM, repeatable by stored answers only."""
    checkpoint_epochs: bool = execution(False)
    """Checkpoints also inside a rollout: when it is sampled, and after every epoch over it."""

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
    def ahead(self) -> int:
        """Rollouts that are drawn before the step that learns from them."""
        return 0 if self.asynchrony is None else 1

    def version_of(self, step: int) -> int:
        """Return the updates behind the weights that draw the rollout of a step (from 0).

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
    def correction(self) -> Mismatch | None:
        """The correction for another program's sampling, in its long form."""
        return self.mismatch or (None if self.mismatch_clip is None else Mismatch(high=self.mismatch_clip))


@dataclass(frozen=True, kw_only=True)
class DpoStage(Optimization, Stage):
    """Direct preference optimisation (Rafailov et al. 2023)."""

    REVISION: ClassVar[int] = 2
    REFERENCES: ClassVar[Mapping[str, str]] = MappingProxyType({"init": MODEL, "data": DATA})
    MAKES: ClassVar[str] = MODEL
    SEQUENCES_PER_ROW: ClassVar[int] = 2
    kind: Literal["dpo"] = "dpo"
    init: str
    """Where the policy starts, and the frozen reference."""
    data: Names
    beta: float = 0.1
    loss: Literal["dpo", "ipo"] = added("dpo")
    """`dpo`: logistic loss of the difference of both rewards, which keeps growing apart; `ipo`: squared distance of the
    difference of both log-ratios from 1 / (2 beta) nats (Azar et al. 2023)."""
    label_smoothing: float = added(0.0)
    """Share of labels taken to be wrong (conservative DPO, Mitchell 2023)."""


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

    REVISION: ClassVar[int] = 3
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
