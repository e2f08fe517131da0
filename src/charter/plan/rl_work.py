"""Workload of a PPO stage per rollout, and the layouts that its trainers and generators are tried with."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from charter.engines import rl_engines
from charter.engines.common.capabilities import RlEngine
from charter.physics.generation import USUAL_SPREAD, ResponseLengths
from charter.physics.placement_memory import PpoRole
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.physics.terms import Term
from charter.plan.phase import RolePhase, Workload
from charter.plan.pipeline_names import Library
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import is_hosted
from charter.spec.stage_base import StageResources

# -------- A PPO (or GRPO) workload per rollout: what placements are weighed with.


@dataclass(frozen=True, kw_only=True)
class RlWork:
    """One rollout and what follows it."""

    roles: tuple[PpoRole, ...]
    rollouts: float
    samples: int
    """Answers of a rollout."""
    prompt: float
    """Mean tokens of a prompt: these engines pad nothing."""
    lengths: ResponseLengths
    longest: int
    """Tokens of the longest sequence, for memory."""
    minibatch: int
    """Sequences of an optimizer step."""
    updates: Mapping[str, float]
    """Optimizer steps per rollout, of every trained role."""
    passes: Mapping[str, float]
    """Forward passes per rollout over as many sequences as an optimizer step has, of every role."""
    entropy: bool
    """A bonus for entropy is learnt from."""
    ahead: bool = False
    """Rollouts are drawn a step before they are learnt from."""

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and answer; engines pack sequences, so padding costs nothing."""
        return self.prompt + self.lengths.mean

    @property
    def policy(self) -> PpoRole:
        """The role that generates."""
        return next(role for role in self.roles if role.trained)

    @property
    def names(self) -> tuple[str, ...]:
        """All roles."""
        return tuple(role.name for role in self.roles)

    @property
    def weight_bytes(self) -> float:
        """16-bit weights of the policy, that the generator takes after every update."""
        return 2.0 * count_parameters(self.policy.architecture).total

    def trained_parameters(self, names: Collection[str]) -> float:
        """Parameters with an optimizer, of the roles of a group."""
        return float(
            sum(
                adapter_parameters(role.architecture, role.adapter)
                if role.adapter
                else count_parameters(role.architecture).total
                for role in self.roles
                if role.trained and role.name in names
            )
        )


def rl_work(work: Workload) -> RlWork:
    """The workload of a stage with one generating phase."""
    rollout = next(phase for phase in work.phases if phase.work == "generate")
    training = [phase for phase in work.phases if phase.work == "train"]
    first = training[0]
    updates: dict[str, float] = {}
    passes: dict[str, float] = {}
    for phase in work.phases:
        if phase.work == "train":
            updates[phase.role] = updates.get(phase.role, 0.0) + phase.steps / rollout.steps
        elif phase.work == "score":
            each = phase.sequences / rollout.steps / first.batch
            passes[phase.role] = passes.get(phase.role, 0.0) + each
    return RlWork(
        roles=tuple(
            PpoRole(
                name=role.name,
                architecture=role.architecture,
                trained=role.trained,
                scalar_head=role.scalar_head,
                adapter=role.adapter,
            )
            for role in work.roles
        ),
        rollouts=rollout.steps,
        samples=rollout.batch,
        prompt=rollout.unpadded_tokens or rollout.prompt_tokens,
        lengths=answer_lengths(rollout),
        longest=round(max(phase.longest_tokens for phase in training)),
        minibatch=first.batch,
        updates=updates,
        passes=passes,
        entropy=first.entropy,
        ahead=work.ahead,
    )


ANSWER_BYTES = 73.0
"""Names and brackets of an answer on record, a JSON line (train/ppo_answers.py, `Flight.record`)."""
PROBABILITY_BYTES = 21.5
"""Of a log-probability in 32 bits as JSON writes it, with its comma: 18.8 characters where words are improbable, 20.8
near 0, as json.dumps writes 20,000 draws of each."""
SEPARATOR_BYTES = 2.0
REWARDS_BYTES, REWARD_BYTES = 300.0, 27.0
"""Of the rewards of a rollout beside its answers (digest, times, money), and of one reward of an answer with its mark
of failure, on a line each: 3 characters (1.0) to 20 (a score), taken as 6 (train/rewards/mixture.py). Judgement."""
ROW_BYTES = 26.0
"""Brackets of an answer among the rewards."""


