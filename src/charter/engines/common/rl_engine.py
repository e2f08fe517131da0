"""Engines of reinforcement learning: which placements of a PPO stage's roles each can execute."""

from dataclasses import dataclass
from typing import Literal

from charter.engines.common.capabilities import Capabilities, capabilities
from charter.physics.runs import RlStack, rl_stack_named
from charter.spec.layout import ZeroStage

Arrangement = Literal["colocated", "offloaded", "split", "async"]


@dataclass(frozen=True, kw_only=True)
class RlEngine:
    """Abilities of a runner with the roles of a PPO stage; generation is vLLM's."""

    name: str
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
    def stack(self) -> RlStack:
        """Return the stack that runs a step, under whose name its constants were fitted."""
        return rl_stack_named(self.name.replace("_", "-"))

    @property
    def does(self) -> Capabilities:
        """Return the capabilities of the engine that trains."""
        return capabilities(self.name)

    @property
    def optimizer_offload(self) -> tuple[ZeroStage, ...]:
        """ZeRO stages with which Adam may live in host memory, where the roles do not already move there in turns."""
        return () if "offloaded" in self.arrangements else self.does.offload_optimizer


_RL_ENGINES = (
    RlEngine(
        name="verl",
        arrangements=("colocated", "offloaded"),
        source="verl 0.9.1: hybrid workers, param_offload and optimizer_offload; its asynchronous trainers learn from "
        "older answers and are not rendered",
    ),
    RlEngine(
        name="openrlhf",
        arrangements=("colocated", "split", "async"),
        roles_apart=True,
        one_mode=True,
        source="OpenRLHF: *_num_nodes of every role, colocate_* and async_train, adam_offload",
    ),
    RlEngine(
        name="nemo_rl",
        arrangements=("colocated",),
        reward_apart=True,
        source="NeMo RL 0.6.0: GRPO with a reward model environment, which has its own resources",
    ),
)
RL_ENGINES = {engine.name: engine for engine in _RL_ENGINES}
"""By the name in a stage's field `engine`; `native` runs all roles on the same accelerators, with its own layouts."""
