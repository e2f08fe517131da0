"""PPO as a task of the loop: a step is a rollout and the epochs over it.

All randomness is counter-based, so a checkpoint holds weights, optimizers, the KL controller, and between the
parts of a step the rollout in progress; nothing else is needed to go on bit for bit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from charter.artifacts.position import Position
from charter.spec.stage import PpoStage
from charter.spec.stage_parts import Guard
from charter.train.guard import DivergenceGuard
from charter.train.kl_controller import KlController
from charter.train.loop import Loop, StepReport
from charter.train.losses_policy import stops_update
from charter.train.operations import LOGITS, MINIBATCHES
from charter.train.optimizers import set_learning_rate
from charter.train.ppo_rollout import Rollout
from charter.train.ppo_sampling import Models, Sampler
from charter.train.ppo_update import Place, Update
from charter.train.schedule import learning_rate_factor
from charter.train.setup import Setup
from charter.train.state import TrainState


@dataclass
class RolloutProgress:
    """What the finished epochs over the rollout in progress have measured, and whether the rest are left out."""

    STATE: ClassVar[tuple[str, ...]] = ("sums", "stopped")

    sums: dict[str, float] = field(default_factory=dict)
    stopped: bool = False

    def add(self, sums: Mapping[str, float]) -> None:
        """Add what a minibatch measured; what is not finite belongs to an update that was left out."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + (value if math.isfinite(value) else 0.0)

    def clear(self) -> None:
        """A new rollout."""
        self.sums, self.stopped = {}, False

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs."""
        return {"sums": dict(self.sums), "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.sums, self.stopped = dict(state["sums"]), bool(state["stopped"])


@dataclass
class PpoTask:
    """The models of PPO, what trains them, and the state that training changes."""

    setup: Setup
    spec: PpoStage
    models: Models
    sampler: Sampler
    update: Update
    warm_up: Callable[[], None] = lambda: None
    """One backward pass of every trained model, so that gradient buckets settle before the first update."""
    unit: str = "rollout"
    guard: DivergenceGuard = field(init=False)
    controller: KlController = field(init=False)
    progress: RolloutProgress = field(init=False)
    state: TrainState = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.guard = DivergenceGuard(spec.guard or Guard())
        self.controller = KlController(spec.kl_coefficient, spec.kl_target, spec.kl_horizon)
        self.progress = RolloutProgress()
        self.state = TrainState(
            modules={"policy": self.models.trained.module},
            optimizers={"policy": self.update.policy_optimizer},
            plain={"kl_controller": self.controller, "progress": self.progress, "scaler": self.update.scaler},
        )
        if self.models.value is not None and self.update.value_optimizer is not None:
            self.state.modules["value"] = self.models.value.module
            self.state.optimizers["value"] = self.update.value_optimizer

    @property
    def frozen(self) -> Sequence[nn.Module]:
        """The reference and the reward model; a judge's weights are its own affair."""
        reward = self.models.reward
        return (self.models.reference.module, *(() if reward is None else (reward.scalar,)))

    @property
    def target_step(self) -> int:
        """Rollouts in all."""
        return self.spec.episodes // self.spec.rollout_batch

    @property
    def parts(self) -> int:
        """The rollout, and every epoch over it."""
        return 1 + self.spec.ppo_epochs

    def train(self) -> None:
        """Run to the target, from the newest verified checkpoint if there is one."""
        Loop(self.setup, self).run()

    def warm(self) -> None:
        """Let gradient buckets settle, so that the first update after a resume adds up as any other does."""
        self.warm_up()

    def must_save(self, at: Position) -> bool:
        """A rollout that cannot be sampled again bit for bit is kept as soon as it is there."""
        return at.part == 1 and not self.sampler.is_exact

    def run_part(self, at: Position) -> StepReport | None:
        """Sample a rollout, or go once over it; the report after the last epoch."""
        if at.part == 0:
            self._sample(at.step)
            return None
        if not self.progress.stopped:
            self._epoch(at.step, at.part - 1)
        return self._finish(at.step) if at.part == self.spec.ppo_epochs else None

    def _sample(self, step: int) -> None:
        self.progress.clear()
        rollout = self.sampler.sample(step, self.guard.data_step(step), kl_coefficient=self.controller.coefficient)
        self.state.buffers.clear()
        self.state.buffers.update(rollout.to_buffers(self.setup.ranks))

    def _rollout(self) -> Rollout:
        return Rollout.from_buffers(self.state.buffers, self.setup.ranks)

    def _epoch(self, step: int, epoch: int) -> None:
        factor = learning_rate_factor(step, self.target_step, self.spec)
        for optimizer in (self.update.policy_optimizer, self.update.value_optimizer):
            if optimizer is not None:
                set_learning_rate(optimizer, factor)
        rollout = self._rollout()
        with self.setup.meter.phase("update"):
            before = dict(self.progress.sums)
            for number, parts in enumerate(self.sampler.micro_batches(step, epoch)):
                place = Place(step, epoch, number)
                coefficient = self.controller.coefficient
                found = self.update.minibatch(rollout, parts, place, self.guard, kl_coefficient=coefficient)
                self.progress.add(found)
        moved = self.progress.sums["update_kl"] - before.get("update_kl", 0.0)
        count = self.progress.sums["minibatches"] - before.get("minibatches", 0.0)
        self.progress.stopped = stops_update(moved / count, self.spec.stop_update_kl)

    def _finish(self, step: int) -> StepReport:
        """Adapt the KL coefficient, and put together what the rollout and its epochs have measured."""
        rollout, answers = self._rollout(), self.spec.rollout_batch
        totals = self.setup.ranks.total(rollout.sums(kl_estimator=self.spec.kl_estimator))
        tokens = int(totals.pop("tokens"))
        sums = dict(self.progress.sums)
        count = max(sums.pop(MINIBATCHES), 1.0)
        metrics = {name: value / count for name, value in sums.items()}
        metrics |= {name: value / answers for name, value in totals.items()}
        charged = 0.0 if self.spec.estimator == "grpo" else self.controller.coefficient
        metrics["kl_reward"] = -charged * metrics.pop("kl_penalty")
        metrics["total_reward"] = metrics["reward_mean"] + metrics["kl_reward"]
        metrics["end_tokens"] = totals["ended_share"]
        metrics["kl_coefficient"] = self.controller.coefficient
        metrics["learning_rate"] = self.update.policy_optimizer.param_groups[0]["lr"]
        self.controller.update(kl_nats=metrics["kl"], answers=answers)
        self.state.buffers.clear()
        self.progress.clear()
        counters = {"episodes": answers, "tokens": tokens}
        self.setup.meter.add({**counters, LOGITS: int(totals["response_tokens"]), MINIBATCHES: int(count)})
        return StepReport(metrics=metrics, counters=counters, score=metrics["reward_mean"])
