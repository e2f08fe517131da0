"""The PPO stage: load its models, train the policy against the preference model, publish it."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from charter.artifacts.checkpoints import Position
from charter.artifacts.sample_prompts import read_sample_prompts
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import read_prompts
from charter.errors import DataError, StageError
from charter.inference.generator import Generator, NativeGenerator
from charter.inference.limited import Failed
from charter.inference.score import score_answers
from charter.inference.turns import Tools, TurnTaking
from charter.models.language_model import LanguageModel
from charter.models.parallel import Parallel, parallelize
from charter.models.preference import PreferenceModel, ScalarModel, load_preference_model
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import ENVIRONMENT_SOURCES, REWARD_SOURCES, Environment, Reward
from charter.spec.stage_base import Guard
from charter.tracking.overoptimisation import OveroptimisationWatch, forget_alarm, rollout_means
from charter.train.judge_reward import JudgeReward, judge_score
from charter.train.loop import DivergenceGuard, Loop, StepReport, publish_model
from charter.train.meter import LOGITS, MINIBATCHES
from charter.train.models import TrainedModel, frozen_model, reads_parts, stage_model, trained_model
from charter.train.optimizers import make_optimizer, set_learning_rate
from charter.train.ppo_answers import Flight
from charter.train.ppo_math import stops_update
from charter.train.ppo_rollout import Rollout, Sampler
from charter.train.ppo_sequences import PpoModels
from charter.train.ppo_step import MinibatchPosition, Update
from charter.train.pretraining_mix import pretraining_mix
from charter.train.rewards.mixture import (
    DIRECTORY,
    Answer,
    FunctionReward,
    RewardList,
    Score,
    environment_score,
    own_file,
    reward_metrics,
)
from charter.train.samples import sample_drawer
from charter.train.schedule import KlController, learning_rate_factor
from charter.train.setup import Setup, set_up
from charter.train.state import TrainState
from charter.train.work import count_ppo


@dataclass
class RolloutProgress:
    """Measures of the finished epochs over the rollout in progress, and whether the rest are left out."""

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
        """Return the state that a resume needs."""
        return {"sums": dict(self.sums), "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.sums, self.stopped = dict(state["sums"]), bool(state["stopped"])


@dataclass
class PpoTask:
    """The models of PPO, what trains them, and the state that training changes."""

    setup: Setup
    spec: PpoStage
    models: PpoModels
    sampler: Sampler
    update: Update
    warm_up: Callable[[], None] = lambda: None
    """One backward pass of every trained model, so that gradient buckets settle before the first update."""
    unit: str = "rollout"
    guard: DivergenceGuard = field(init=False)
    controller: KlController = field(init=False)
    progress: RolloutProgress = field(init=False)
    watch: OveroptimisationWatch = field(init=False)
    state: TrainState = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.guard = DivergenceGuard(spec.guard or Guard())
        self.controller = KlController(spec.kl_coefficient, spec.kl_target, spec.kl_horizon)
        self.progress, self.watch = RolloutProgress(), OveroptimisationWatch()
        self.state = TrainState(
            modules={"policy": self.models.trained.module},
            optimizers={"policy": self.update.policy_optimizer},
            plain={"kl_controller": self.controller, "progress": self.progress, "scaler": self.update.scaler},
        )
        if spec.gold is not None:
            self.state.plain["overoptimisation"] = self.watch
        if self.models.value is not None and self.update.value_optimizer is not None:
            self.state.modules["value"] = self.models.value.module
            self.state.optimizers["value"] = self.update.value_optimizer

    @property
    def frozen(self) -> Sequence[nn.Module]:
        """The reference and the reward model, where there are any; a judge's weights are its own affair."""
        reference, reward = self.models.reference, self.models.reward
        readers = (reference, self.models.teacher)
        scorers = () if reward is None else (reward.scalar,)
        return (*(item.module for item in readers if item is not None), *scorers)

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
        spec, models = self.spec, self.models
        generates = spec.generator == "native"
        samples = sample_drawer(self.setup, models.policy, models.trained, dtype=spec.dtype, generates=generates)
        Loop(self.setup, self, samples).run()

    def warm(self) -> None:
        """Let gradient buckets settle, so that the first update after a resume adds up as any other does."""
        self.warm_up()

    def must_save(self, at: Position) -> bool:
        """A rollout that cannot be sampled again bit for bit is kept as soon as it is there."""
        return at.part == 1 and not self.sampler.is_exact

    def run_part(self, at: Position) -> StepReport | None:
        """Sample a rollout, or go once over it; the report after the last epoch."""
        if self.spec.gold is not None and self.watch.alarm is None and self.setup.ranks.is_first:
            forget_alarm(self.setup.stage.path)
        if at.part == 0:
            self._sample(at.step)
            return None
        rollout = self._rollout()
        if not self.progress.stopped:
            self._epoch(rollout, at.step, at.part - 1)
        return self._finish(rollout, at.step) if at.part == self.spec.ppo_epochs else None

    @property
    def ahead(self) -> int:
        """Rollouts that are drawn before the step that learns from them."""
        return self.spec.ahead

    def _sample(self, step: int) -> None:
        """Take up the rollout that was drawn ahead, or draw one; then draw the next by the same weights."""
        self.progress.clear()
        if self.spec.asynchrony == "in_flight":
            self._keep(self._landed(step))
            return
        rollout = self._ahead() or self._drawn(step)
        self._keep(rollout)
        later = step + self.ahead
        if step < later < self.target_step:
            self.state.buffers.update({AHEAD + name: value for name, value in self._drawn(later).items()})

    def _drawn(self, step: int) -> dict[str, Tensor]:
        """The rollout of a step by the weights as they are now, with old log-probabilities and values of them."""
        rollout = self.sampler.sample(step, self.guard.data_step(step), kl_coefficient=self.controller.coefficient)
        return rollout.to_buffers(self.setup.ranks)

    def _landed(self, step: int) -> dict[str, Tensor]:
        """The rollout of a step, and those behind it as far as the weights may draw them."""
        ranks, guard, buffers = self.setup.ranks, self.guard, dict[str, Tensor]()
        before = self._ahead()
        for later in range(step, min(step + self.ahead + 1, self.target_step)):
            begins = f"{later}."
            own = {name.removeprefix(begins): value for name, value in before.items() if name.startswith(begins)}
            flight = Flight.from_buffers(own, ranks) if own else None
            data_step = guard.data_step(later)
            flight = self.sampler.advance(flight, later, data_step, version=step)
            if later == step:
                coefficient = self.controller.coefficient
                rollout = self.sampler.land(flight, step, data_step, kl_coefficient=coefficient)
                buffers.update(rollout.to_buffers(ranks))
            else:
                buffers.update({f"{AHEAD}{begins}{name}": value for name, value in flight.to_buffers(ranks).items()})
        return buffers

    def _ahead(self) -> dict[str, Tensor]:
        buffers = self.state.buffers.items()
        return {name.removeprefix(AHEAD): value for name, value in buffers if name.startswith(AHEAD)}

    def _keep(self, buffers: Mapping[str, Tensor]) -> None:
        """Hold these buffers and no others."""
        self.state.buffers.clear()
        self.state.buffers.update(buffers)

    def _rollout(self) -> Rollout:
        own = {name: value for name, value in self.state.buffers.items() if not name.startswith(AHEAD)}
        return Rollout.from_buffers(own, self.setup.ranks)

    def _epoch(self, rollout: Rollout, step: int, epoch: int) -> None:
        factor = learning_rate_factor(step, self.target_step, self.spec)
        for optimizer in (self.update.policy_optimizer, self.update.value_optimizer):
            if optimizer is not None:
                set_learning_rate(optimizer, factor)
        with self.setup.meter.phase("update"):
            before = dict(self.progress.sums)
            for number, parts in enumerate(self.sampler.micro_batches(step, epoch)):
                place = MinibatchPosition(step, epoch, number)
                coefficient = self.controller.coefficient
                measures = self.update.minibatch(rollout, parts, place, self.guard, kl_coefficient=coefficient)
                self.progress.add(measures)
        moved = self.progress.sums["update_kl"] - before.get("update_kl", 0.0)
        count = self.progress.sums["minibatches"] - before.get("minibatches", 0.0)
        self.progress.stopped = stops_update(moved / count, self.spec.stop_update_kl)

    def _finish(self, rollout: Rollout, step: int) -> StepReport:
        """Adapt the KL coefficient, and put together what the rollout and its epochs have measured."""
        spec, answers, samples = self.spec, self.spec.rollout_batch, self.spec.samples_per_prompt
        weights = [item.weight for item in spec.rewards]
        own = rollout.sums(kl_estimator=spec.kl_estimator, weights=weights, samples=samples)
        totals = self.setup.ranks.total(own)
        rewards = self.setup.ranks.total(rollout.reward_sums([item.name for item in spec.rewards]))
        tokens, rated = int(totals.pop("tokens")), totals.pop("rated")
        mismatch, versions = totals.pop("mismatch_kl", None), totals.pop("versions", None)
        sums = dict(self.progress.sums)
        count = max(sums.pop(MINIBATCHES), 1.0)
        metrics = {name: value / count for name, value in sums.items()}
        metrics |= {name: value / answers for name, value in totals.items()}
        metrics["reward_mean"] = totals["reward_mean"] / rated if rated else math.nan
        if "equal_groups" in metrics:
            metrics["equal_groups"] *= samples
        if mismatch is not None:
            metrics["mismatch_kl_per_token"] = mismatch / max(totals["response_tokens"], 1.0)
        metrics |= reward_metrics([item.name for item in spec.rewards], rewards, answers)
        if spec.gold is not None:
            metrics["overoptimised"] = float(self._is_overoptimised(rollout, spec.gold))
        charged = 0.0 if spec.has_kl_loss else self.controller.coefficient
        metrics["kl_reward"] = -charged * metrics.pop("kl_penalty", 0.0)
        metrics["total_reward"] = metrics["reward_mean"] + metrics["kl_reward"]
        metrics["end_tokens"] = totals["ended_share"]
        metrics["kl_coefficient"] = self.controller.coefficient
        metrics["learning_rate"] = self.update.policy_optimizer.param_groups[0]["lr"]
        self.controller.update(kl_nats=metrics.get("kl", 0.0), answers=answers)
        if self.ahead:
            oldest = float(spec.version_of(step))
            drew = oldest if versions is None else versions / max(totals["response_tokens"], 1.0)
            metrics["rollout_age"] = step - drew
        self._keep({AHEAD + name: value for name, value in self._ahead().items()})
        self.progress.clear()
        counters = {"episodes": answers, "tokens": tokens}
        self.setup.meter.add({**counters, LOGITS: int(totals["response_tokens"]), MINIBATCHES: int(count)})
        score = metrics["reward_mean"] if spec.teacher is None else -metrics["teacher_kl"]
        return StepReport(metrics=metrics, counters=counters, score=score)

    def _is_overoptimised(self, rollout: Rollout, gold: str) -> bool:
        """Look at one rollout more; the first alarm is written down, and ends the stage where the file says so.

        A stage that goes on from a checkpoint before the alarm raises it again: nothing is forgotten by a restart.
        """
        sums = self.setup.ranks.total(_watched_sums(rollout, self.spec.rewards, gold, self.spec.samples_per_prompt))
        means = rollout_means(sums)
        alarm = None if means is None else self.watch.look(means)
        if alarm is not None and self.setup.ranks.is_first:
            alarm.write(self.setup.stage.path, gold=gold)
        if self.watch.alarm is not None and self.spec.on_overoptimisation == "stop":
            raise StageError(self.watch.alarm.stopped)
        return self.watch.alarm is not None


