"""What pretraining, fine-tuning and DPO share: one language model, trained on rows, published whole."""

from collections.abc import Callable, Sequence
from typing import Protocol

from charter.spec.layout import Adapter
from charter.spec.stage_parts import Guard
from charter.train.models import TrainedModel
from charter.train.optimizers import OptimizerSettings, make_optimizer
from charter.train.publish import publish_model
from charter.train.schedule import total_steps
from charter.train.setup import Setup
from charter.train.supervised import BatchLoss, SupervisedTask, TrainingSettings
from charter.train.work import count_supervised


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
    SupervisedTask(setup, trained.parallel, optimizer, spec, rows, target, loss_of).train()
    publish_model(setup, trained.parallel, trained.save, target_step=target)