def rollout_records(stage: PpoStage, *, prompt_tokens: float, vocab_size: int) -> tuple[Term, ...]:
    """Bytes of what the native engine writes down of every rollout before the update, and never removes.

    Answers in flight by one file for each rollout, so that other processes make the same updates from it; rewards of a
    list by another, so that none is asked twice. Not counted: replies of environments, groups that are sampled again.
    """
    if is_hosted(stage):
        return ()
    rollouts = ceil(stage.episodes / stage.rollout_batch)
    answers, token = rollouts * stage.rollout_batch, characters(vocab_size) + SEPARATOR_BYTES
    drawn = token + characters(rollouts) + SEPARATOR_BYTES + PROBABILITY_BYTES * (2 if stage.generator == "vllm" else 1)
    each = ANSWER_BYTES + prompt_tokens * token + stage.expected_new_tokens * drawn
    one = f"{ANSWER_BYTES:g} + {prompt_tokens:g} x {token:.1f} + {stage.expected_new_tokens:g} x {drawn:.1f}"
    rewards = len(stage.rewards) * REWARD_BYTES + ROW_BYTES
    terms = (
        Term(
            name="rollouts on record",
            part="data",
            value=answers * each if stage.asynchrony == "in_flight" else 0.0,
            unit="bytes",
            formula=f"{answers:,} answers x ({one}) B: prompt, tokens, versions, log-probabilities as JSON",
            source="train/ppo_answers.py",
        ),
        Term(
            name="rewards on record",
            part="data",
            value=answers * rewards + rollouts * REWARDS_BYTES if stage.rewards else 0.0,
            unit="bytes",
            formula=f"{answers:,} answers x {rewards:g} B + {rollouts:,} rollouts x {REWARDS_BYTES:g} B",
            source="train/rewards/mixture.py",
        ),
    )
    return tuple(term for term in terms if term.value)


def characters(below: int) -> float:
    """Mean digits of the whole numbers below a bound, each as often as any other.

    >>> characters(10), characters(100), round(characters(128_256), 2)
    (1.0, 1.9, 5.13)
    """
    powers = [10**digits for digits in range(1, len(str(below)))]
    return sum((1 - power / below for power in powers if power < below), start=1.0)


def assume_rollouts(stage: PpoStage, library: Library) -> None:
    """Note what a plan of rollouts leaves out: calls of functions, groups that are sampled again, overlap."""
    functions = [item for item in stage.rewards if item.kind == "function"]
    if functions:
        library.assume(
            "ppo.reward functions",
            ", ".join(item.name for item in functions),
            "called on the host between sampling and the update; their time is not counted",
        )
    if stage.equal_groups == "refill":
        library.assume(
            "ppo.dynamic sampling",
            "each group once",
            "groups that are sampled again in place of equal ones are not counted; with a success rate p they are "
            f"E[p^{stage.samples_per_prompt} + (1 - p)^{stage.samples_per_prompt}] of all",
        )
    if stage.asynchrony == "in_flight":
        _assume_age(stage, library)
    elif stage.ahead:
        apart = "the generator has accelerators of its own: the slower of generation and score + update, then sync"
        shared = "sampling and learning take turns on the same accelerators, so drawing ahead saves no time"
        library.assume("ppo.asynchrony", "rollouts are drawn one step ahead", apart if is_hosted(stage) else shared)


AGE_OF_TOKENS = "ppo.age of tokens"
"""Name of the assumption of how old the answers are that a stage learns from."""


def _assume_age(stage: PpoStage, library: Library) -> None:
    """Note how many updates old the tokens of answers in flight are, at most and on average."""
    most, mean = f"at most {stage.ahead}", f"{mean_token_age(stage):.2f} on average"
    said = (
        "each version draws an equal share of max_new_tokens, short answers by the oldest; sampling and learning take "
        "turns on the same accelerators, so it saves no time"
    )
    if is_hosted(stage):
        mean = f"{stage.ahead - 0.5:g} where generation keeps up, at most 1 where it does not"
        said = (
            "a rollout begins as one is taken out of the queue, is drawn within an update and waits (age = rollouts in "
            "flight and queued / rollouts of an update); the slower of generation and score + update, then sync"
        )
        lead = rl_engines()[stage.engine].lead if stage.engine in rl_engines() else None
        if lead is not None:
            mean = f"at most {lead} on average but for answers that are drawn for longer than an update"
            said = (
                f"the generator stops {lead} rollout ahead of training, whatever the bound, and an answer past the "
                "bound is dropped; the slower of generation and score + update, then sync"
            )
    library.assume(AGE_OF_TOKENS, f"{most}, {mean}", said)