def _watched_sums(rollout: Rollout, rewards: Sequence[Reward], gold: str, samples: int) -> dict[str, float]:
    """Sums over the groups that have all their scores, and of the gold over the answers too, where it applied."""
    assert rollout.reward_BK is not None
    place = [item.name for item in rewards].index(gold)
    gold_GS = rollout.reward_BK[:, place].double().view(-1, samples)
    score_GS = rollout.score_B.double().view(-1, samples)
    sound_GS = rollout.sound_B([item.weight for item in rewards], samples=samples).view(-1, samples)
    rated_GS = ~gold_GS.isnan() & sound_GS
    group_G = rated_GS.any(1)
    gold_GS = torch.where(rated_GS, gold_GS, 0.0)
    gold_G = (gold_GS.sum(1) / rated_GS.sum(1).clamp_min(1))[group_G]
    reward_G = score_GS.mean(1)[group_G]
    return {
        "groups": float(group_G.sum()),
        "answers": float(rated_GS.sum()),
        "reward": float(reward_G.sum()),
        "reward_square": float((reward_G**2).sum()),
        "gold": float(gold_G.sum()),
        "gold_square": float((gold_G**2).sum()),
        "gold_answers": float(gold_GS.sum()),
        "gold_answers_square": float((gold_GS**2).sum()),
    }


