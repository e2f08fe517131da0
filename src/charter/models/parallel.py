"""Spread of a model over the processes of a stage, by the layout that its record froze."""

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from charter.errors import StageError
from charter.models.adapters import check_layout, has_adapter
from charter.models.engine_layout import StageLayout
from charter.models.ranks import Ranks
from charter.models.sequence_split import sequence_styles, split_gradient, split_sequence
from charter.models.sharded_load import decoder_layers, fill_weights, hugging_face_models, is_empty, tie, tied_weights
from charter.models.token_forward import AskedHead, give_asked_head
from charter.spec.layout import Recompute

# -------- A module as one of a stage's processes trains it: alone, or with its gradients averaged (DDP).


SMALLEST_NORM = 1e-6
"""Added to the norm before dividing, as `torch.nn.utils.clip_grad_norm_` does."""


def own_part(value: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """`sqrt(sum of squares)` over all gradients, parts on other processes included; the same number everywhere.

    Gradients of one placement are summed here first, then once over each mesh dimension that they are sharded on.
    """
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else ()
        groups.setdefault(key, []).append(gradient)
    if list(groups) == [()]:
        return torch.nn.utils.get_total_norm(gradients)
    squares = [_group_norm(group) ** 2 for group in groups.values()]
    return torch.stack(squares).sum().sqrt()


def _group_norm(group: Sequence[Tensor]) -> Tensor:
    parts = [own_part(gradient) for gradient in group]
    filled = [part for part in parts if part.numel()]
    norm = torch.nn.utils.get_total_norm(filled) if filled else torch.zeros((), device=parts[0].device)
    first = group[0]
    if not isinstance(first, DTensor):
        return norm
    square = norm.float() ** 2
    for dimension, placement in enumerate(first.placements):
        if placement.is_partial():
            raise StageError("a gradient is still a sum over processes; add it up before taking its norm")
        if not placement.is_replicate():
            dist.all_reduce(square, group=first.device_mesh.get_group(dimension))
    return square.sqrt()


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their norm is at most `max_norm`; the norm before that.

    Source: Pascanu et al. 2013 (arXiv:1211.5063), section 3.2.
    """
    gradients = [item.grad for item in parameters if item.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = global_norm(gradients)
    factor = (max_norm / (norm + SMALLEST_NORM)).clamp(max=1.0)
    parts = [own_part(gradient) for gradient in gradients]
    for part in parts:
        part.mul_(factor.to(part.device))
    return norm


WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module")
"""Names that wrappers of torch put into the names of weights; `module` only in front."""


class FirstPass:
    """A trained model's pass over the first minibatch of a rollout, kept from its scoring for its first update.

    Both are by the same weights, so the update would make the same pass again. It is let go when it is taken, or when a
    weight has been written since; a stage that goes on from a checkpoint in between makes it again.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._figures: tuple[Tensor, ...] = ()
        self._state: tuple[int, ...] = ()

    def keep(self, step: int, *figures: Tensor) -> None:
        """Hold what a pass over the rollout of a step gave, if it has a graph."""
        if figures[0].requires_grad:
            self._figures, self._state = figures, self._now(step)

    def take(self, step: int) -> tuple[Tensor, ...]:
        """Give up what is held for the first update of a step; nothing where there is no such pass."""
        figures, is_valid = self._figures, self._state == self._now(step)
        self._figures, self._state = (), ()
        return figures if is_valid else ()

    def _now(self, step: int) -> tuple[int, ...]:
        return (step, *(weight._version for weight in self._module.parameters()))


class Parallel:
    """A module with what differs between layouts; this class is one process alone.

    Backward passes leave gradients that are averaged over the data ranks.
    """

    frees: bool = False
    """Whether every pass gathers the weights, and frees those of each layer once it is through."""

    def __init__(self, module: nn.Module, *, call: Callable[..., Any] | None = None, is_first: bool = True) -> None:
        self.module = module
        """The model class itself; called without gradients for rollouts and scores."""
        self.call: Callable[..., Any] = module if call is None else call
        """What the forward pass of training calls."""
        self.first_pass = FirstPass(module)
        self._is_first = is_first

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that an optimizer updates."""
        return [item for item in self.module.parameters() if item.requires_grad]

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights in place, for a rollout: no gathering at every token."""
        yield

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes that are not the last of their step: gradients add up in this process alone."""
        yield

    def scale_gradients(self, factor: float | Tensor) -> None:
        """Multiply every gradient; a factor of one fp32 number on the device needs no wait for it."""
        gradients = [own_part(item.grad) for item in self.trained_parameters() if item.grad is not None]
        if gradients:
            by = factor.to(gradients[0].device) if isinstance(factor, Tensor) else factor
            torch._foreach_mul_(gradients, by)

    def clip(self, max_norm: float) -> Tensor:
        """Scale gradients down to `max_norm`; their norm over the whole model before that, the same everywhere."""
        return clip_gradients(self.trained_parameters(), max_norm)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole tensors with the model class's own names, on the host of rank 0; nothing elsewhere."""
        weights: dict[str, Tensor] = {}
        for name, value in self.module.state_dict().items():
            full_tensor = value.full_tensor() if isinstance(value, DTensor) else value
            if self._is_first:
                weights[plain_name(name)] = full_tensor.detach().to("cpu", copy=True)
        return weights

    def warm(self, run: Callable[[], Tensor]) -> None:
        """Do once what the first backward pass would do, so that a resumed step adds up as any other; no change."""


class DdpParallel(Parallel):
    """Every process has the whole model; gradients are averaged in buckets during the backward pass."""

    def __init__(self, module: nn.Module, wrapped: nn.parallel.DistributedDataParallel, *, is_first: bool) -> None:
        super().__init__(module, call=wrapped, is_first=is_first)
        self._wrapped = wrapped

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes that are not the last of their step: gradients add up in this process alone."""
        with self._wrapped.no_sync():
            yield

    def warm(self, run: Callable[[], Tensor]) -> None:
        """Let DDP regroup its buckets before the first step.

        After its first backward pass DDP orders buckets by when gradients became ready. Sums over three or more
        processes depend on the grouping, so without this the first step of a resume would differ.
        """
        devices = range(torch.cuda.device_count()) if next(self.module.parameters()).is_cuda else []
        with torch.random.fork_rng(devices=devices):
            run().backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)


def plain_name(name: str) -> str:
    """The name of a weight without what wrappers add.

    >>> plain_name("module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp.weight")
    'model.layers.0.mlp.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS[:-1]]
    return ".".join(parts[1:] if parts[0] == WRAPPERS[-1] else parts)


# -------- Spread of a model over the processes of a stage, by the layout that its record froze.


HEADS_DIMENSION = 2
"""Of queries and keys when they are normalised per head: batch, token, head, width."""


def data_mesh(layout: StageLayout, ranks: Ranks) -> tuple[DeviceMesh, DeviceMesh | None]:
    """The mesh to shard over, and the one to split tensors over; neighbouring ranks split tensors."""
    sharing = layout.data * layout.context
    replicas = sharing if layout.zero == 0 else layout.replicas
    if sharing % replicas:
        raise StageError(f"{sharing} data-parallel processes cannot be split into {replicas} replicas")
    sizes = {"replicate": replicas, "shard": sharing // replicas, "tensor": layout.tensor}
    used = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    mesh = init_device_mesh(ranks.device.type, tuple(used.values()), mesh_dim_names=tuple(used))
    names = tuple(name for name in used if name != "tensor")
    return (mesh[names] if len(names) < len(used) else mesh), (mesh["tensor"] if layout.tensor > 1 else None)


def split_tensors(module: nn.Module, layout: StageLayout, ranks: Ranks) -> DeviceMesh:
    """Split the matrices of `module` over neighbouring ranks where the layout asks for it; the mesh that is left."""
    data_axes, tensor = data_mesh(layout, ranks)
    if tensor is None:
        return data_axes
    ties = tied_weights(module)
    for prefix, model in hugging_face_models(module).items():
        styles = _styles(model, layout.tensor)
        if layout.sequence_parallel:
            styles |= sequence_styles(model, dict(model.tp_plan))
        parallelize_module(model, tensor, styles)
        split_gradient(model.get_input_embeddings())
        _check_ties(module, ties, prefix)
    tie(module, ties)
    if layout.sequence_parallel:
        split_sequence(decoder_layers(module), tensor)
    return data_axes


def _styles(model: Any, size: int) -> dict[str, ParallelStyle]:
    """torch's style for every entry of a model's plan."""
    config = model.config
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    for what, count in (("attention heads", heads), ("key/value heads", kv_heads or heads)):
        if count % size:
            raise StageError(f"{count} {what} cannot be split over {size} processes; tensor must divide {count}")
    plan = dict(getattr(model, "tp_plan", None) or {})
    if not plan:
        raise StageError(
            f"{type(model).__name__} has no plan for tensor parallelism; use tensor 1 with zero 3, which needs none"
        )
    return {name: _style(style, name, model) for name, style in plan.items() if _exists(model, name)}


def _exists(model: nn.Module, pattern: str) -> bool:
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return any(expression.fullmatch(name) for name, _ in model.named_modules())


def _style(style: str, name: str, model: nn.Module) -> ParallelStyle:
    match style:
        case "colwise":
            return ColwiseParallel()
        case "rowwise":
            return RowwiseParallel()
        case "colwise_gather_output":
            return ColwiseParallel(output_layouts=Replicate())
        case "embedding_rowwise" | "rowwise_split_input":
            return RowwiseParallel(input_layouts=Replicate())
        case "replicated_with_grad_allreduce":
            return SequenceParallel(sequence_dim=HEADS_DIMENSION, use_local_output=True)
    raise StageError(
        f"{type(model).__name__} splits {name} in a way that is not supported here ({style}); use tensor 1 with zero 3"
    )


def _check_ties(module: nn.Module, ties: list[list[str]], prefix: str) -> None:
    """Tied weights can be tied again only where every name was split in the same way."""
    for group in ties:
        placements = {str(getattr(module.get_parameter(name), "placements", None)) for name in group}
        if len(placements) > 1:
            raise StageError(
                f"{', '.join(group)} are one tensor, which the model's plan splits in {len(placements)} ways; "
                "use tensor 1 with zero 3"
            )


KEPT_OPERATIONS = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""What selective recomputation keeps of a layer: products with weights, and fused attention. The rest takes little time
and much memory: norms, rotations, activation functions, casts, and the scores of attention that is not fused."""
BOUNDED_ATTENTION = "torch_attn::_varlen_attn"
"""Fused attention of packed conversations (`train/packing.py`); torch has it once its module is imported."""


def recompute_layers(module: nn.Module, how: str, *, inputs_on_host: bool = False) -> None:
    """Recompute in every pass with gradients, in evaluation mode too; dropout draws the same numbers again.

    The inputs of the layers, all that `full` keeps of them, wait for the backward pass where they are, or on the host.
    """
    if how not in tuple(Recompute):
        raise StageError(f"recompute {how!r} is unknown; use none, selective or full")
    if inputs_on_host and how != Recompute.FULL:
        raise StageError(f"offload_activations moves what recompute full keeps; found recompute {how}")
    if how != Recompute.NONE:
        for layer in decoder_layers(module):
            again = _again(layer.forward, keeps_products=how == Recompute.SELECTIVE)
            layer.forward = _with_input_on_host(layer.forward) if inputs_on_host else again


def _again(forward: Callable[..., Any], *, keeps_products: bool) -> Callable[..., Any]:
    contexts: dict[str, Any] = {"context_fn": _keeping_products} if keeps_products else {}

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **contexts, **kwargs)

    return run


def _with_input_on_host(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Recompute all of a layer from hidden states that wait in host memory, page-locked for a GPU.

    Inside the checkpoint its own hooks stand above these. A layer's other arguments (masks, rotary positions) are the
    same tensors for every layer, and stay where they are.
    """

    def run(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        def layer(value: Tensor) -> Any:
            return forward(value, *args, **kwargs)

        with save_on_cpu(pin_memory=True):
            return _again(layer, keeps_products=False)(hidden)

    return run


def _keeping_products() -> tuple[Any, Any]:
    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    return contexts


def _policy(_context: Any, operation: Any, *args: Any, **_: Any) -> CheckpointPolicy:
    is_kept = operation in KEPT_OPERATIONS or operation.name() == BOUNDED_ATTENTION
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


log = logging.getLogger(__name__)


def is_needless(layout: StageLayout, device: torch.device) -> bool:
    """Return True if offloading was asked for where everything is in the host's memory anyway; the log says so."""
    needless = layout.offload != "none" and device.type == "cpu"
    if needless:
        log.warning("offload=%s changes nothing on a CPU: all is in the host's memory already", layout.offload)
    return needless


def check_offload(layout: StageLayout, device: torch.device) -> None:
    """Refuse offloading that this layout cannot do."""
    if layout.offload != "all" or is_needless(layout, device):
        return
    if layout.zero == 0 or layout.world_size == 1:
        raise StageError("offload all moves the parts of a sharded model to the host; use it with zero 3, or use none")


def moments_on_host(layout: StageLayout, device: torch.device) -> bool:
    """Return True if the optimizer's moments stay in host memory, and come to the device for their step alone."""
    return layout.offload == "optimizer" and not is_needless(layout, device)


def offload_policy(layout: StageLayout, device: torch.device) -> OffloadPolicy:
    """`all`: parameters, gradients and optimizer state on the host, parameters copied over for each pass."""
    if layout.offload == "all" and device.type != "cpu":
        return CPUOffloadPolicy()
    return OffloadPolicy()


def parameters_device(layout: StageLayout, device: torch.device) -> torch.device:
    """Return the device on which sharded parameters stay between passes."""
    return torch.device("cpu") if layout.offload == "all" else device


VIEW_WARNING = "FSDP2-wrapped module .* returned a view tensor"
"""Logits are a view; losses never change them in place."""
SHARDED_BY_FORWARD = 3
"""The ZeRO stage that frees gathered parameters after each layer's forward pass."""


def shard(module: nn.Module, layout: StageLayout, mesh: DeviceMesh, ranks: Ranks, *, dtype: torch.dtype) -> None:
    """Shard every decoder layer, and what is around them, over `mesh` (one dimension, or two for hybrid sharding).

    The embedding and the output projection are units of their own where they are two tensors: else both would be
    gathered through the whole pass, and the gradients of both would wait for the end of it.

    On an accelerator layers compute in `dtype` from parameters in fp32, and gradients are added up in fp32. On a CPU
    parameters stay in fp32 and autocast decides.
    """
    settings: dict[str, Any] = {"mesh": mesh, "offload_policy": offload_policy(layout, ranks.device)}
    if ranks.device.type != "cpu" and dtype != torch.float32:
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    warnings.filterwarnings("ignore", message=VIEW_WARNING, category=UserWarning)
    frees = frees_layers(layout)
    embeddings, heads = _ends(module)
    for part in (*embeddings, *decoder_layers(module)):
        fully_shard(part, reshard_after_forward=frees, **settings)
    for head in heads:  # its backward pass comes at once: it stays gathered until then
        fully_shard(head, reshard_after_forward=False, **settings)
    fully_shard(module, reshard_after_forward=None if frees else False, **settings)
    if "" in hugging_face_models(module) and hasattr(module, "generate"):
        register_fsdp_forward_method(module, "generate")


def _ends(module: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """Embeddings and output projections of the causal models in `module` that can be sharded apart from the rest."""
    tied = {name for group in tied_weights(module) for name in group}
    embeddings, heads = [], []
    for prefix, model in hugging_face_models(module).items():
        names = {id(item): f"{prefix}.{name}" if prefix else name for name, item in model.named_modules()}
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if not tied & {f"{names.get(id(part))}.weight" for part in (embedding, head)}:
            embeddings.append(embedding)
            heads += [] if (own := give_asked_head(model)) is None else [own]
    return embeddings, heads


def frees_layers(layout: StageLayout) -> bool:
    """Return True if a layer's parameters are freed again after its forward pass."""
    return layout.zero >= SHARDED_BY_FORWARD


class FsdpParallel(Parallel):
    """A sharded module; it is called whole (`module(...)`), since parts of it called alone find no parameters."""

    def __init__(self, module: nn.Module, *, frees: bool, is_first: bool) -> None:
        super().__init__(module, is_first=is_first)
        self._parts = [item for item in module.modules() if isinstance(item, FSDPModule)]
        self._heads = {id(item) for item in module.modules() if isinstance(item, AskedHead)}
        self.frees = frees
        self._is_gathered = False
        module.register_forward_hook(self._after_forward)

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Free what a pass without gradients gathered: no backward pass does, and it would soon be out of date."""
        if not torch.is_grad_enabled() and not self._is_gathered:
            self._reshard()

    def _reshard(self) -> None:
        for part in self._parts:
            part.reshard()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights in place, for a rollout: no gathering at every token."""
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        self._is_gathered = True
        try:
            yield
        finally:
            self._is_gathered = False
            self._reshard()
            for part in self._parts[1:]:
                part.set_reshard_after_forward(self.frees and id(part) not in self._heads, recurse=False)

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes that are not the last of their step: each process adds up its own part of the gradients.

        Gradients are scattered in every pass. Kept whole until the last one they would take the bytes of all
        parameters in fp32 in every process, at any number of processes. What is shared between the copies of hybrid
        sharding is added up once, in the last pass.
        """
        root = self._parts[0]
        root.set_requires_all_reduce(False)
        try:
            yield
        finally:
            root.set_requires_all_reduce(True)


__all__ = ["Parallel", "parallelize"]

COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parallelize(
    module: nn.Module,
    layout: StageLayout,
    ranks: Ranks,
    *,
    dtype: str,
    trained: bool = True,
    weights: Path | None = None,
) -> Parallel:
    """Spread `module` over the processes as `layout` says; what is sharded is changed in place.

    A frozen model (`trained=False`), or the frozen base of adapters, is cast to the compute type once on an
    accelerator. An empty module is filled
    from the directory `weights`, of which each process reads its own parts.
    """
    check_layout(module, layout)
    check_offload(layout, ranks.device)
    on_accelerator = ranks.device.type != "cpu"
    if not trained:
        module.requires_grad_(False)
    if not trained or (on_accelerator and has_adapter(module)):
        cast_frozen(module, COMPUTE[dtype], everything=on_accelerator and layout.zero > 0)
    if trained:
        recompute_layers(module, layout.recompute, inputs_on_host=layout.offload_activations)
    if not is_empty(module):
        module.to(ranks.device)
    is_alone = ranks.world_size == 1 or (not trained and layout.zero < 3 and layout.tensor == 1)
    is_sharded = not is_alone and (layout.tensor > 1 or layout.zero > 0)
    mesh = split_tensors(module, layout, ranks) if is_sharded else None
    if trained and layout.compile:
        compile_layers(module)
    if mesh is not None:
        shard(module, layout, mesh, ranks, dtype=COMPUTE[dtype])
        fill_weights(module, weights, ranks.device, parameters_on=parameters_device(layout, ranks.device))
        return FsdpParallel(module, frees=frees_layers(layout), is_first=ranks.is_first)
    fill_weights(module, weights, ranks.device)
    if is_alone:
        return Parallel(module, is_first=ranks.is_first)
    return DdpParallel(module, _averaged(module, ranks), is_first=ranks.is_first)


def compile_layers(module: nn.Module) -> None:
    """Compile every decoder layer in place; what is around them stays eager.

    The layers of a model share one compiled code, so that a long model takes no longer than a short one, and sums over
    the positions that a loss asks for, which `torch.compile` cannot follow, are left to eager code.
    """
    for layer in decoder_layers(module):
        layer.compile(dynamic=True)


def _averaged(module: nn.Module, ranks: Ranks) -> nn.parallel.DistributedDataParallel:
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`broadcast_buffers`", category=FutureWarning)
        return nn.parallel.DistributedDataParallel(
            module,
            device_ids=devices,
            process_group=ranks.data_group,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )


def cast_frozen(module: nn.Module, dtype: torch.dtype, *, everything: bool) -> None:
    """Weights without gradients in the compute type, so that autocast does not cast them again at every pass.

    With `everything` every one is cast, as sharded training computes; else only what autocast would cast (linear
    layers), so that a frozen copy computes the same bits as the model it was copied from.
    """
    if dtype == torch.float32:
        return
    linear = [item for item in module.modules() if isinstance(item, nn.Linear)]
    chosen = {id(parameter) for item in linear for parameter in item.parameters()}
    others = {id(p) for item in module.modules() if item not in linear for p in item.parameters(recurse=False)}
    for parameter in module.parameters():
        if parameter.requires_grad or not parameter.is_floating_point():  # a base in 8 or 4 bits has whole numbers
            continue
        if everything or id(parameter) in chosen - others:
            parameter.data = parameter.data.to(dtype)
