"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) by peft, over a base in 16, 8 or 4 bits (Dettmers et al. 2023).

Only adapter weights are trained. What is published is the base with the adapter added in, so that nothing after it
needs peft, and the adapter itself beside it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charter.errors import StageError, needing
from charter.models.engine_layout import StageLayout
from charter.models.runtime import seeded
from charter.models.sharded_load import hugging_face_models
from charter.spec.layout import WHOLE_BITS, Adapter

DIRECTORY = "adapter"
"""Where the adapter itself is published, beside the merged weights."""
NAME = "default"
QUANTISED = {"Linear4bit", "Linear8bitLt"}
"""Classes of bitsandbytes."""


def add_adapter(module: nn.Module, adapter: Adapter, *, seed: int) -> None:
    """Freeze every Hugging Face model in `module` and put trained low-rank matrices beside its linear layers.

    What is around it, such as a scalar head, stays trained. The first matrix is drawn from `seed`, the second is
    zero, so the model computes what it did before. A base in 4 bits computes in fp32.
    """
    peft = _peft()
    for model in hugging_face_models(module).values():
        if adapter.base_bits != WHOLE_BITS:
            _quantise(model, adapter.base_bits)
        settings = peft.LoraConfig(
            r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, target_modules=_targets(model)
        )
        model.requires_grad_(False)
        with seeded(seed), _present(model):
            peft.inject_adapter_in_model(settings, model, adapter_name=NAME)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)


@contextlib.contextmanager
def _present(model: nn.Module) -> Iterator[None]:
    """While open, linear layers without memory look as if they were on the host: peft puts adapters where they are."""
    empty = [item for item in model.modules() if isinstance(item, nn.Linear) and item.weight.is_meta]
    weights = [item.weight for item in empty]
    for layer, weight in zip(empty, weights, strict=True):
        layer.weight = nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False)
    try:
        yield
    finally:
        for layer, weight in zip(empty, weights, strict=True):
            layer.weight = weight


def has_adapter(module: nn.Module) -> bool:
    """Return True if adapter matrices are in a module."""
    return any(".lora_A." in name for name, _ in module.named_parameters())


def check_layout(module: nn.Module, layout: StageLayout) -> None:
    """Refuse layouts that cannot split what an adapter put into a module."""
    kinds = {type(item).__name__ for item in module.modules()}
    if layout.tensor > 1 and has_adapter(module):
        raise StageError("adapters and tensor parallelism do not go together; use tensor 1 with zero 3")
    if layout.zero and kinds & QUANTISED:
        raise StageError("a base in 8 or 4 bits cannot be sharded; use zero 0, or base_bits 16 with zero 3")


def base_layer(layer: nn.Module) -> Any:
    """The matrix itself of a linear layer, without the adapter beside it."""
    return layer.base_layer if hasattr(layer, "lora_A") else layer


def adapter_matrices(layer: Any) -> tuple[Tensor, Tensor, float] | None:
    """A, B and `alpha / rank` of the adapter beside a linear layer; None where there is none, or it is off."""
    if not hasattr(layer, "lora_A") or layer.disable_adapters or layer.merged:
        return None
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight, float(layer.scaling[NAME])