AHEAD = "ahead."
"""Begins the names of the buffers of rollouts whose step is yet to come."""


def ppo_task(setup: Setup, stack: ExitStack | None = None) -> tuple[PpoTask, TrainedModel]:
    """The task of a PPO stage, its models loaded and its prompts read, and the policy that will be published.

    A judge that gives the reward is given back with `stack`.
    """
    spec = setup.job.spec_as(PpoStage)
    stack = stack or ExitStack()
    if spec.asynchrony == "in_flight" and spec.generator != "native" and setup.ranks.world_size > 1:
        raise DataError("asynchrony: in_flight with a generator beside the trainer runs in one process")
    judges = JudgeReward.open(setup, spec, stack)
    policy = trained_model(setup, _policy(setup), spec)
    models = _models(setup, spec, policy)
    if models.reward is not None:
        count_ppo(setup, spec, policy.model.model.config, models.reward.language_model.model.config)
    prompts = tuple(setup.rows("prompts", read_prompts))
    rewards = open_rewards(setup, spec, models, judges, stack) if spec.rewards else None
    judge = None if spec.rewards else next(iter(judges.values()), None)
    turns = None if spec.environment is None else _turns(setup, spec, spec.environment, policy, stack)
    shows = read_sample_prompts(setup.stage.path) is not None
    sampler = Sampler(setup, spec, models, _generator(setup, spec, policy), prompts, judge, rewards, turns, shows)
    value_optimizer = None
    if models.value is not None:
        value_rate = [(models.value.trained_parameters(), spec.value_learning_rate)]
        value_optimizer = make_optimizer(value_rate, spec, on_host=setup.moments_on_host)
    update = Update(
        setup,
        spec,
        policy.parallel,
        make_optimizer(
            [(policy.parallel.trained_parameters(), spec.learning_rate)], spec, on_host=setup.moments_on_host
        ),
        models.value,
        value_optimizer,
        pretraining_mix(setup, spec, policy),
        models.teacher,
    )
    task = PpoTask(setup, spec, models, sampler, update, lambda: _warm(setup, policy, models.value))
    for module in (policy.parallel.module, *task.frozen):
        module.eval()
    return task, policy


