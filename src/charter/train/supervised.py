"""The loop of every stage that trains one model on fixed data: step, accumulate, clip, log, checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from charter.artifacts.draws import draw_seed
from charter.artifacts.stage_dir import StageDir
from charter.errors import InterruptedRunError, StageError
from charter.models.runtime import seeded
from charter.train.checkpoint import load_state, save_state
from charter.train.schedule import ScheduleSettings, batch_rows, learning_rate_factor

LOGGED_POINTS = 200
"""About how many lines a stage writes to metrics.jsonl."""


class OptimizerSettings(ScheduleSettings, Protocol):
    """The fields of a stage that decide its updates."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def gradient_clip(self) -> float: ...


class TrainingSettings(OptimizerSettings, Protocol):
    """The fields of a stage that decide its batches and updates."""

    @property
    def global_batch(self) -> int: ...


@dataclass
class BatchLoss:
    """What one micro-batch contributes: a summed loss, its number of terms, sums to report, and the work done."""

    loss_sum: Tensor
    terms: float
    sums: Mapping[str, float]
    counters: Mapping[str, int]
    """Tokens read, or pairs compared: what the ledger counts."""


def make_optimizer(
    groups: Sequence[tuple[Sequence[nn.Parameter], float]], settings: OptimizerSettings
) -> torch.optim.AdamW:
    """AdamW with one group per (parameters, learning rate); vectors (norms, biases) are not decayed."""
    entries = []
    for parameters, rate in groups:
        trained = [item for item in parameters if item.requires_grad]
        for chosen, decay in (
            ([item for item in trained if item.ndim > 1], settings.weight_decay),
            ([item for item in trained if item.ndim <= 1], 0.0),
        ):
            if chosen:
                entries.append({"params": chosen, "lr": rate, "peak_lr": rate, "weight_decay": decay})
    return torch.optim.AdamW(entries, betas=(settings.beta1, settings.beta2), eps=1e-8, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


@dataclass
class SupervisedRun:
    """One stage's training: what is trained, on what, and how a micro-batch becomes a loss."""

    stage: StageDir
    module: nn.Module
    optimizer: torch.optim.Optimizer
    settings: TrainingSettings
    rows: int
    target_step: int
    loss_of: Callable[[Sequence[int], int], BatchLoss]
    """(rows of the micro-batch, step) -> its loss."""
    _counters: dict[str, int] = field(default_factory=dict)
    """Work since the last report."""

    def train(self) -> None:
        """Run to the target step, from the newest verified checkpoint if there is one."""
        step = self._resume()
        while step < self.target_step:
            metrics = self._step(step)
            step += 1
            self._report(step, metrics)
            stopping = self.stage.should_stop()
            if step == self.target_step or stopping or step % self.stage.job.spec.checkpoint_every == 0:
                self.stage.save_checkpoint(step, self._save)
            if stopping and step < self.target_step:
                raise InterruptedRunError(f"stopped at step {step} of {self.target_step}, after a checkpoint")

    def _step(self, step: int) -> dict[str, float]:
        job = self.stage.job
        self.module.train()
        set_learning_rate(self.optimizer, learning_rate_factor(step, self.target_step, self.settings))
        rows = batch_rows(
            step,
            rows=self.rows,
            batch=self.settings.global_batch,
            seed=draw_seed(job.seed, job.stage, "order"),
        )
        micro_batch = int(job.frozen.get("micro_batch", 0)) or len(rows)
        parts = [rows[start : start + micro_batch] for start in range(0, len(rows), micro_batch)]
        terms, sums = 0.0, {"loss": 0.0}
        for index, part in enumerate(parts):
            with seeded(draw_seed(job.seed, job.stage, "dropout", step, index)):
                result = self.loss_of(part, step)
                result.loss_sum.backward()  # type: ignore[no-untyped-call]
            terms += result.terms
            sums["loss"] += result.loss_sum.item()
            for name, value in result.sums.items():
                sums[name] = sums.get(name, 0.0) + value
            for name, count in result.counters.items():
                self._counters[name] = self._counters.get(name, 0) + count
        self._update(terms, step, sums["loss"])
        rate = self.optimizer.param_groups[0]["lr"]
        return {name: value / max(terms, 1.0) for name, value in sums.items()} | {"learning_rate": rate}

    def _update(self, terms: float, step: int, loss_sum: float) -> None:
        parameters = [item for item in self.module.parameters() if item.grad is not None]
        for item in parameters:
            assert item.grad is not None
            item.grad.div_(max(terms, 1.0))
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.gradient_clip)
        if not torch.isfinite(norm) or loss_sum != loss_sum:
            raise StageError(
                f"step {step + 1}: the loss or its gradient is not finite "
                f"(loss sum {loss_sum}, norm {norm.item()}); "
                "lower learning_rate or raise warmup_steps; the checkpoints before this step are intact"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _report(self, step: int, metrics: dict[str, float]) -> None:
        every = max(1, self.target_step // LOGGED_POINTS)
        if step % every == 0 or step == self.target_step:
            self.stage.report(step, self.target_step, "step", metrics, self._counters)
            self._counters = {}

    def _save(self, directory: Path) -> None:
        save_state(directory, {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()})

    def _resume(self) -> int:
        checkpoint = self.stage.latest_checkpoint()
        if checkpoint is None:
            return 0
        state = load_state(checkpoint.path)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        return checkpoint.step
