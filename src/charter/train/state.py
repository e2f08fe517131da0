"""Content of a training stage's checkpoint: everything that training changes and nothing can be derived from."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from charter.artifacts import durable
from charter.artifacts.fingerprint import files_under, is_disk_full
from charter.errors import DataError, StageError
from charter.models.parallel import plain_name
from charter.models.ranks import Ranks


class Stateful(Protocol):
    """A component whose state is plain JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""

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


VALUES_FILE, BUFFERS_FILE = "state.json", "buffers.safetensors"
WRITING_THREADS = 2
"""Files that a process writes at once: so the flushing of one overlaps with the writing of another."""


def own_tensors(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the tensors that this process writes: its shards, and its part of those that all processes hold."""
    loads = [0] * ranks.world_size
    mine: dict[str, Tensor] = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    shared = {name: tensor for name, tensor in tensors.items() if name not in mine}
    for name in sorted(shared, key=lambda name: (-shared[name].nbytes, name)):
        writer = min(range(ranks.world_size), key=loads.__getitem__)
        loads[writer] += shared[name].nbytes + 1
        if writer == ranks.rank:
            mine[name] = shared[name]
    return mine


def write_tensors(directory: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write this process's part; every process of the stage does so together."""
    _expect_no_group()
    writer = FileSystemWriter(directory, thread_count=WRITING_THREADS, sync_files=True)
    group, alone = ranks.saving_group, ranks.world_size == 1
    try:
        save(dict(tensors), storage_writer=writer, process_group=group, no_dist=alone)
    except CheckpointException as error:
        raise _plain_error(error, f"{directory}: the tensors could not be written") from error


def read_tensors(directory: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Fill the given tensors in place from a verified checkpoint, however many processes wrote it."""
    _expect_no_group()
    group, alone = ranks.saving_group, ranks.world_size == 1
    try:
        load(dict(tensors), storage_reader=FileSystemReader(directory), process_group=group, no_dist=alone)
    except CheckpointException as error:
        raise _plain_error(error, f"{directory}: the tensors could not be read") from error


def saved_tensors(directory: Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name, shape and number format of every tensor of a verified checkpoint."""
    entries = FileSystemReader(directory).read_metadata().state_dict_metadata
    return {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def write_values(directory: Path, values: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> None:
    """Write what one process writes for all."""
    from safetensors.torch import save_file

    (directory / VALUES_FILE).write_text(durable.json_text(values), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in buffers.items()}, str(directory / BUFFERS_FILE))


def read_values(directory: Path) -> dict[str, Any]:
    """The plain values of a verified checkpoint."""
    values: dict[str, Any] = json.loads((directory / VALUES_FILE).read_text(encoding="utf-8"))
    return values


def read_buffers(directory: Path, device: torch.device) -> dict[str, Tensor]:
    """The shared buffers of a verified checkpoint."""
    from safetensors.torch import load_file

    return dict(load_file(str(directory / BUFFERS_FILE), device=str(device)))


def files_of(directory: Path, ranks: Ranks) -> Sequence[str]:
    """The files of a checkpoint in writing that this process has to flush and hash."""
    names = files_under(directory)
    own = f"__{ranks.rank}_"
    return [name for name in names if name.startswith(own) or (ranks.is_first and not name.startswith("__"))]


def _expect_no_group() -> None:
    """One process without a process group is what Charter means, so torch need not warn of it."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def _plain_error(error: CheckpointException, what: str) -> Exception:
    """`CheckpointException` is not an `Exception`, so nothing would catch it; a full disk stays recognisable."""
    causes = [failure[0] for failure in error.failures.values()]
    full = next((cause for cause in causes if is_disk_full(cause)), None)
    if full is not None:
        return OSError(28, "No space left on device")
    return StageError(f"{what}: {'; '.join(f'{type(cause).__name__}: {cause}' for cause in causes)}")


_HOW_NOT_WHAT = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Options of an optimizer that say how it computes; they belong to the process, not to the state."""


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """Every tensor that training changes, as it is held here (a shard, where it is sharded), without copying."""
    tensors: dict[str, Tensor] = {}
    for module_name, module in state.modules.items():
        optimizer = state.optimizers.get(module_name)
        for name, tensor in _module_tensors(module, optimizer):
            tensors[f"modules/{module_name}/{name}"] = tensor
        for name, key, value in _optimizer_entries(module, optimizer):
            if isinstance(value, Tensor):
                tensors[f"optimizers/{module_name}/{name}/{key}"] = value.detach()
    return tensors


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
        initialised = {names[id(parameter)] for parameter in optimizer.state if optimizer.state[parameter]}
        if wanted - initialised:
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
        faults = "; ".join(part for part, names in zip(parts, (missing, unexpected), strict=True) if names)
        raise DataError(
            f"the checkpoint does not fit this stage: of its {what} it {faults}\n  it was written by another version"
        )


def _module_tensors(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, Tensor]]:
    trained = None if optimizer is None else {id(item) for group in optimizer.param_groups for item in group["params"]}
    parameters = _parameters(module)
    if trained is not None and not trained <= {id(parameter) for _, parameter in parameters}:
        raise StageError("an optimizer holds parameters that are not those of its module")
    for name, parameter in parameters:
        if trained is None or id(parameter) in trained:
            yield name, parameter.detach()
    saved_names = {plain_name(name) for name in _unwrapped(module).state_dict(keep_vars=True)}
    for name, buffer in _unwrapped(module).named_buffers():
        if plain_name(name) in saved_names:
            yield plain_name(name), buffer.detach()


def _parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(plain_name(name), parameter) for name, parameter in _unwrapped(module).named_parameters()]


def _unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


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
