"""Tables of what engines and servers can do: the layouts that each executes, the kinds of stage, the accelerators.

A plan enumerates what they allow, runs and submissions refuse what they do not, and the docs print them.

Read in public documentation in November 2026: Megatron-Core parallelism guide and `ModelParallelConfig`
(docs.nvidia.com/megatron-core), DeepSpeed configuration and transformers' integration (ZeRO stages, offload of the
optimizer with ZeRO 2 and 3, of parameters with ZeRO-3), accelerate's guides on FSDP2, context and sequence
parallelism, NeMo RL training backends (DTensor: FSDP2, TP, SP, CP; Megatron: all of Megatron-Core), repositories of the
others; and since then in the code of the versions that Charter renders files for, whose refusals these tables
keep clear of. What an engine can do only with extra packages or forks is left out.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from charter.physics.precision import TrainingPrecision
from charter.spec.execution import ExecutableLayout
from charter.spec.layout import Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import PROGRAM, SHIPPED_REWARD, Environment, Reward
from charter.spec.stage_base import NATIVE, Stage, StageResources

if TYPE_CHECKING:
    from charter.physics.runs import RlStack

NONE, OPTIMIZER, GRADIENTS, PARAMETERS = ZeroStage
RAY = "ray"
"""The launcher whose clusters are there before a stage is."""
ZERO_BESIDE_PIPELINE = (NONE, OPTIMIZER)
"""Stages that shard nothing which a pass of a micro-batch needs: with others each would gather or reduce everything."""
SIXTEEN_BITS = ("bf16", "fp16")
EVERY_KIND = ("pretrain", "sft", "judge", "preference_model", "dpo", "ppo")
"""Of a library of parallelism, around which any loop can be written."""
NVIDIA, AMD, GOOGLE = "NVIDIA", "AMD", "Google"
"""Makers of accelerators as the catalog spells them."""


ALWAYS = frozenset({"answer", "prompt", "turns", "truth", "row"})
"""Values that a reward function may ask for in every engine that calls a list; others are those that it knows."""
OVERLONG = f"{SHIPPED_REWARD}overlong"
NO_OTHER_GROUPS = "its file holds the prompts of every rollout in Charter's order, and none to replace a group by"
UNWATCHED = "the score of a preference model is the engine's own, and the alarm compares all that is learnt from"
UNCOMPARED = (
    "ask: pairwise compares the answers of a group, and other engines call a judge for one answer at a time; "
    "pointwise and checklist rate each by itself"
)
ENDS_THE_RUN = "ends the run"
LEFT_OUT = "leaves out its answer, and the rest of its group is compared without it"
ADDED_UP = "it adds rewards up before it compares them"
INSTEAD_OF_REWARDS: Mapping[str, str] = MappingProxyType(
    {"rewards": "engine: native, or other rewards", "environment": "engine: native, which plays the turns"}
)
"""What works where an engine does not take a field of a stage's rewards; of other fields the value that it takes."""


@dataclass(frozen=True, kw_only=True)
class RewardCalls:
    """Abilities of an engine of another project that calls a list of rewards (`reward_file` writes it)."""

    values: frozenset[str] = frozenset()
    """What it tells a function beside `ALWAYS`: `tokens` where it says how long an answer is."""
    no_values: str
    """The reason why it tells no more."""
    penalty: bool = False
    """It has DAPO's penalty of its own, near max_new_tokens."""
    model: bool = False
    """It adds the score of a preference model to the functions'."""
    mixtures: tuple[str, ...] = ("sum_then_normalise",)
    no_tools: str
    """The reason why tools and environments of the stage are not handed over."""
    tasksets: bool = False
    """Its agents play tasksets of verifiers by themselves, and it learns from the reward that those give."""
    no_groups: str = NO_OTHER_GROUPS
    """The reason why groups of one score are kept."""
    drops_failed: bool = False
    """A reward that raises takes its answer out of its group, and the run goes on."""

    @property
    def failed(self) -> str:
        """Words after a function that raises: what becomes of the run, or of the answer."""
        return LEFT_OUT if self.drops_failed else ENDS_THE_RUN