def mean_token_age(stage: PpoStage) -> float:
    """Return the mean age of the tokens that a rollout in flight is learnt from, in updates.

    The version of age a draws the tokens from one bound to the next: sum of a x E[tokens between] / E[tokens].

    >>> stage = PpoStage(policy="p", reward="r", prompts=(), episodes=64, asynchrony="in_flight", max_age=3,
    ...                  max_new_tokens=400)
    >>> mean_token_age(stage)
    1.5
    """
    mean = float(stage.mean_new_tokens or stage.max_new_tokens)
    lengths = _lengths(mean, float(stage.max_new_tokens)).quantiles
    age = 0.0
    for version in range(stage.ahead + 1):
        first, last = (stage.tokens_by(stage.ahead, drawer) for drawer in (version - 1, version))
        age += (stage.ahead - version) * float((lengths.clip(first, last) - first).mean())
    return age / float(lengths.mean())


def answer_lengths(phase: RolePhase) -> ResponseLengths:
    """Lengths of a generating phase: spread around the mean where the stage says one, else all at their limit."""
    limit = phase.longest_tokens - phase.prompt_tokens
    if not phase.mean_new_tokens or phase.mean_new_tokens >= limit:
        return ResponseLengths.fixed(phase.new_tokens)
    return _lengths(phase.mean_new_tokens, limit)


def _lengths(mean: float, limit: float) -> ResponseLengths:
    return (
        ResponseLengths.fixed(limit) if mean >= limit else ResponseLengths(mean=mean, limit=limit, spread=USUAL_SPREAD)
    )


# -------- Layouts that trainers and generators of a PPO stage are tried with, in a fixed order.

MOST_MICRO_BATCH = 16
"""Sequences per device and micro-batch beyond which products gain nothing; judgement."""
TOGETHER = (16, 32, 64, 128, 256, 512, 1024)
"""Limits of sequences that one replica of the generator decodes together (vLLM's `max_num_seqs`)."""

TENSORS = (1, 2, 4, 8, 16)
"""Tensor-parallel degrees, inside a node; those of a generator reach over two where a node cannot hold its weights."""


def trainer_layouts(
    work: RlWork, engine: RlEngine, sizes: Sequence[int], per_node: int, fixed: StageResources | None
) -> Iterator[Layout]:
    """Sharded data parallelism, with tensor parallelism inside a node where the engine has it; simplest first."""
    space = engine.does
    tensors = [degree for degree in TENSORS if degree <= per_node] if space.tensor else [1]
    modes = (Recompute.NONE, Recompute.FULL)
    for size, tensor, mode, offload in product(sizes, tensors, modes, (False, True)):
        data = size // tensor
        if size % tensor or data > work.minibatch:
            continue
        if not all(role.architecture.divides_heads(tensor) for role in work.roles):
            continue
        if space.exact_batch and work.minibatch % data:
            continue
        share = ceil(work.minibatch / data)
        micros = [2**power for power in range(share.bit_length()) if 2**power <= min(share, MOST_MICRO_BATCH)]
        micros = [micro for micro in micros if not space.exact_batch or share % micro == 0]
        stages = space.zero if data > 1 else (ZeroStage.NONE,)
        stages = tuple(zero for zero in stages if not offload or data == 1 or zero in engine.optimizer_offload)
        if offload and not engine.optimizer_offload:
            continue
        for zero, micro in product(stages, reversed(micros)):
            layout = Layout(
                data=data,
                tensor=tensor,
                zero=zero,
                micro_batch=micro,
                accumulation=ceil(share / micro),
                recompute=mode,
                offload_optimizer=offload,
                sequence_parallel=tensor > 1 and space.sequence_parallel,
            )
            if fixed is None or _as_asked(layout, fixed):
                yield layout


def _as_asked(layout: Layout, fixed: StageResources) -> bool:
    """Return True if a layout is as the stage prescribes; a micro-batch counts as an upper bound."""
    return (
        (fixed.tensor is None or layout.tensor == fixed.tensor)
        and (fixed.zero is None or layout.data == 1 or int(layout.zero) == fixed.zero)
        and (fixed.recompute is None or layout.recompute == Recompute(fixed.recompute))
        and (fixed.micro_batch is None or layout.micro_batch <= fixed.micro_batch)
        and (fixed.pipeline is None or layout.pipeline == fixed.pipeline)
    )


def generator_replicas(work: RlWork, sizes: Sequence[int], widest: int) -> Iterator[tuple[int, int, int]]:
    """Replicas, tensor degree and limit of sequences; limits that a replica cannot fill are left out."""
    for size, tensor in product(sizes, [degree for degree in TENSORS if degree <= widest]):
        if size % tensor or not work.policy.architecture.divides_heads(tensor, copies=True):
            continue
        share = max(1, ceil(work.samples / (size // tensor)))
        for limit in [*(limit for limit in TOGETHER if limit < share), min(share, TOGETHER[-1])]:
            yield size // tensor, tensor, limit
