"""Models that are made without weights, sharded, and only then filled: no process ever holds a whole copy.

Parameters are made on torch's meta device, buffers (rotary frequencies, which no file holds) for real. After
sharding, each process reads its own part of every tensor from safetensors files. The structure that matters for
parallelism: a model's layers, and weights with more than one name.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from charter.errors import DataError, StageError


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that a Hugging Face class keeps whole (`_no_split_modules`), in order, sharded or not."""
    kinds: set[str] = set()
    for item in module.modules():
        kinds |= set(getattr(item, "_no_split_modules", None) or ())
    layers = [item for item in module.modules() if kinds & {base.__name__ for base in type(item).__mro__}]
    if not layers:
        raise StageError(
            f"{type(module).__name__} does not say what its layers are (_no_split_modules); sharding and "
            "recomputation need a class that does: run it with zero 0 and recompute none"
        )
    return layers


def tied_weights(module: nn.Module) -> list[list[str]]:
    """Names that share one parameter, such as input and output embeddings."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def tie(module: nn.Module, groups: list[list[str]]) -> None:
    """Make every name of a group mean the parameter that its first name means."""
    for first, *others in groups:
        parameter = module.get_parameter(first)
        for name in others:
            owner, _, last = name.rpartition(".")
            module.get_submodule(owner).register_parameter(last, parameter)


def hugging_face_models(module: nn.Module) -> dict[str, Any]:
    """The outermost Hugging Face models in a module, by name ("" where it is one itself)."""
    from transformers import PreTrainedModel

    models: dict[str, Any] = {}
    for name, item in module.named_modules():
        inside = any(name.startswith(f"{outer}.") or outer == "" for outer in models)
        if isinstance(item, PreTrainedModel) and not inside:
            models[name] = item
    return models


INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@contextlib.contextmanager
def empty_parameters() -> Iterator[None]:
    """Modules made in this block have parameters without memory, and real buffers."""
    kind: Any = nn.Module
    register = kind.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    kind.register_parameter = on_meta
    try:
        yield
    finally:
        kind.register_parameter = register


def is_empty(module: nn.Module) -> bool:
    """Return True if any parameter has no memory yet."""
    return any(item.is_meta for item in module.parameters())


def fill_weights(
    module: nn.Module, directory: Path | None, device: torch.device, *, parameters_on: torch.device | None = None
) -> None:
    """Give an empty module memory on `device`, and the weights of `directory`, tied ones tied again; strict.

    A module with weights is left as it is.
    """
    if not is_empty(module):
        return
    if directory is None:
        raise DataError(f"{type(module).__name__} has no weights and no directory to read them from was given")
    ties = tied_weights(module)
    stored = stored_names(module)
    kind: Any = module

    def placed(item: Tensor) -> Tensor:
        where = (parameters_on or device) if isinstance(item, nn.Parameter) else device
        return torch.empty_like(item, device=where) if item.is_meta else item.to(where)

    kind._apply(placed)
    tie(module, ties)
    _read_into(module, directory, stored)


def stored_names(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """The names that a Hugging Face directory may have for each parameter without memory; tied ones have several.

    Files hold a causal model: a decoder alone, which has a scalar head, is found below the name that its class gives
    it there, and a matrix with an adapter beside it under its own name.
    """
    also = {name: group for group in tied_weights(module) for name in group}
    models = hugging_face_models(module)

    def names_of(name: str) -> Iterator[str]:
        for prefix, model in models.items():
            if not prefix or name.startswith(f"{prefix}."):
                rest = name.removeprefix(f"{prefix}.").replace(".base_layer.", ".")
                yield rest
                yield f"{model.base_model_prefix}.{rest}"
        if not models:
            yield name

    return {
        name: tuple(stored for item in also.get(name, [name]) for stored in names_of(item))
        for name, parameter in module.named_parameters()
        if parameter.is_meta
    }


def is_readable_in_parts(module: nn.Module, directory: Path) -> bool:
    """Return True if the files of a directory have the parameters of an empty causal model, by name, and no others.

    Some classes join or rename weights when they are loaded; those are loaded whole.
    """
    stored = stored_names(module)
    with contextlib.ExitStack() as stack:
        files = _open(directory, stack)
        names_in_model = {item for names in stored.values() for item in names}
        return set(files) <= names_in_model and all(any(item in files for item in names) for names in stored.values())


def read_weights(directory: Path, names: Collection[str]) -> dict[str, Tensor]:
    """Return whole tensors of a directory by name, those that it has."""
    with contextlib.ExitStack() as stack:
        files = _open(directory, stack)
        return {name: files[name].get_tensor(name) for name in names if name in files}


def _read_into(module: nn.Module, directory: Path, stored: Mapping[str, tuple[str, ...]]) -> None:
    with contextlib.ExitStack() as stack:
        files = _open(directory, stack)
        missing: list[str] = []
        read: set[str] = set()
        for name, parameter in module.named_parameters():
            if name not in stored:
                continue
            source = next((item for item in stored[name] if item in files), None)
            if source is None:
                missing.append(name)
                continue
            read |= {*stored[name]}
            _copy_part(parameter, files[source].get_slice(source), where=f"{directory}: {source}")
        is_causal = "" in hugging_face_models(module)
        wrong = sorted(missing) + (sorted(set(files) - read) if is_causal else [])
        if wrong:
            raise DataError(f"{directory}: weights do not match config.json: {', '.join(wrong[:5])}")


def _open(directory: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Each weight's name with the open file that has it; nothing is read yet."""
    from safetensors import safe_open

    index = directory / INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = [SINGLE]
    readers: dict[str, Any] = {}
    for name in names:
        if not (directory / name).exists():
            raise DataError(f"{directory / name}: no such file; reading parts of weights needs safetensors files")
        file = stack.enter_context(safe_open(str(directory / name), framework="pt"))
        readers |= dict.fromkeys(file.keys(), file)
    return readers


@torch.no_grad()
def _copy_part(parameter: Tensor, stored: Any, *, where: str) -> None:
    """Read what this process holds of one tensor."""
    if list(parameter.shape) != list(stored.get_shape()):
        raise DataError(f"{where} has shape {stored.get_shape()}; the model's is {list(parameter.shape)}")
    if not isinstance(parameter, DTensor):
        parameter.copy_(stored[:] if parameter.ndim else stored[...])
        return
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if parameter.to_local().numel():
        part = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
        parameter.to_local().copy_(stored[part])
