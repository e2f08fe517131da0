"""A PPO (or GRPO) workload per rollout: what placements are weighed with."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from charter.physics.generation import USUAL_SPREAD, ResponseLengths
from charter.physics.placement_memory import PpoRole
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.plan.work.phase import Phase, Workload


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
    logit_share: float

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
        logit_share=first.logit_share,
    )


def answer_lengths(phase: Phase) -> ResponseLengths:
    """Lengths of a generating phase: spread around the mean where the stage says one, else all at their limit."""
    limit = phase.longest_tokens - phase.prompt_tokens
    if not phase.mean_new_tokens or phase.mean_new_tokens >= limit:
        return ResponseLengths.fixed(phase.new_tokens)
    return ResponseLengths(mean=phase.mean_new_tokens, limit=limit, spread=USUAL_SPREAD)
