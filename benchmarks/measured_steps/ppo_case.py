"""One PPO step of the project's engine, with the time and the peak memory of its three phases.

generate: sampling of the answers; train: advantages and all minibatch updates; other: the rest of the step, which is
the reward model, the old and the reference log-probabilities, and the values.
"""

import statistics
from typing import Any

import torch

from charter.errors import StageError
from charter.spec.dataset import Prompt
from charter.spec.stage import PpoStage
from charter.train import ppo
from charter.train.ppo import PpoRun
from charter.train.rollout import Rollout

from .child import BATCHES_OF_DATA, TimedStage, clock
from .grid import Case
from .memory import PeakMemory, gib_of, optimizer_gib
from .subjects import language_model, preference_model, question, recompute_layers, stage_dtype

PHASES = ("generate", "other", "train")


class Phases:
    """Seconds of every phase, step by step, and its highest peak after the warm-up."""

    def __init__(self, memory: PeakMemory) -> None:
        self.memory = memory
        self.seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.peaks: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.started = 0.0

    def start(self) -> None:
        """A phase begins."""
        self.memory.reset()
        self.started = clock()

    def end(self, phase: str) -> None:
        """It ends, and the next one begins."""
        self.seconds[phase].append(clock() - self.started)
        self.peaks[phase].append(self.memory.peak_gib())
        self.start()


class TimedPpo(PpoRun):
    """The engine's PPO with a clock between its phases."""

    phases: Phases
    recompute = False
    ratio_is_checked = True

    def _rollout(self, step: int) -> Rollout:
        self.phases.start()
        rollout = super()._rollout(step)
        self.phases.end("other")
        return rollout

    def _update(self, rollout: Rollout, step: int) -> dict[str, float]:
        self.phases.start()
        for module in (self.policy.model, self.value):
            module.train(self.recompute)
        metrics = super()._update(rollout, step)
        for module in (self.policy.model, self.value):
            module.eval()
        self.phases.end("train")
        return metrics

    def _minibatch(self, *arguments: Any, first: bool, step: int) -> dict[str, float]:
        """As the engine does; where its kernels do not give the same bits twice, once more without that check."""
        try:
            return super()._minibatch(*arguments, first=first and self.ratio_is_checked, step=step)
        except StageError:
            if not first or not self.ratio_is_checked:
                raise
            TimedPpo.ratio_is_checked = False
            return super()._minibatch(*arguments, first=False, step=step)


def measure_ppo(case: Case, device: torch.device, memory: PeakMemory, *, steps: int, warmup: int) -> dict[str, Any]:
    """Medians over `steps` PPO steps; every prompt and answer has its full length."""
    spec = PpoStage(
        policy="policy", reward="reward", prompts=("prompts",), episodes=(steps + warmup) * case.rollout_batch,
        rollout_batch=case.rollout_batch, minibatch=case.micro_batch, max_prompt_tokens=case.prompt_tokens,
        max_new_tokens=case.answer_tokens, min_new_tokens=case.answer_tokens, dtype=stage_dtype(case),
    )  # fmt: skip
    stage = TimedStage(spec, memory, warmup=warmup)
    run = _run(case, spec, stage, device)
    run.phases = phases = Phases(memory)
    run.recompute = case.recompute
    with_clock(phases)
    run.train()
    generated, trained = phases.seconds["generate"][warmup:], phases.seconds["train"][warmup:]
    rest = [whole - one - two for whole, one, two in zip(stage.measured, generated, trained, strict=True)]
    peaks = {phase: max(phases.peaks[phase][warmup:]) for phase in PHASES}
    return {
        "metrics": {
            "step_time_s": statistics.median(stage.measured),
            "ppo_generate_time_s": statistics.median(generated),
            "ppo_train_time_s": statistics.median(trained),
            "ppo_other_time_s": statistics.median(rest),
        },
        "spread": [min(stage.measured), max(stage.measured)],
        "steps": len(stage.measured),
        "peak_gib": max(peaks.values()),
        "phase_peak_gib": peaks,
        "resident_gib": _resident(run),
        "params_b": _billions(run.policy.model),
        "critic_params_b": _billions(run.value),
        "reward_params_b": _billions(run.reward.scalar),
        "ratio_is_checked": TimedPpo.ratio_is_checked,
    }


def with_clock(phases: Phases) -> None:
    """Put the clock around the engine's sampling, which it calls by name from inside the rollout."""
    sample = ppo.generate

    def timed(*arguments: Any, **options: Any) -> Any:
        phases.start()
        answers = sample(*arguments, **options)
        phases.end("generate")
        return answers

    ppo.generate = timed


def _run(case: Case, spec: PpoStage, stage: TimedStage, device: torch.device) -> TimedPpo:
    vocabulary = case.architecture.vocab_size
    prompts = tuple(
        Prompt(id=str(row), turns=question(case.prompt_tokens, vocabulary, row))
        for row in range(case.rollout_batch * BATCHES_OF_DATA)
    )
    policy, value = language_model(case, device), preference_model(case, device).scalar
    if case.recompute:
        recompute_layers(policy.model)
        recompute_layers(value.body)
    return TimedPpo(
        stage=stage,  # type: ignore[arg-type]
        spec=spec,
        policy=policy,
        reference=language_model(case, device),
        reward=preference_model(case, device),
        value=value,
        prompts=prompts,
    )


def _resident(run: PpoRun) -> dict[str, float]:
    """What each role keeps in memory between steps."""
    return {
        "policy": gib_of(run.policy.model.parameters()),
        "policy optimizer": optimizer_gib(run.policy_optimizer),
        "value": gib_of(run.value.parameters()),
        "value optimizer": optimizer_gib(run.value_optimizer),
        "reference": gib_of(run.reference.model.parameters()),
        "reward": gib_of(run.reward.scalar.parameters()),
    }


def _billions(module: torch.nn.Module) -> float:
    return sum(item.numel() for item in module.parameters()) / 1e9