def open_rewards(
    setup: Setup, spec: PpoStage, models: PpoModels, judges: Mapping[str, JudgeReward], stack: ExitStack
) -> RewardList:
    """Open the list of rewards of a stage, its functions in processes that `stack` ends."""
    if setup.ranks.world_size != setup.ranks.data_size:
        raise DataError("`rewards` runs where every process has answers of its own; give the stage tensor: 1")
    sources = [(item.name, item.location()) for item in setup.job.inputs.get(REWARD_SOURCES, ())]

    def preferred(answers: Sequence[Answer]) -> list[float | Failed | None]:
        assert models.reward is not None
        groups = None if setup.ranks.world_size == 1 else 1
        conversations = [(answer.conversation, answer.text) for answer in answers]
        scores = score_answers(models.reward, conversations, dtype=spec.dtype, groups=groups).tolist()
        return [score if math.isfinite(score) else Failed(f"the score is {score}") for score in scores]

    def opened(item: Reward) -> Score:
        match item.kind:
            case "function":
                return FunctionReward.open(item, own_file(item, sources), stack)
            case "judge":
                return judge_score(item, judges[str(item.model)], samples=spec.samples_per_prompt)
            case "preference_model":
                return preferred
            case "env":
                return lambda answers: [environment_score(answer, item.score) for answer in answers]

    return RewardList(
        spec.rewards,
        tuple(opened(item) for item in spec.rewards),
        setup.stage.path / DIRECTORY,
        spec.max_failed_share,
        all_have=lambda stored: not setup.ranks.any(not stored),
        group=spec.samples_per_prompt,
        spent=lambda: sum(judge.settled_micro_usd() for judge in judges.values()),
    )


