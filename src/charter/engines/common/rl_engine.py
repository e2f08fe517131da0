"""Engines of reinforcement learning: which placements of a PPO stage's roles each can execute."""

from dataclasses import dataclass
from typing import Literal

from charter.engines.common.capabilities import Capabilities
from charter.physics.runs.rl_algorithms import RlStack, rl_stack_named
from charter.spec.layout import ZeroStage

Arrangement = Literal["colocated", "offloaded", "split", "async"]


@dataclass(frozen=True, kw_only=True)
class RlEngine:
    """Abilities of a runner with the roles of a PPO stage; generation is vLLM's."""

    does: Capabilities
    """Capabilities of the engine that trains."""
    arrangements: tuple[Arrangement, ...]
    roles_apart: bool = False
    """Whether value model and reward may have accelerators of their own, beside those of policy and reference; in a
    split they then must (OpenRLHF 0.11.2: colocate_actor_ref, colocate_critic_reward)."""
    reward_apart: bool = False
    """Whether the reward model always has accelerators of its own, beside those that policy, reference and generator
    share; a value model cannot be trained then."""
    one_mode: bool = False
    """Whether all that is trained shares tensor parallelism, ZeRO stage, recomputation and offload."""
    source: str

    @property
    def name(self) -> str:
        """Return the name of the engine, as a stage's field `engine` has it."""
        return self.does.name

    @property
    def stack(self) -> RlStack:
        """Return the stack that runs a step, under whose name its constants were fitted."""
        return rl_stack_named(self.name.replace("_", "-"))

    @property
    def optimizer_offload(self) -> tuple[ZeroStage, ...]:
        """ZeRO stages with which Adam may live in host memory, where the roles do not already move there in turns."""
        return () if "offloaded" in self.arrangements else self.does.offload_optimizer
