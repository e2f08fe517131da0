"""Optimizers, and the scale of losses in half precision."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from charter.errors import StageError, needing
from charter.models.parallel import own_part
from charter.physics.memory_profiles import VISITING_BYTES

EPSILON = 1e-8
"""Of Adam's denominator (Kingma and Ba 2014, algorithm 1)."""
FIRST_SCALE, GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0**16, 2.0, 0.5, 2000
"""Dynamic loss scaling as in Micikevicius et al. 2017 (arXiv:1710.03740), section 3.2; the values are torch's."""
SMALLEST_SCALE = 1.0


class OptimizerSettings(Protocol):
    """The fields of a stage that decide its optimizer."""

    @property
    def weight_decay(self) -> float:
        """Return the share that decoupled decay takes off the weights, times the learning rate."""

    @property
    def beta1(self) -> float:
        """Return the decay of Adam's first moment per step."""

    @property
    def beta2(self) -> float:
        """Return the decay of Adam's second moment per step."""

    @property
    def optimizer(self) -> str:
        """Return the name of the optimizer."""


def make_optimizer(
    groups: Sequence[tuple[Sequence[nn.Parameter], float]], settings: OptimizerSettings, *, on_host: bool = False
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay, a group per (parameters, learning rate), its state made already.

    Vectors (norms, biases) are not decayed. `adamw_8bit` keeps moments in 8 bits; `on_host` keeps them in host memory.
    """
    entries: list[dict[str, Any]] = []
    for parameters, rate in groups:
        trained = [item for item in parameters if item.requires_grad]
        for chosen, decay in (
            ([item for item in trained if item.ndim > 1], settings.weight_decay),
            ([item for item in trained if item.ndim <= 1], 0.0),
        ):
            if chosen:
                entries.append({"params": chosen, "lr": rate, "peak_lr": rate, "weight_decay": decay})
    if not entries:
        raise StageError("nothing to train: no parameter has gradients")
    betas = (settings.beta1, settings.beta2)
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adamw_8bit":
        if on_host:
            raise StageError(
                "offload optimizer is for adamw; with adamw_8bit, whose moments are small, use offload none"
            )
        optimizer = _eight_bit(entries, betas)
    else:
        kind = HostMoments if on_host else torch.optim.AdamW
        optimizer = kind(entries, betas=betas, eps=EPSILON, fused=True)
    materialise_state(optimizer)
    return optimizer


MOMENTS = ("exp_avg", "exp_avg_sq")


class HostMoments(torch.optim.AdamW):
    """AdamW whose moments stay in host memory, and come to the device for their step, those of some weights at a time.

    The same kernel on the same device as without, over the same numbers: the update has the same bits.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient; moments are back on the host when this returns."""
        groups, device = self.param_groups, torch.device("cpu")
        try:
            for group in groups:
                weights = [item for item in group["params"] if item.grad is not None]
                for part in _visits(weights):
                    device = weights[0].device
                    self.param_groups = [{**group, "params": weights[part]}]
                    with self._visiting(weights[part]):
                        super().step()
        finally:
            self.param_groups = groups
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    @contextlib.contextmanager
    def _visiting(self, weights: Sequence[nn.Parameter]) -> Iterator[None]:
        """Moments of some weights beside them; what the device queues is in the order of one stream."""
        at_home = [{name: self.state[weight][name] for name in MOMENTS} for weight in weights]
        for weight, moments in zip(weights, at_home, strict=True):
            device = own_part(weight).device
            visitors = {
                name: own_part(value).to(device, non_blocking=True, copy=True) for name, value in moments.items()
            }
            self.state[weight].update({name: _spread_as(weight, value) for name, value in visitors.items()})
        try:
            yield
            for weight, moments in zip(weights, at_home, strict=True):
                for name, value in moments.items():
                    own_part(value).copy_(own_part(self.state[weight][name]), non_blocking=True)
        finally:
            for weight, moments in zip(weights, at_home, strict=True):
                self.state[weight].update(moments)


def _visits(weights: Sequence[nn.Parameter]) -> list[slice]:
    """Runs of weights whose moments are beside them at once."""
    sizes = [len(MOMENTS) * own_part(weight).nbytes for weight in weights]
    runs, begin, size = [], 0, 0.0
    for place, more in enumerate(sizes):
        if place > begin and size + more > VISITING_BYTES:
            runs.append(slice(begin, place))
            begin, size = place, 0.0
        size += more
    return [*runs, slice(begin, len(sizes))] if sizes else []


def _host_zeros(weight: nn.Parameter) -> Tensor:
    """Return zeros like a weight in host memory; of a GPU in such as it reads and writes without the processor."""
    local = own_part(weight.detach())
    zeros = torch.zeros(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
    return _spread_as(weight, zeros)


def _spread_as(weight: nn.Parameter, local: Tensor) -> Tensor:
    """Return a part as the tensor that it is a part of, spread over processes as a weight is."""
    return DTensor(local, weight._spec, requires_grad=False) if isinstance(weight, DTensor) else local  # type: ignore[no-untyped-call]


def _eight_bit(entries: list[dict[str, Any]], betas: tuple[float, float]) -> torch.optim.Optimizer:
    if any(isinstance(item, DTensor) for entry in entries for item in entry["params"]):
        raise StageError("adamw_8bit works on whole parameters; with it use zero 0 and tensor 1, or optimizer adamw")
    with needing("the optimizer adamw_8bit needs bitsandbytes", "adapters"):
        from bitsandbytes.optim import AdamW8bit
    optimizer: torch.optim.Optimizer = AdamW8bit(entries, betas=betas, eps=EPSILON)
    return optimizer


def materialise_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the state of every trained parameter as it is before the first step, so that a checkpoint can be loaded.

    Nothing is updated. Without this, an optimizer that has never stepped has no state for a load to fill.
    """
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if optimizer.state[parameter]:
                continue
            if isinstance(optimizer, torch.optim.AdamW):
                on_host = isinstance(optimizer, HostMoments)
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    **{
                        name: _host_zeros(parameter) if on_host else torch.zeros_like(parameter, requires_grad=False)
                        for name in MOMENTS
                    },
                }
            else:
                optimizer.init_state(group, parameter, index, place)  # type: ignore[attr-defined]


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


class GradientScaler:
    """Scales losses in fp16 so that small gradients do not vanish; does nothing in other types.

    The scale halves when a gradient overflows, and doubles after `GROWTH_INTERVAL` updates that did not.
    """

    STATE: ClassVar[tuple[str, ...]] = ("factor", "_good_updates")

    def __init__(self, dtype: str, device: torch.device) -> None:
        self._is_on = dtype == "fp16"
        self.device = device
        self.factor = FIRST_SCALE if self._is_on else 1.0
        self._good_updates = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""
        return loss * self.factor if self._is_on else loss

    def overflowed(self, norm: float) -> bool:
        """Return True if this update must be left out, from the norm of unscaled gradients; adapts the scale.

        What overflows at the smallest scale is no overflow of the scale's making, and the guard's to judge.
        """
        if not self._is_on:
            return False
        if not math.isfinite(norm):
            if self.factor <= SMALLEST_SCALE:
                return False
            self.factor *= BACKOFF
            self._good_updates = 0
            return True
        self._good_updates += 1
        if self._good_updates == GROWTH_INTERVAL:
            self.factor *= GROWTH
            self._good_updates = 0
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        return {"factor": self.factor, "good_updates": self._good_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.factor, self._good_updates = float(state["factor"]), int(state["good_updates"])
