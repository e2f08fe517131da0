"""Structure of a model for parallelism: its layers, and weights with more than one name."""

from typing import Any

from torch import nn

from charter.errors import StageError


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
