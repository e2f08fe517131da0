"""The models of a stage: fresh or read from a directory, spread as the layout says, saved whole."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job, JobInput, stage_rows
from charter.data.dataset import each_text
from charter.errors import DataError
from charter.models.adapters import add_adapter, published_weights, save_adapter
from charter.models.chat import train_tokenizer
from charter.models.language_model import LanguageModel, new_language_model, open_language_model, set_dropout
from charter.models.parallel import Parallel, parallelize
from charter.models.token_forward import token_losses
from charter.spec.layout import WHOLE_BITS, Adapter
from charter.train.setup import Setup

ADAPTER = "adapter"


class ModelSettings(Protocol):
    """The fields of a stage that decide what of a model is trained, and in which precision."""

    @property
    def dtype(self) -> str:
        """Return the number format that it is trained in."""

    @property
    def adapter(self) -> Adapter | None:
        """Return the low-rank adapter to train in place of the weights, if any."""


@dataclass(frozen=True)
class TrainedModel:
    """A language model that a stage trains."""

    model: LanguageModel
    parallel: Parallel
    adapter: Adapter | None

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the model from whole weights; of an adapter, the merged model and the adapter beside it."""
        self.model.save(path, published_weights(self.parallel.module, weights, self.adapter))
        if self.adapter is not None:
            save_adapter(path.parent / ADAPTER, weights, self.model.model, self.adapter)

    def any_loss(self, ids_BT: Tensor) -> Tensor:
        """Some loss of some tokens, for what only needs a backward pass."""
        return token_losses(self.parallel.call, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)).loss_sum


def trained_model(setup: Setup, model: LanguageModel, spec: ModelSettings, *, dropout: float = 0.0) -> TrainedModel:
    """A language model made ready to be trained: dropout, adapter, its place on the processes."""
    set_dropout(model.model, dropout)
    if spec.adapter is not None:
        add_adapter(model.model, spec.adapter, seed=setup.seed("adapter"))
    parallel = parallelize(model.model, setup.layout, setup.ranks, dtype=spec.dtype, weights=model.source)
    return TrainedModel(model, parallel, spec.adapter)


def frozen_model(setup: Setup, module: nn.Module, dtype: str, *, weights: Path | None = None) -> Parallel:
    """A model that only reads: a reference, a reward model; an empty one is filled from the directory `weights`."""
    return parallelize(module.eval(), setup.layout, setup.ranks, dtype=dtype, trained=False, weights=weights)


def reads_parts(setup: Setup) -> bool:
    """Return True if no process of a stage loads a whole model on its host: each reads what it will hold.

    A base in 8 or 4 bits is made from whole matrices; on processors a whole copy is what each process holds anyway.
    """
    adapter: Adapter | None = getattr(setup.job.spec, "adapter", None)
    if adapter is not None and adapter.base_bits != WHOLE_BITS:
        return False
    return setup.device.type == "cuda" or setup.layout.zero > 0 or setup.layout.tensor > 1


def stage_model(setup: Setup, *, role: str = "init") -> LanguageModel:
    """The language model that a stage starts from; empty until it is spread where each process reads its own parts."""
    return starting_model(setup.job, role=role, attention=setup.layout.attention, empty=reads_parts(setup))


def starting_model(job: Job, *, role: str = "init", attention: str = "sdpa", empty: bool = False) -> LanguageModel:
    """The language model named by `role`; one that is only described has fresh weights, never none."""
    item = job.only(role)
    if item.model is not None and item.model.architecture is not None:
        return _fresh_model(job, item, attention)
    return open_language_model(item.location(), attention=attention, empty=empty)


def _fresh_model(job: Job, item: JobInput, attention: str) -> LanguageModel:
    model = item.model
    assert model is not None
    assert model.architecture is not None
    if model.tokenizer is None:
        raise DataError(
            f"model {item.name!r} is an architecture without a tokenizer; add `tokenizer: {{train_on: [...]}}`"
        )
    wanted = tuple(item for item in job.inputs.get("tokenizer", ()) if item.name in model.tokenizer.train_on)
    tokenizer_job = replace(job, inputs={"tokenizer": wanted})
    texts = [turn.content for item in stage_rows(tokenizer_job, "tokenizer", each_text)[0] for turn in item.turns]
    if not texts:
        raise DataError(
            f"model {item.name!r}: none of {', '.join(model.tokenizer.train_on)} has text for the tokenizer"
        )
    tokenizer = train_tokenizer(texts, vocab_size=model.tokenizer.vocab_size)
    seed = draw_seed(job.seed, "weights", item.role)
    return new_language_model(model.architecture, tokenizer, seed=seed, attention=attention)
