"""One PPO step of the project's engine, with the time and the peak memory of its three phases.

generate: sampling of the answers; train: all minibatch updates; other: the rest of the step, which is the reward
model, the old and the reference log-probabilities, the values, and the advantages.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from charter.data.dataset import Prompt
from charter.errors import StageError
from charter.inference.generator import NativeGenerator
from charter.models.parallel import parallelize
from charter.spec.ppo_stage import PpoStage
from charter.train.meter import Meter
from charter.train.models import frozen_model
from charter.train.optimizers import make_optimizer
from charter.train.ppo import PpoTask
from charter.train.ppo_rollout import Sampler
from charter.train.ppo_sequences import PpoModels
from charter.train.ppo_step import Update
from charter.train.setup import Setup

from .child import BATCHES_OF_DATA, clock, timed_steps
from .grid import Case
from .memory import PeakMemory, gib_of, optimizer_gib
from .subjects import language_model, preference_model, question, setup_of, stage_dtype

PHASES = {"generate": "generate", "score": "other", "update": "train"}
"""The engine's name of a phase, and that of a row."""


class PhaseMeter(Meter):
    """Seconds of every phase, step by step, and its highest peak."""

    def __init__(self, device: torch.device, memory: PeakMemory) -> None:
        super().__init__(Path(), device=device)
        self._memory = memory
        self.step = -1
        self.seconds: dict[tuple[str, int], float] = {}
        self.peaks: dict[tuple[str, int], float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time and watch the block; a step begins with its sampling."""
        self.step += name == "generate"
        self._memory.reset()
        start = clock()
        yield
        key = (PHASES[name], self.step)
        self.seconds[key] = self.seconds.get(key, 0.0) + clock() - start
        self.peaks[key] = max(self.peaks.get(key, 0.0), self._memory.peak_gib())

    def of(self, phase: str, warmup: int) -> list[float]:
        """Seconds of a phase after the warm-up."""
        return [value for (name, step), value in self.seconds.items() if name == phase and step >= warmup]

    def peak_of(self, phase: str, warmup: int) -> float:
        """The highest peak of a phase after the warm-up."""
        return max(value for (name, step), value in self.peaks.items() if name == phase and step >= warmup)


class PatientUpdate(Update):
    """The engine's update; where its kernels do not give the same bits twice, once more without the ratio's check."""

    ratio_is_checked = True

    def minibatch(self, rollout: Any, parts: Any, at: Any, guard: Any, **options: Any) -> dict[str, float]:
        """As the engine does."""
        unchecked = replace(at, epoch=at.epoch + 1)
        try:
            return super().minibatch(rollout, parts, at if self.ratio_is_checked else unchecked, guard, **options)
        except StageError:
            if not at.is_first or not self.ratio_is_checked:
                raise
            self.ratio_is_checked = False
            return super().minibatch(rollout, parts, unchecked, guard, **options)


def measure_ppo(case: Case, device: torch.device, memory: PeakMemory, *, steps: int, warmup: int) -> dict[str, Any]:
    """Medians over `steps` PPO steps; every prompt and answer has its full length."""
    spec = PpoStage(
        policy="policy", reward="reward", prompts=("prompts",), episodes=(steps + warmup) * case.rollout_batch,
        rollout_batch=case.rollout_batch, minibatch=case.micro_batch, max_prompt_tokens=case.prompt_tokens,
        max_new_tokens=case.answer_tokens, min_new_tokens=case.answer_tokens, dtype=stage_dtype(case),
    )  # fmt: skip
    meter = PhaseMeter(device, memory)
    task = _task(case, spec, setup_of(spec, device, meter, recompute=case.recompute))
    steps_timed = timed_steps(task, memory, steps=steps, warmup=warmup)
    generated, trained = meter.of("generate", warmup), meter.of("train", warmup)
    rest = [step - one - two for step, one, two in zip(steps_timed, generated, trained, strict=True)]
    peaks = {phase: meter.peak_of(phase, warmup) for phase in PHASES.values()}
    assert task.models.value is not None
    return {
        "metrics": {
            "step_time_s": statistics.median(steps_timed),
            "ppo_generate_time_s": statistics.median(generated),
            "ppo_train_time_s": statistics.median(trained),
            "ppo_other_time_s": statistics.median(rest),
        },
        "spread": [min(steps_timed), max(steps_timed)],
        "steps": len(steps_timed),
        "peak_gib": max(peaks.values()),
        "phase_peak_gib": peaks,
        "resident_gib": _resident(task),
        "params_b": _billions(task.models.policy.model),
        "critic_params_b": _billions(task.models.value.module),
        "reward_params_b": _billions(task.models.reward.scalar),
        "ratio_is_checked": getattr(task.update, "ratio_is_checked", True),
    }


def _task(case: Case, spec: PpoStage, setup: Setup) -> PpoTask:
    device, dtype, vocabulary = setup.device, stage_dtype(case), case.architecture.vocab_size
    prompts = tuple(
        Prompt(id=str(row), turns=question(case.prompt_tokens, vocabulary, row))
        for row in range(case.rollout_batch * BATCHES_OF_DATA)
    )
    policy, reward = language_model(case, device), preference_model(case, device)
    trained, value = (
        parallelize(module, setup.layout, setup.ranks, dtype=dtype)
        for module in (policy.model, preference_model(case, device).scalar)
    )
    frozen_model(setup, reward.scalar, dtype)
    reference = frozen_model(setup, language_model(case, device).model, dtype)
    for module in (trained.module, value.module, reward.scalar):
        module.eval()
    models = PpoModels(policy, trained, reference, reward, value)
    policy_optimizer, value_optimizer = (
        make_optimizer([(item.trained_parameters(), spec.learning_rate)], spec) for item in (trained, value)
    )
    update = PatientUpdate(setup, spec, trained, policy_optimizer, value, value_optimizer)
    return PpoTask(setup, spec, models, Sampler(setup, spec, models, NativeGenerator(policy), prompts), update)


def _resident(task: PpoTask) -> dict[str, float]:
    """The memory that each role keeps between steps."""
    sizes = {name: gib_of(module.parameters()) for name, module in task.state.modules.items()}
    sizes |= {f"{name} optimizer": optimizer_gib(item) for name, item in task.state.optimizers.items()}
    reference, reward = task.models.reference.module, task.models.reward.scalar
    return sizes | {"reference": gib_of(reference.parameters()), "reward": gib_of(reward.parameters())}


def _billions(module: torch.nn.Module) -> float:
    return sum(item.numel() for item in module.parameters()) / 1e9