@dataclass(frozen=True, kw_only=True)
class FixedField:
    """A field of a stage for which an engine has fewer values than charter.yaml."""

    field: str
    only: object
    """The one value that it has."""
    why: str
    kinds: tuple[str, ...] = EVERY_KIND
    attention: str = ""
    """The implementation of attention with which it has every value."""

    @property
    def instead(self) -> str:
        """Return what to write instead."""
        value = {None: f"no {self.field}", False: f"{self.field}: false"}.get(self.only, f"{self.field}: {self.only}")  # type: ignore[call-overload]
        return f"resources: {{attention: {self.attention}}}, or {value}" if self.attention else value

    def refuses(self, stage: Stage) -> bool:
        """Return True if a stage has another value there."""
        if stage.kind not in self.kinds or getattr(stage, self.field, self.only) == self.only:
            return False
        return not self.attention or (stage.resources or StageResources()).attention != self.attention


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Abilities of one engine, and the names of the constants that its time and memory use."""

    name: str
    does: str
    """In words, for messages."""
    stack: str
    """Profile of `physics.stacks`, whose constants time takes; empty: the native one of a device."""
    memory: str
    """Traits of its code by which its memory is counted, in `physics.memory_profiles.OF_ENGINES`."""
    precision: TrainingPrecision
    zero: tuple[ZeroStage, ...]
    zero_searched: tuple[ZeroStage, ...] = ()
    """ZeRO stages that a search tries; empty: all that it has."""
    tensor: bool = False
    tensor_drops: bool = True
    """Stages with dropout can have their matrices split."""
    sequence_parallel: bool = False
    sequence_parallel_searched: bool = True
    """A search tries it unasked."""
    sequence_parallel_samples: bool = True
    """Kinds of stage that draw answers while they train run with it too."""
    pipeline: bool = False
    interleave: bool = False
    even_pipeline: bool = False
    """Every pipeline stage has as many layers, where the embedding and the output count as one each or not at all."""
    context: bool = False
    context_of_pairs: bool = True
    """Two answers that are compared can be shared over accelerators as one sequence can."""
    context_of_roles: bool = False
    """Rows of several roles on the same accelerators are shared too: DPO's policy and reference."""
    context_only_sharded: bool = False
    """Context parallelism goes with ZeRO-3 alone."""
    context_searched: bool = True
    """A search tries it unasked."""
    context_beside_tensor: bool = True
    context_kinds: tuple[str, ...] = EVERY_KIND
    """Kinds of stage that run with it."""
    context_divides_heads: bool = False
    """Context parallelism gives every rank complete heads (Ulysses)."""
    expert: bool = False
    hybrid: bool = False
    """Hybrid sharding: ZeRO-3 inside a node, copies between nodes (HSDP)."""
    offload_optimizer: tuple[ZeroStage, ...] = ()
    """ZeRO stages with which the optimizer may be kept in host memory."""
    offload_parameters: tuple[ZeroStage, ...] = ()
    offload_activations: bool = False
    """The inputs of layers that are recomputed whole can wait in host memory, and Charter's files say so."""
    decode_batch: bool = False
    """It draws the answers of a rollout in parts of a given size, beside no other generator."""
    recompute: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    exact_batch: bool = True
    """Every rank takes the same number of micro-batches of one size, so that both divide the batch."""
    compares_batches: bool = True
    """What is compared with a figure of the batch (KTO) may come in several micro-batches, which share that figure."""
    packs: bool = False
    """Sequences of different length share a row, so nothing is padded."""
    logits_of_answers: bool = False
    """A loss over answers (DPO) makes no logits of their prompts."""
    old_from_update: Literal["", "first minibatch", "one update of grpo"] = ""
    """The pass of the update that says the log-probabilities to which its ratios are taken, where nothing reads them
    before: of a rollout's first minibatch, or of a rollout that GRPO updates from once. Other engines are planned with
    a pass of their own over the rollout."""
    fills_rows: bool = False
    """Every row is filled up to the stage's `seq_len`, however long the others of its micro-batch are."""
    kinds: tuple[str, ...] = EVERY_KIND
    """Kinds of stage that it trains."""
    vllm_share: float = 0.0
    """Of an accelerator's memory, that vLLM takes beside the trainer where a stage asks for `generator: vllm`; 0 where
    it is not a choice, since the engine has one way to generate."""
    vllm_everywhere: bool = False
    """Every data rank has a vLLM of its own beside it; else the first rank alone."""
    answers: tuple[str, ...] = ()
    """Kinds of stage whose model answers prompts at its checkpoints for people to read, in each of its layouts."""
    makers: tuple[str, ...] = (NVIDIA,)
    """Of the accelerators that its documentation names, and that Charter writes its files for."""
    untried: tuple[str, ...] = ()
    """Those of `makers` on which nobody here has seen it run, which a plan says."""
    several_nodes: bool = False
    """`charter run` starts it on several nodes, `ray_kinds` apart: each runs the same command, with its own number and
    where to meet."""
    ray_kinds: tuple[str, ...] = ()
    """Kinds of stage whose trainer is an application of Ray: one process takes the accelerators of all nodes by itself
    from a cluster that is there, or that the nodes of its job have made for it."""

    rewards: RewardCalls | None = None
    """How it calls a list of rewards; None where it calls none, and for the native engine, which takes every list."""
    fp8_kinds: tuple[str, ...] = ()
    """Kinds of stage that it trains with matrix products in 8 bits."""
    without_fp8: str = ""
    """The reason why it trains none so."""
    fixed: tuple[FixedField, ...] = ()
    """Fields of a stage of which its plans and its files know one value; what else it lacks its mapping says."""

    def runs_on_nodes(self, kind: str) -> bool:
        """Return True if `charter run` starts a kind of stage on several nodes."""
        return self.several_nodes or kind in self.ray_kinds

    def read_by_update(self, stage: PpoStage) -> int:
        """Return the answers of a rollout whose log-probabilities the update's own pass says."""
        is_one_update = stage.estimator == "grpo" and stage.minibatch >= stage.rollout_batch
        says = {"": False, "first minibatch": True, "one update of grpo": is_one_update}
        return stage.minibatch if stage.old_from_update and says[self.old_from_update] else 0

    def has_one_driver(self, kind: str, launcher: str) -> bool:
        """Return True if one process drives it on several nodes of a launcher; else each has a process of Charter's."""
        return launcher == RAY and kind in self.ray_kinds

    @property
    def searched(self) -> tuple[ZeroStage, ...]:
        """ZeRO stages that a search tries."""
        return self.zero_searched or self.zero