def merged_weights(weights: Mapping[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """Plain weights: each adapted matrix with `alpha / rank * B A` added, under the name it has without adapter.

    Sums are in fp32, whatever the base was trained over: 16 bits would round most of an update away.
    """
    merged: dict[str, Tensor] = {}
    for name, value in weights.items():
        if ".lora_" in name or ".quant_map" in name or ".absmax" in name:
            continue
        base = name.replace(".base_layer.", ".")
        stem = base.removesuffix(".weight")
        first, second = (weights.get(f"{stem}.lora_{which}.{NAME}.weight") for which in "AB")
        if first is None or second is None:
            merged[base] = value
            continue
        merged[base] = value.float() + product(first, second, adapter)
    return merged


def product(first: Tensor, second: Tensor, adapter: Adapter) -> Tensor:
    """Return the update that an adapter adds to a matrix: `alpha / rank * B A` in fp32, of shape (outputs, inputs).

    `first` is A of shape (rank, inputs), `second` is B of shape (outputs, rank) (Hu et al. 2021, section 4.1).
    """
    return (second.float() @ first.float()) * (adapter.alpha / adapter.rank)


def published_weights(
    module: nn.Module, weights: Mapping[str, Tensor], adapter: Adapter | None
) -> Mapping[str, Tensor]:
    """Plain weights of a trained module: its base in full precision, its adapter added in; `weights` are its own."""
    if adapter is None:
        return weights
    return merged_weights(_whole_weights(module, weights), adapter)


def _whole_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with every quantised matrix as the numbers that it stands for; one at a time on its device."""
    plain_weights = dict(weights)
    for name, layer in module.named_modules():
        if type(layer).__name__ in QUANTISED:
            for key in [key for key in plain_weights if key.startswith(f"{name}.") and key != f"{name}.bias"]:
                del plain_weights[key]
            plain_weights[f"{name}.weight"] = _plain_linear(layer).weight.detach().cpu()
    return plain_weights


def adapter_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's own matrices, under the names that peft reads."""
    return {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": value.contiguous()
        for name, value in weights.items()
        if ".lora_" in name
    }


def save_adapter(path: Path, weights: Mapping[str, Tensor], model: Any, adapter: Adapter) -> None:
    """Write the adapter as peft reads it, with the same bytes in every process."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    settings = _peft().LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=0.0,
        target_modules=_targets(model),
        task_type="CAUSAL_LM",
    )
    settings.inference_mode = True
    settings.target_modules = sorted(settings.target_modules)  # a set, as peft keeps it, has an order of its process
    settings.save_pretrained(str(path))
    save_file(adapter_weights(weights), str(path / "adapter_model.safetensors"))


def _targets(model: Any) -> list[str]:
    """The last names of all linear layers of the decoder; not of the output projection."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    names = {
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, item in model.named_modules()
        if isinstance(item, nn.Linear) and item is not output and ".lora_" not in name
    }
    return sorted(names)


def _quantise(model: Any, bits: int) -> None:
    """Replace the decoder's linear layers by bitsandbytes' of 4 (NF4) or 8 bits."""
    if bits not in (4, 8):
        raise StageError(f"an adapter's base_bits is 16, 8 or 4, not {bits}")
    output = getattr(model, "get_output_embeddings", lambda: None)()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not output:
                setattr(parent, name, _small_linear(child, bits))


def _small_linear(layer: nn.Linear, bits: int) -> nn.Module:
    bnb = _bitsandbytes()
    shape, has_bias = (layer.in_features, layer.out_features), layer.bias is not None
    if bits == 4:
        small = bnb.nn.Linear4bit(*shape, bias=has_bias, quant_type="nf4", compute_dtype=torch.float32)
        small.weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
    else:
        small = bnb.nn.Linear8bitLt(*shape, bias=has_bias, has_fp16_weights=False)
        small.weight = bnb.nn.Int8Params(layer.weight.data, requires_grad=False, has_fp16_weights=False)
    if has_bias:
        small.bias = layer.bias
    moved: nn.Module = small.to(layer.weight.device)
    return moved


def _plain_linear(layer: Any) -> nn.Linear:
    """A plain layer with the values that a quantised one stands for."""
    if type(layer).__name__ == "Linear4bit":
        from bitsandbytes.functional import dequantize_4bit

        weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    else:
        scale = layer.weight.SCB if layer.weight.SCB is not None else layer.state.SCB
        weight = layer.weight.data.float() * (scale.float()[:, None] / 127.0)
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device=weight.device)
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach().float(), requires_grad=False)
    return plain


def _peft() -> Any:
    with needing("adapters need peft", "adapters"):
        import peft
    return peft


def _bitsandbytes() -> Any:
    what = "an adapter over a base in 4 or 8 bits needs bitsandbytes"
    with needing(what, "adapters", otherwise="; base_bits 16 needs nothing"):
        import bitsandbytes
    return bitsandbytes
