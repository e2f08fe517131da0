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
from charter.models.runtime import on_device, seeded
from charter.spec.layout import Adapter
from charter.spec.stage_base import Guard
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
    def global_batch(self) -> int:
        """Return the rows of an update, over all processes."""

    @property
    def gradient_clip(self) -> float:
        """Return the largest norm of a gradient; a longer one is scaled down to it."""

    @property
    def dtype(self) -> str:
        """Return the number format that it is trained in."""

    @property
    def guard(self) -> Guard | None:
        """Return the guard that skips updates out of the ordinary, if any."""


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

    def counted_elsewhere(self) -> "BatchLoss":
        """The gradient of a loss of complete rows, which another of the processes that share them counts."""
        return BatchLoss(
            self.loss_sum - self.loss_sum.detach(),
            0.0,
            {name: 0.0 * value for name, value in self.sums.items()},
            dict.fromkeys(self.counters, 0),
            extremes=self.extremes,
        )


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
    before_step: Callable[[Sequence[Sequence[int]]], None] | None = None
    """Reads all micro-batches of a step before the first of them, where the loss needs a figure of the whole batch."""
    frozen: Sequence[nn.Module] = ()
    """A reference that DPO reads."""
    samples: SampleDrawer | None = None
    unit: str = "step"
    ahead: int = 0
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
            tally = self._accumulate(step)
            totals = self.setup.ranks.sum(tally.vector())
            totals = self._mean_gradients(totals, totals[tally.names.index("terms")])
            (*values, norm), extremes = tally.read(totals)
            sums = dict(zip(tally.names, values, strict=True))
            terms = max(sums.pop("terms"), 1.0)
            loss = sums.pop("loss_sum") / terms
            self._update(step, loss, norm)
        counters = {name: int(sums.pop(f"n_{name}")) for name in tally.counters}
        self.setup.meter.add({**counters, LOGITS: int(sums.pop(LOGITS))})
        metrics = {name: value / terms for name, value in sums.items()}
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
        return {name: _choice(name)(part[name] for part in everyone) for name in own}

    def _accumulate(self, step: int) -> "Tally":
        """Forward and backward of every micro-batch: sums, extremes and work; gradients of sums."""
        tally = Tally(self.setup.device)
        parts = self._micro_batches(self._own_rows(step))
        if self.before_step is not None:
            self.before_step(parts)
        for index, rows in enumerate(parts):
            self.setup.stage.alive()
            seed = self.setup.seed("dropout", step, index, *self.setup.own_parts())
            last = index == len(parts) - 1
            with contextlib.nullcontext() if last else self.parallel.accumulating(), seeded(seed):
                result = self.loss_of(rows, step)
                self.scaler.scale(result.loss_sum).backward()  # type: ignore[no-untyped-call]
            tally.add(result)
        return tally

    def _mean_gradients(self, totals: Tensor, terms: Tensor) -> Tensor:
        """Turn sums of gradients into means and clip them; `totals` with the norm before clipping behind them."""
        factor = self.setup.ranks.summed_size / (terms.clamp_min(1.0) * self.scaler.factor)
        self.parallel.scale_gradients(factor.float())
        norm = self.parallel.clip(self.settings.gradient_clip)
        return torch.cat([totals, norm.to(totals).view(1)])

    def _update(self, step: int, loss: float, norm: float) -> None:
        """Apply what the guard allows."""
        if math.isfinite(loss) and self.scaler.overflowed(norm):
            self.optimizer.zero_grad(set_to_none=True)
            return
        if self.guard.allows(step, loss, norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Tally:
    """Sums and extremes of a step's micro-batches, which stay on the device until all are read at once.

    Reading a number makes the host wait until the device has computed it; so it is done once in a step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numbers: dict[str, float] = {"terms": 0.0, LOGITS: 0.0}
        self._sums: dict[str, Tensor] = {}
        self._extremes: dict[str, Tensor] = {}
        self.counters: list[str] = []

    def add(self, result: BatchLoss) -> None:
        """Count a micro-batch; sums are in fp64."""
        for name, value in {"loss_sum": result.loss_sum, **result.sums}.items():
            if isinstance(value, Tensor):
                more = value.detach().double()
                self._sums[name] = self._sums[name] + more if name in self._sums else more
            else:
                self._numbers[name] = self._numbers.get(name, 0.0) + value
        for name, value in result.extremes.items():
            own = self._extremes.get(name)
            keep = torch.minimum if _choice(name) is min else torch.maximum
            self._extremes[name] = value.detach() if own is None else keep(own, value.detach())
        self._numbers["terms"] += result.terms
        self._numbers[LOGITS] += result.logits
        self.counters = list(result.counters)
        for name, count in result.counters.items():
            self._numbers[f"n_{name}"] = self._numbers.get(f"n_{name}", 0.0) + count

    @property
    def names(self) -> list[str]:
        """Names of `vector`, in its order."""
        return sorted([*self._numbers, *self._sums])

    def vector(self) -> Tensor:
        """The sums of this process on its device."""
        numbers = on_device(torch.tensor(list(self._numbers.values()), dtype=torch.float64), self._device)
        by_name = {**dict(zip(self._numbers, numbers, strict=True)), **self._sums}
        return torch.stack([by_name[name] for name in self.names])

    def read(self, totals: Tensor) -> tuple[list[float], dict[str, float]]:
        """Return numbers on the device and the extremes of this process as plain ones, read at once."""
        values = torch.cat([totals, *(item.to(totals).view(1) for item in self._extremes.values())]).tolist()
        return values[: len(totals)], dict(zip(self._extremes, values[len(totals) :], strict=True))


def _choice(name: str) -> Callable[..., float]:
    """Return what is reported of a figure: the least (`_min`) or the largest (`_max`)."""
    return min if name.endswith("_min") else max


class LanguageStage(TrainingSettings, OptimizerSettings, Protocol):
    """A stage that trains a language model."""

    @property
    def learning_rate(self) -> float:
        """Return the peak of the schedule."""

    @property
    def epochs(self) -> float | None:
        """Return how often the data are read; None where `steps` says the length."""

    @property
    def steps(self) -> int | None:
        """Return the number of updates; None where `epochs` says the length."""

    @property
    def adapter(self) -> Adapter | None:
        """Return the low-rank adapter to train in place of the weights, if any."""


def train_and_publish(
    setup: Setup,
    spec: LanguageStage,
    trained: TrainedModel,
    rows: int,
    loss_of: Callable[[Sequence[int], int], BatchLoss],
    *,
    sequences_per_row: float = 1.0,
    reads_reference: bool = False,
    before_step: Callable[[Sequence[Sequence[int]]], None] | None = None,
) -> None:
    """Train to the target step and publish the model."""
    count_supervised(
        setup,
        trained.model.model.config,
        sequences=spec.global_batch * sequences_per_row,
        has_adapter=spec.adapter is not None,
        reads_reference=reads_reference,
        reads_before=before_step is not None,
    )
    target = total_steps(epochs=spec.epochs, steps=spec.steps, rows=rows, global_batch=spec.global_batch)
    optimizer = make_optimizer(
        [(trained.parallel.trained_parameters(), spec.learning_rate)], spec, on_host=setup.moments_on_host
    )
    samples = sample_drawer(setup, trained.model, trained.parallel, dtype=spec.dtype)
    task = SupervisedTask(
        setup, trained.parallel, optimizer, spec, rows, target, loss_of, before_step=before_step, samples=samples
    )
    task.train()
    publish_model(setup, trained.parallel, trained.save, target_step=target)