ALL_ZERO = (NONE, OPTIMIZER, GRADIENTS, PARAMETERS)
Arrangement = Literal["colocated", "offloaded", "split", "async"]


@dataclass(frozen=True, kw_only=True)
class RlEngine:
    """Abilities of a runner with the roles of a PPO stage; generation is vLLM's."""

    does: Capabilities
    """Capabilities of the engine that trains."""
    arrangements: tuple[Arrangement, ...]
    roles: tuple[str, ...] = ("policy", "reference", "reward", "value")
    """Roles that it computes."""
    ahead_roles: tuple[str, ...] | None = None
    """Those that it computes where its generator works ahead of training; all of them unless given."""
    one_node: bool = False
    """Whether all of them, and the generator, lie on one node."""
    lead: int | None = None
    """Rollouts that its generator draws ahead at most, where that does not follow from how old they may be."""
    roles_apart: bool = False
    """Whether value model and reward may have accelerators of their own, beside those of policy and reference; in a
    split they then must (OpenRLHF 0.11.2: colocate_actor_ref, colocate_critic_reward)."""
    reward_apart: bool = False
    """Whether the reward model always has accelerators of its own, beside those that policy, reference and generator
    share."""
    one_mode: bool = False
    """Whether all that is trained shares tensor parallelism, ZeRO stage, recomputation and offload."""
    source: str

    @property
    def name(self) -> str:
        """Return the name of the engine, as a stage's field `engine` has it."""
        return self.does.name

    def roles_of(self, *, ahead: bool) -> tuple[str, ...]:
        """Return the roles that it computes, with a generator that works ahead of training or without."""
        return self.roles if self.ahead_roles is None or not ahead else self.ahead_roles

    @property
    def stack(self) -> "RlStack":
        """Return the stack that runs a step, under whose name its constants were fitted."""
        # Every command reads the list of engines; those that plan alone need the physics, and numpy with it.
        from charter.physics.runs import rl_stack_named

        return rl_stack_named(self.name.replace("_", "-"))

    @property
    def optimizer_offload(self) -> tuple[ZeroStage, ...]:
        """ZeRO stages with which Adam may live in host memory, where the roles do not already move there in turns."""
        return () if "offloaded" in self.arrangements else self.does.offload_optimizer


