"""What a checkpoint of a training stage holds: everything that training changes and nothing can be derived from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Stateful(Protocol):
    """A component whose state is plain JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""


@dataclass
class TrainState:
    """The components of one stage by name.

    Randomness is counter-based and data order a function of the step, so neither is here. A component that
    training changes and that is missing here is a bug which the contract test finds.
    """

    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer]
    """One for each trained module, under the module's name."""
    plain: dict[str, Stateful] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that are the same in every process: a rollout in progress. Loading replaces them all."""