def _turns(
    setup: Setup, spec: PpoStage, environment: Environment, policy: TrainedModel, stack: ExitStack
) -> TurnTaking:
    """Open the tools of a stage; `stack` ends their processes."""
    if spec.generator != "native" and setup.ranks.world_size > 1:
        raise DataError("`environment` with a generator beside the trainer runs in one process")
    sources = [(item.name, item.location()) for item in setup.job.inputs.get(ENVIRONMENT_SOURCES, ())]
    return TurnTaking(environment, Tools.open(environment, sources, stack), policy.model, spec.max_prompt_tokens)


def run(stage: StageDir) -> None:
    """Train to the target and publish the policy."""
    setup = set_up(stage)
    with ExitStack() as stack:
        task, policy = ppo_task(setup, stack)
        if task.sampler.generator is not None:
            stack.callback(task.sampler.generator.close)
        task.train()
    publish_model(setup, policy.parallel, policy.save, target_step=task.target_step)


def _models(setup: Setup, spec: PpoStage, policy: TrainedModel) -> PpoModels:
    """The reference starts as the policy, the value model as the preference model, or without one as the policy."""
    reward: PreferenceModel | None = None
    if spec.preference_model is not None:
        reward = _reward(setup)
        frozen_model(setup, reward.scalar, spec.dtype, weights=reward.language_model.source)
    value: Parallel | None = None
    if spec.has_value_model:
        critic, source = _critic(setup, spec)
        value = parallelize(critic, setup.layout, setup.ranks, dtype=spec.dtype, weights=source)
    reference: Parallel | None = None
    if spec.has_reference:
        start = _policy(setup)
        reference = frozen_model(setup, start.model, spec.dtype, weights=start.source)
    return PpoModels(policy.model, policy.parallel, reference, reward, value, _teacher(setup, spec, policy))


def _teacher(setup: Setup, spec: PpoStage, policy: TrainedModel) -> Parallel | None:
    """The frozen teacher; one whose tokens are not the policy's cannot rate them."""
    if spec.teacher is None:
        return None
    teacher = stage_model(setup, role="teacher")
    if teacher.tokenizer.get_vocab() != policy.model.tokenizer.get_vocab():
        raise DataError(
            f"the teacher {spec.teacher!r} has another tokenizer than the policy: its tokens are not theirs"
        )
    return frozen_model(setup, teacher.model, spec.dtype, weights=teacher.source)


def _policy(setup: Setup) -> LanguageModel:
    return stage_model(setup, role="policy")


def _reward(setup: Setup) -> PreferenceModel:
    where = setup.job.only("reward").location()
    return load_preference_model(where, attention=setup.layout.attention, empty=reads_parts(setup))


def _critic(setup: Setup, spec: PpoStage) -> tuple[ScalarModel, Path | None]:
    """Return the initial value model: the preference model, or the policy with a head that says 0 everywhere.

    With it comes the directory that fills it, where it has no weights yet.
    """
    if spec.preference_model is not None:
        reward = _reward(setup)
        return reward.scalar.eval(), reward.language_model.source
    policy = _policy(setup)
    return ScalarModel(policy).eval(), policy.source


def _generator(setup: Setup, spec: PpoStage, policy: TrainedModel) -> Generator | None:
    if spec.generator == "native":
        return NativeGenerator(policy.model, at_once=setup.layout.decode_batch, tell=setup.stage.alive)
    if not setup.ranks.is_first:
        return None
    from charter.inference.generator import VllmGenerator

    return VllmGenerator(policy.model, setup.stage.path, dtype=spec.dtype)


def _warm(setup: Setup, policy: TrainedModel, value: Parallel | None) -> None:
    """One backward pass of every trained model over two tokens."""
    ids_BT = torch.zeros((1, 2), dtype=torch.long, device=setup.device)
    runs: list[tuple[Parallel, Callable[[], Tensor]]] = [(policy.parallel, lambda: policy.any_loss(ids_BT))]
    if value is not None:
        runs.append((value, lambda: value.call(ids_BT, None).sum()))
    for parallel, run_once in runs:
        parallel.warm(run_once)


if __name__ == "__main__":
    stage_main(run)
