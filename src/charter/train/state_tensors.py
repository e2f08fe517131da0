"""A training state as named tensors and plain values, and back: by parameter name, whatever wraps the module.

The names do not depend on how a module is distributed, so a checkpoint can be read at another number of processes.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from charter.errors import DataError, StageError
from charter.train.state import TrainState

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What torch.compile and activation checkpointing put into names."""
_HOW_NOT_WHAT = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Options of an optimizer that say how it computes; they belong to the process, not to the state."""


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """Every tensor that training changes, as it is held here (a shard, where it is sharded), without copying."""
    found: dict[str, Tensor] = {}
    for module_name, module in state.modules.items():
        optimizer = state.optimizers.get(module_name)
        for name, tensor in _module_tensors(module, optimizer):
            found[f"modules/{module_name}/{name}"] = tensor
        for name, key, value in _optimizer_entries(module, optimizer):
            if isinstance(value, Tensor):
                found[f"optimizers/{module_name}/{name}/{key}"] = value.detach()
    return found


def values_of(state: TrainState) -> dict[str, Any]:
    """Everything else that a resume needs, as JSON values."""
    values = {
        "plain": {name: component.state_dict() for name, component in state.plain.items()},
        "optimizers": {
            name: _optimizer_values(state.modules[name], optimizer) for name, optimizer in state.optimizers.items()
        },
    }
    try:
        copied: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StageError(f"the state of training cannot be saved: {error}") from None
    return copied


def prepare_optimizers(state: TrainState, saved: set[str]) -> None:
    """Give every optimizer the tensors that a checkpoint holds for it, so that they can be loaded into.

    An optimizer makes its state at its first step: one is made with rate 0 and gradients of 0, and what the checkpoint
    does not know is dropped again.
    """
    for module_name, optimizer in state.optimizers.items():
        names = {id(parameter): name for name, parameter in _parameters(state.modules[module_name])}
        prefix = f"optimizers/{module_name}/"
        wanted = {name[len(prefix) :].rpartition("/")[0] for name in saved if name.startswith(prefix)}
        held = {names[id(parameter)] for parameter in optimizer.state if optimizer.state[parameter]}
        if wanted - held:
            _idle_step(optimizer)
        for parameter in [item for item in optimizer.state if names[id(item)] not in wanted]:
            del optimizer.state[parameter]


def load_values(state: TrainState, values: Mapping[str, Any]) -> None:
    """Put the plain values of a checkpoint in place."""
    _same_names("components", set(values["plain"]), set(state.plain))
    _same_names("optimizers", set(values["optimizers"]), set(state.optimizers))
    for name, component in state.plain.items():
        component.load_state_dict(values["plain"][name])
    for name, optimizer in state.optimizers.items():
        _load_optimizer_values(state.modules[name], optimizer, values["optimizers"][name])


def check_fit(saved: Mapping[str, tuple[tuple[int, ...], torch.dtype]], here: Mapping[str, Tensor]) -> None:
    """Refuse a checkpoint whose tensors are not exactly those of this state: names, shapes, number formats."""
    _same_names("tensors", set(saved), set(here))
    for name, tensor in here.items():
        shape, dtype = saved[name]
        if shape != tuple(tensor.shape):
            raise DataError(f"tensor {name} is {shape} in the checkpoint, where {tuple(tensor.shape)} is expected")
        if dtype != tensor.dtype:
            raise DataError(f"tensor {name} is {dtype} in the checkpoint, where {tensor.dtype} is expected")


def _same_names(what: str, saved: set[str], here: set[str]) -> None:
    missing, unexpected = sorted(here - saved), sorted(saved - here)
    if missing or unexpected:
        parts = [f"{word} {', '.join(names[:5])}" for word, names in (("lacks", missing), ("has also", unexpected))]
        told = "; ".join(part for part, names in zip(parts, (missing, unexpected), strict=True) if names)
        raise DataError(
            f"the checkpoint does not fit this stage: of its {what} it {told}\n  it was written by another version"
        )


def _module_tensors(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, Tensor]]:
    trained = None if optimizer is None else {id(item) for group in optimizer.param_groups for item in group["params"]}
    parameters = _parameters(module)
    if trained is not None and not trained <= {id(parameter) for _, parameter in parameters}:
        raise StageError("an optimizer holds parameters that are not those of its module")
    for name, parameter in parameters:
        if trained is None or id(parameter) in trained:
            yield name, parameter.detach()
    kept = {_plain_name(name) for name in _unwrapped(module).state_dict(keep_vars=True)}
    for name, buffer in _unwrapped(module).named_buffers():
        if _plain_name(name) in kept:
            yield _plain_name(name), buffer.detach()


def _parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(_plain_name(name), parameter) for name, parameter in _unwrapped(module).named_parameters()]


def _unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def _plain_name(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _optimizer_entries(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, str, Any]]:
    """Parameter name, key and value of everything in an optimizer's state."""
    if optimizer is None:
        return
    for name, parameter in _parameters(module):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield name, key, value


def _optimizer_values(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state: dict[str, dict[str, Any]] = {}
    for name, key, value in _optimizer_entries(module, optimizer):
        if not isinstance(value, Tensor):
            state.setdefault(name, {})[key] = value
    groups = [
        {key: value.item() if isinstance(value, Tensor) else value for key, value in group.items()}
        for group in ({k: v for k, v in item.items() if k not in _HOW_NOT_WHAT} for item in optimizer.param_groups)
    ]
    return {"groups": groups, "state": state}


def _load_optimizer_values(module: nn.Module, optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    if len(values["groups"]) != len(optimizer.param_groups):
        raise DataError(
            f"the checkpoint's optimizer has {len(values['groups'])} parameter groups, "
            f"where {len(optimizer.param_groups)} are expected"
        )
    for group, saved in zip(optimizer.param_groups, values["groups"], strict=True):
        for key, value in saved.items():
            now = group.get(key)
            if isinstance(now, Tensor):
                now.fill_(value)
            else:
                group[key] = tuple(value) if isinstance(now, tuple) else value
    parameters = dict(_parameters(module))
    for name, entries in values["state"].items():
        optimizer.state[parameters[name]].update(entries)


def _idle_step(optimizer: torch.optim.Optimizer) -> None:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
