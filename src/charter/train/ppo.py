"""The PPO stage: load its models, train the policy against the preference model, publish it."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.inference.generator import Generator, NativeGenerator
from charter.models.language_model import load_language_model
from charter.models.parallel import Parallel, parallelize
from charter.models.preference import PreferenceModel, ScalarModel, load_preference_model
from charter.spec.dataset import read_prompts
from charter.spec.stage import PpoStage
from charter.train.judge_reward import JudgeReward
from charter.train.models import TrainedModel, frozen_model, trained_model
from charter.train.optimizers import make_optimizer
from charter.train.ppo_sampling import Models, Sampler
from charter.train.ppo_task import PpoTask
from charter.train.ppo_update import Update
from charter.train.pretraining_mix import pretraining_mix
from charter.train.publish import publish_model
from charter.train.setup import Setup, set_up
from charter.train.work import count_ppo


def ppo_task(setup: Setup, stack: ExitStack | None = None) -> tuple[PpoTask, TrainedModel]:
    """The task of a PPO stage, its models loaded and its prompts read, and the policy that will be published.

    A judge that gives the reward is given back with `stack`.
    """
    job, spec = setup.job, setup.job.spec
    assert isinstance(spec, PpoStage)
    judge = JudgeReward.open(setup, stack or ExitStack()) if spec.reward_from == "judge" else None
    policy = trained_model(
        setup, load_language_model(job.only("policy").location(), attention=setup.layout.attention), spec
    )
    models = _models(setup, spec, policy)
    if models.reward is not None:
        count_ppo(setup, spec, policy.model.model.config, models.reward.language_model.model.config)
    prompts = tuple(setup.rows("prompts", read_prompts))
    sampler = Sampler(setup, spec, models, _generator(setup, spec, policy), prompts, judge)
    value_optimizer = None
    if models.value is not None:
        value_optimizer = make_optimizer([(models.value.trained_parameters(), spec.value_learning_rate)], spec)
    update = Update(
        setup,
        spec,
        policy.parallel,
        make_optimizer([(policy.parallel.trained_parameters(), spec.learning_rate)], spec),
        models.value,
        value_optimizer,
        pretraining_mix(setup, spec, policy),
    )
    task = PpoTask(setup, spec, models, sampler, update, lambda: _warm(setup, policy, models.value))
    for module in (policy.parallel.module, *task.frozen):
        module.eval()
    return task, policy


def run(stage: StageDir) -> None:
    """Train to the target and publish the policy."""
    setup = set_up(stage)
    with ExitStack() as stack:
        task, policy = ppo_task(setup, stack)
        if task.sampler.generator is not None:
            stack.callback(task.sampler.generator.close)
        task.train()
    publish_model(setup, policy.parallel, policy.save, target_step=task.target_step)


def _models(setup: Setup, spec: PpoStage, policy: TrainedModel) -> Models:
    """The reference starts as the policy, the value model as the preference model, or with a judge as the policy."""
    job, layout, ranks = setup.job, setup.layout, setup.ranks
    reward: PreferenceModel | None = None
    if spec.reward_from == "preference_model":
        reward = load_preference_model(job.only("reward").location(), attention=layout.attention)
        frozen_model(setup, reward.scalar, spec.dtype)
    value: Parallel | None = None
    if spec.has_value_model:
        value = parallelize(_critic(setup, spec), layout, ranks, dtype=spec.dtype)
    start = load_language_model(job.only("policy").location(), attention=layout.attention)
    reference = frozen_model(setup, start.model, spec.dtype)
    return Models(policy.model, policy.parallel, reference, reward, value)


def _critic(setup: Setup, spec: PpoStage) -> ScalarModel:
    """Where the value model starts: the preference model, or the policy with a head that says 0 everywhere."""
    attention = setup.layout.attention
    if spec.reward_from == "preference_model":
        return load_preference_model(setup.job.only("reward").location(), attention=attention).scalar.eval()
    return ScalarModel(load_language_model(setup.job.only("policy").location(), attention=attention)).eval()


def _generator(setup: Setup, spec: PpoStage, policy: TrainedModel) -> Generator | None:
    if spec.generator == "native":
        return NativeGenerator(policy.model, tell=setup.stage.alive)
    if not setup.ranks.is_first:
        return None
    from charter.inference.vllm_generator import VllmGenerator

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
