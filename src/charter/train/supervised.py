"""The step of every stage that trains one model on fixed data: accumulate, clip, update."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from charter.artifacts.checkpoints import Position
from charter.models.parallel import Parallel
from charter.models.runtime import seeded
from charter.spec.layout import Adapter
from charter.spec.stage import Guard
from charter.train.loop import DivergenceGuard, Loop, StepReport, publish_model
from charter.train.meter import LOGITS
from charter.train.models import TrainedModel
from charter.train.optimizers import GradientScaler, OptimizerSettings, make_optimizer, set_learning_rate
from charter.train.samples import SampleDrawer, sample_drawer
from charter.train.schedule import ScheduleSettings, batch_rows, learning_rate_factor, total_steps
from charter.train.setup import Setup
from charter.train.state import TrainState
from charter.train.work import count_supervised


class TrainingSettings(ScheduleSettings, Protocol):
    """The fields of a stage that decide its batches and updates."""

    @property
    def global_batch(self) -> int: ...
    @property
    def gradient_clip(self) -> float: ...
    @property
    def dtype(self) -> str: ...
    @property
    def guard(self) -> Guard | None: ...


@dataclass
class BatchLoss:
    """Contribution of one micro-batch: a summed loss, its number of terms, sums to report, and the work done."""

    loss_sum: Tensor
    terms: float
    sums: Mapping[str, float | Tensor]
    counters: Mapping[str, int]
    """Tokens read, or pairs compared: what the ledger counts."""
    logits: int = 0
    """Positions whose logits were computed."""
    extremes: Mapping[str, Tensor] = field(default_factory=dict)
    """Figures of which the least or the largest is reported: their names end in `_min` or `_max`."""

    def fetch(self) -> tuple[float, dict[str, float], dict[str, float]]:
        """The loss, the sums and the extremes as plain numbers, fetched from the device at once."""
        numbers = {name: value for name, value in self.sums.items() if not isinstance(value, Tensor)}
        on_device = {name: value for name, value in self.sums.items() if isinstance(value, Tensor)}
        tensors = [self.loss_sum, *on_device.values(), *self.extremes.values()]
        loss, *values = torch.stack([item.detach().double() for item in tensors]).tolist()
        extremes = dict(zip(self.extremes, values[len(on_device) :], strict=True))
        return loss, {**numbers, **dict(zip(on_device, values[: len(on_device)], strict=True))}, extremes


@dataclass
class SupervisedTask:
    """One stage's training: what is trained, on what, and how a micro-batch becomes a loss."""

    setup: Setup
    parallel: Parallel
    optimizer: torch.optim.Optimizer
    settings: TrainingSettings
    rows: int
    target_step: int
    loss_of: Callable[[Sequence[int], int], BatchLoss]
    """(rows of the micro-batch, step) -> its loss."""
    frozen: Sequence[nn.Module] = ()
    """A reference that DPO reads."""
    samples: SampleDrawer | None = None
    unit: str = "step"
    parts: int = 1
    guard: DivergenceGuard = field(init=False)
    scaler: GradientScaler = field(init=False)
    state: TrainState = field(init=False)

    def __post_init__(self) -> None:
        self.guard = DivergenceGuard(self.settings.guard or Guard())
        self.scaler = GradientScaler(self.settings.dtype, self.setup.device)
        self.state = TrainState(
            modules={"model": self.parallel.module},
            optimizers={"model": self.optimizer},
            plain={"scaler": self.scaler},
        )

    def train(self) -> None:
        """Run to the target step, from the newest verified checkpoint if there is one."""
        Loop(self.setup, self, self.samples).run()

    def warm(self) -> None:
        """Let gradient buckets settle, so that the first step after a resume adds up as any other does."""
        self.parallel.module.train()
        rows = self._micro_batches(self._own_rows(0))[0]
        self.parallel.warm(lambda: self.loss_of(rows, 0).loss_sum)

    def must_save(self, at: Position) -> bool:
        """Steps can be done again."""
        return False

    def run_part(self, at: Position) -> StepReport:
        """One optimizer step."""
        step = at.step
        self.parallel.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        set_learning_rate(self.optimizer, learning_rate_factor(step, self.target_step, self.settings))
        with self.setup.meter.phase("update"):
            sums, extremes, counters = self._accumulate(step)
            totals = self.setup.ranks.total({**sums, **{f"n_{name}": float(n) for name, n in counters.items()}})
            terms = max(totals.pop("terms"), 1.0)
            norm = self._update(step, totals["loss_sum"] / terms, terms)
        counters = {name: int(totals.pop(f"n_{name}")) for name in counters}
        loss = totals.pop("loss_sum") / terms
        self.setup.meter.add({**counters, LOGITS: int(totals.pop(LOGITS))})
        metrics = {name: value / terms for name, value in totals.items()}
        rate = self.optimizer.param_groups[0]["lr"]
        metrics |= self._extremes(extremes)
        metrics |= {"loss": loss, "gradient_norm": norm, "learning_rate": rate}
        if self.guard.skipped:
            metrics["skipped_steps"] = float(self.guard.skipped)
        return StepReport(metrics=metrics, counters=counters, score=-loss)

    def _own_rows(self, step: int) -> list[int]:
        batch = self.settings.global_batch
        rows = batch_rows(self.guard.data_step(step), rows=self.rows, batch=batch, seed=self.setup.seed("order"))
        return self.setup.ranks.share(rows)

    def _micro_batches(self, rows: Sequence[int]) -> list[Sequence[int]]:
        return [rows[start:stop] for start, stop in self.setup.layout.micro_batches(len(rows))]

    def _extremes(self, own: Mapping[str, float]) -> dict[str, float]:
        """The least or the largest over all processes."""
        everyone = self.setup.ranks.gather(own) if own else []
        extremes: dict[str, float] = {}
        for part in everyone:
            keep_extremes(extremes, part)
        return extremes

    def _accumulate(self, step: int) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
        """Forward and backward of every micro-batch: sums, extremes and work; gradients of sums."""
        sums: dict[str, float] = {"terms": 0.0, "loss_sum": 0.0, LOGITS: 0.0}
        extremes: dict[str, float] = {}
        counters: dict[str, int] = {}
        parts = self._micro_batches(self._own_rows(step))
        for index, rows in enumerate(parts):
            self.setup.stage.alive()
            seed = self.setup.seed("dropout", step, index, *self.setup.own_parts())
            last = index == len(parts) - 1
            with contextlib.nullcontext() if last else self.parallel.accumulating(), seeded(seed):
                result = self.loss_of(rows, step)
                self.scaler.scale(result.loss_sum).backward()  # type: ignore[no-untyped-call]
            loss, own_sums, ends = result.fetch()
            sums["terms"] += result.terms
            sums["loss_sum"] += loss
            sums[LOGITS] += result.logits
            for name, value in own_sums.items():
                sums[name] = sums.get(name, 0.0) + value
            keep_extremes(extremes, ends)
            for name, count in result.counters.items():
                counters[name] = counters.get(name, 0) + count
        return sums, extremes, counters

    def _update(self, step: int, loss: float, terms: float) -> float:
        """Turn sums into means, clip, and apply what the guard allows; the gradient's norm before clipping."""
        self.parallel.scale_gradients(self.setup.ranks.data_size / (terms * self.scaler.factor))
        norm = self.parallel.clip(self.settings.gradient_clip).item()
        if math.isfinite(loss) and self.scaler.overflowed(norm):
            self.optimizer.zero_grad(set_to_none=True)
            return norm
        if self.guard.allows(step, loss, norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def keep_extremes(figures: dict[str, float], more: Mapping[str, float]) -> None:
    """Add figures of which the least (`_min`) or the largest (`_max`) is kept."""
    for name, value in more.items():
        keep = min if name.endswith("_min") else max
        figures[name] = keep(figures.get(name, value), value)


class LanguageStage(TrainingSettings, OptimizerSettings, Protocol):
    """A stage that trains a language model."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def epochs(self) -> float | None: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def guard(self) -> Guard | None: ...
    @property
    def adapter(self) -> Adapter | None: ...


def train_and_publish(
    setup: Setup,
    spec: LanguageStage,
    trained: TrainedModel,
    rows: int,
    loss_of: Callable[[Sequence[int], int], BatchLoss],
    *,
    sequences_per_row: float = 1.0,
    reads_reference: bool = False,
) -> None:
    """Train to the target step and publish the model."""
    count_supervised(
        setup,
        trained.model.model.config,
        sequences=spec.global_batch * sequences_per_row,
        has_adapter=spec.adapter is not None,
        reads_reference=reads_reference,
    )
    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=rows, global_batch=spec.global_batch)
    optimizer = make_optimizer([(trained.parallel.trained_parameters(), spec.learning_rate)], spec)
    samples = sample_drawer(setup, trained.model, trained.parallel, dtype=spec.dtype)
    SupervisedTask(setup, trained.parallel, optimizer, spec, rows, target, loss_of, samples=samples).train()
    publish_model(setup, trained.parallel, trained.save, target_step=target)