DEGREES = ("tensor", "pipeline", "interleave", "context", "expert", "sequence_parallel")
"""Fields of a layout which an engine either has or not."""


def unsupported(
    layout: ExecutableLayout | StageResources, engine: Capabilities, *, on_accelerator: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield each field of a layout that an engine cannot execute, with the reason; what is not given is not looked at.

    Offloading is a word without effect `on_accelerator=False`, where everything is in the host's memory anyway.

    >>> from charter.engines.native.capabilities import CAPABILITIES
    >>> list(unsupported(ExecutableLayout(data=2, tensor=2, pipeline=2), CAPABILITIES))
    [('pipeline', 'the native engine runs pipeline: 1 only; found 2')]
    """
    for field in DEGREES:
        value = getattr(layout, field) or 1
        if getattr(engine, field) or not (value is True or value > 1):
            continue
        if field == "sequence_parallel":
            yield field, f"the {engine.name} engine runs tensor parallelism without sequence parallelism"
        else:
            yield field, f"the {engine.name} engine runs {field}: 1 only; found {value}"
    if (layout.context or 1) > 1 and (layout.tensor or 1) > 1 and not engine.context_beside_tensor:
        yield "context", f"the {engine.name} engine runs it with tensor: 1 only; found tensor: {layout.tensor}"
    if layout.zero is not None and layout.zero not in engine.zero:
        stages = one_of([int(stage) for stage in engine.zero])
        yield "zero", f"the {engine.name} engine runs zero: {stages}; found {int(layout.zero)}"
    elif (layout.pipeline or 1) > 1 and layout.zero is not None and layout.zero not in ZERO_BESIDE_PIPELINE:
        stages = one_of([int(stage) for stage in engine.zero if stage in ZERO_BESIDE_PIPELINE])
        yield "zero", f"beside a pipeline the {engine.name} engine runs zero: {stages}; found {int(layout.zero)}"
    if layout.recompute is not None and Recompute(layout.recompute) not in engine.recompute:
        modes = one_of([mode.value for mode in engine.recompute])
        yield "recompute", f"the {engine.name} engine runs recompute: {modes}; found {layout.recompute}"
    if (layout.replicas or 1) > 1 and not engine.hybrid:
        yield "replicas", f"the {engine.name} engine has no hybrid sharding (replicas: 1 only); found {layout.replicas}"
    if on_accelerator and layout.offload not in (None, "none"):
        yield from _offload(str(layout.offload), layout.zero, engine)
    if layout.offload_activations:
        yield from _offloaded_inputs(layout, engine)
    if layout.decode_batch and not engine.decode_batch:
        yield "decode_batch", f"no rollout is drawn in parts here by the {engine.name} engine itself"


def _offload(what: str, zero: int | None, engine: Capabilities) -> Iterator[tuple[str, str]]:
    stages = engine.offload_parameters if what == "all" else engine.offload_optimizer
    if not stages:
        yield "offload", f"the {engine.name} engine has no offload: {what} on accelerators"
    elif zero is not None and zero not in stages:
        needed = one_of([int(stage) for stage in stages])
        yield "offload", f"offload: {what} goes with zero: {needed} in the {engine.name} engine; found {int(zero)}"


def _offloaded_inputs(layout: ExecutableLayout | StageResources, engine: Capabilities) -> Iterator[tuple[str, str]]:
    if not engine.offload_activations:
        yield "offload_activations", f"the {engine.name} engine keeps the inputs of layers on the accelerator"
    elif layout.recompute is not None and layout.recompute != Recompute.FULL:
        reason = f"it moves what recompute: full keeps, the input of each layer; found recompute: {layout.recompute}"
        yield "offload_activations", reason


def of_kind(engine: Capabilities, stage: Stage) -> Capabilities:
    """Return what an engine can do for a kind of stage.

    >>> from charter.engines.native.capabilities import CAPABILITIES
    >>> ppo = of_kind(CAPABILITIES, PpoStage(policy="a", reward_from="b", prompts=("p",), episodes=8))
    >>> ppo.sequence_parallel, ppo.context
    (False, False)
    """
    if getattr(stage, "dropout", 0.0) and not engine.tensor_drops:
        return replace(engine, tensor=False, sequence_parallel=False, decode_batch=False)
    samples = engine.sequence_parallel_samples or not stage.ROLLS_OUT
    return replace(
        engine,
        decode_batch=engine.decode_batch and getattr(stage, "generator", "") == NATIVE,
        sequence_parallel=engine.sequence_parallel and samples,
        context=engine.context and stage.kind in engine.context_kinds,
    )


def refused_kernels(
    stage: Stage,
    *,
    attention: str | None,
    compiled: bool,
    recompute: str | None = None,
    offloads_activations: bool = False,
    splits_sequence: bool = False,
    shares_rows: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield each field of kernels with which the native engine would compute a stage wrongly, with the reason.

    >>> from charter.spec.stage import SftStage
    >>> sft = SftStage(init="a", data=("d",), dtype="fp32")
    >>> list(refused_kernels(sft, attention="flash_attention_2", compiled=False))
    [('attention', 'flash_attention_2 computes in 16 bits only, dtype is fp32; use bf16, or attention sdpa')]
    """
    dtype, dropout = getattr(stage, "dtype", "fp32"), getattr(stage, "dropout", 0.0)
    if attention == "flash_attention_2" and dtype not in SIXTEEN_BITS:
        yield "attention", f"{attention} computes in 16 bits only, dtype is {dtype}; use bf16, or attention sdpa"
    if attention == "flex_attention" and dropout:
        yield "attention", f"{attention} has no dropout of attention weights; use dropout 0, or attention sdpa"
    if recompute == Recompute.SELECTIVE and (compiled or attention == "flex_attention"):
        beside = "compile" if compiled else f"attention {attention}"
        yield "recompute", f"selective recomputation beside {beside} has never run; use recompute full, or none"
    if compiled and offloads_activations:
        yield "offload_activations", "inputs of compiled layers in host memory have never run; remove compile, or this"
    if compiled and splits_sequence:
        yield "sequence_parallel", "sequence parallelism beside compile has never run; remove compile, or this"
    if compiled and shares_rows:
        yield "context", "context parallelism beside compile has never run; remove compile, or this"
    if compiled and stage.ROLLS_OUT:
        yield (
            "compile",
            "compile and PPO do not go together: scoring and training compile to different code, whose last bits "
            "differ, and the first ratio of the two would not be 1; remove compile",
        )


def one_of(values: Sequence[object]) -> str:
    """Return alternatives in words.

    >>> one_of((0, 2, 3)), one_of((1,))
    ('0, 2 or 3', '1')
    """
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def refused_fields(stage: Stage, engine: Capabilities) -> Iterator[str]:
    """Yield what an engine cannot express of a stage, by its table: the field and its value, with the reason.

    >>> from charter.engines.maxtext.capabilities import CAPABILITIES
    >>> from charter.spec.stage import SftStage
    >>> list(refused_fields(SftStage(init="a", data=("d",), packing=True), CAPABILITIES))
    ['packing: it packs by an order of its own, so that batches would be others']
    """
    yield from (f"{item.field}: {item.why}" for item in engine.fixed if item.refuses(stage))
    yield from (f"{field}: {why}" for field, why in refused_rewards(stage, engine))


# -------- The list of rewards of a stage in an engine of another project: what it cannot call, and why.


def refused_rewards(
    stage: Stage, engine: Capabilities, *, sources: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield each field of a stage's rewards that an engine beside the native one cannot do, with the reason.

    `sources` are the texts of the user's own functions; without them, what those ask for is not looked at.
    """
    if not isinstance(stage, PpoStage) or engine.name == NATIVE:
        return
    calls = engine.rewards
    if stage.equal_groups != "keep":
        yield "equal_groups", NO_OTHER_GROUPS if calls is None else calls.no_groups
    if stage.environment is not None and stage.environment.taskset is not None:
        if calls is not None and calls.tasksets:
            yield from _refused_taskset(stage, stage.environment)
            return
        yield "environment", "Charter's own engine and prime-rl alone play an environment of verifiers"
    elif stage.environment is not None:
        yield "environment", f"{engine.name} takes no tools and no environment" if calls is None else calls.no_tools
    if not stage.rewards:
        return
    if calls is None:
        yield "rewards", f"{engine.name} calls no list of rewards"
        return
    penalty = own_penalty(stage, calls)
    named: dict[str, list[str]] = {}
    for item in stage.rewards:
        if reason := _not_called(item, calls, penalty, sources):
            named.setdefault(reason, []).append(item.name)
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in named.items()]
    if not reasons and all(item is penalty or item.kind == "preference_model" for item in stage.rewards):
        reasons = ["no reward of the list is a function or a judge; name the one model as `reward`"]
    if reasons:
        yield "rewards", "; ".join(reasons)
    if stage.mixture not in calls.mixtures:
        yield "mixture", ADDED_UP
    if stage.on_overoptimisation != "warn" and has_own_score(stage):
        yield "on_overoptimisation", UNWATCHED


def _refused_taskset(stage: PpoStage, environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield what keeps an engine that plays tasksets of verifiers from this one."""
    if environment.turn_tokens is not None:
        yield "environment", "its turns have one bound together, max_new_tokens: leave turn_tokens out"
    if [(item.kind, item.score, item.weight) for item in stage.rewards] != [("env", None, 1.0)]:
        yield (
            "rewards",
            "it learns from what the taskset gives: one reward of kind env, of weight 1 and without a score",
        )


def own_penalty(stage: PpoStage, calls: RewardCalls) -> Reward | None:
    """Return the penalty of long answers that the engine computes itself, by the same formula.

    The engines count back from their longest answer, so `longest` has to be max_new_tokens.
    """
    if "tokens" in calls.values or not calls.penalty:
        return None
    penalties = [item for item in stage.rewards if item.call == OVERLONG and item.weight > 0]
    exact = [item for item in penalties if (item.arguments or {}).get("longest") == stage.max_new_tokens]
    return exact[0] if len(penalties) == len(exact) == 1 else None


def has_own_score(stage: PpoStage) -> bool:
    """Return True if the engine asks a preference model itself, so that `rewards.py` gives a part of the list."""
    return any(item.kind == "preference_model" for item in stage.rewards)


def listed_rewards(stage: PpoStage, calls: RewardCalls) -> tuple[Reward, ...]:
    """Return the rewards that `rewards.py` gives, in the order of the list; the engine gives the others itself."""
    penalty = own_penalty(stage, calls)
    return tuple(item for item in stage.rewards if item.kind in ("function", "judge") and item is not penalty)


def _not_called(reward: Reward, calls: RewardCalls, penalty: Reward | None, sources: Mapping[str, str] | None) -> str:
    """Return why a reward of a list cannot be had of an engine; empty where it can."""
    if reward.kind == "judge":
        return UNCOMPARED if reward.rubric is not None and reward.rubric.ask == "pairwise" else ""
    if reward.kind == "env":
        return calls.no_tools
    if reward.kind == "preference_model":
        return "" if calls.model else "it scores by a model or by functions, not by both"
    return "" if reward is penalty else _not_offered(reward, calls, sources)


def _not_offered(reward: Reward, calls: RewardCalls, sources: Mapping[str, str] | None) -> str:
    """Return what a function asks for that the engine does not know; empty where there is nothing."""
    if reward.call == PROGRAM:
        return "programs of a model run in a sandbox, which Charter's own engine alone starts"
    values = ALWAYS | calls.values | set(reward.arguments or {})
    if reward.source is None:
        # Plans read this table for every stage; those without a list need none of the functions.
        from charter.data import reward_functions

        function = reward_functions.SHIPPED[str(reward.call).rpartition(":")[2]]
        parameters = inspect.signature(function).parameters.values()
        missing = [item.name for item in parameters if item.default is item.empty and item.name not in values]
        if missing and reward.call == OVERLONG:
            return f"longest is not max_new_tokens, and {calls.no_values}"
    elif sources is None:
        return ""
    else:
        try:
            missing = [name for name in _asked_names(reward, sources[reward.source]) if name not in values]
        except (SyntaxError, KeyError) as error:
            return f"{reward.call} cannot be read ({error})"
    return f"it asks for {', '.join(missing)}, and {calls.no_values}" if missing else ""


def _asked_names(reward: Reward, source: str) -> list[str]:
    """Return the parameters without a default of a function of the user's own, by its source alone."""
    name = str(reward.call).rpartition(":")[2]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            given = node.args
            plain = [item.arg for item in (*given.posonlyargs, *given.args)]
            named = [
                item.arg for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None
            ]
            return [*plain[: len(plain) - len(given.defaults)], *named]
    raise KeyError(f"it defines no function {name}")
