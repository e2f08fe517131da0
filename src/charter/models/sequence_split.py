"""Splits that torch's tensor parallelism has not: positions of a row between split matrices, an embedding's gradient.

Legend: B sequences, T tokens, P tokens of one rank, H hidden size. Lengths that do not divide are split unevenly.
"""

from typing import Any

from torch import Size, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, SequenceParallel

from charter.errors import StageError

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
"""Children of the layers whose residual stream is split: attention and a feed-forward part, a norm before each."""
ATTENDS = ".self_attn.o_proj"
POSITIONS = 1
"""The dimension of positions: batch, token, width."""

SPLIT = "_has_own_positions"


def is_split(layer: nn.Module) -> bool:
    """Return True if each rank has its own positions of what this layer is given."""
    return hasattr(layer, SPLIT)


def sequence_styles(model: Any, plan: dict[str, str]) -> dict[str, ParallelStyle]:
    """Return torch's styles of what sequence parallelism treats otherwise than tensor parallelism alone."""
    layers = [name.removesuffix(ATTENDS) for name in plan if name.endswith(ATTENDS)]
    kinds = [item for name, item in model.named_modules() if name.rpartition(".")[0] + ".*" in layers]
    if not kinds or any({name for name, _ in item.named_children()} != PARTS for item in kinds):
        raise StageError(
            f"{type(model).__name__} has other layers than sequence parallelism is written for; use tensor without it"
        )
    (layer,) = layers
    return {
        f"{layer}.input_layernorm": SequenceParallel(sequence_dim=POSITIONS, use_local_output=True),
        f"{layer}.post_attention_layernorm": SequenceParallel(sequence_dim=POSITIONS, use_local_output=True),
        f"{layer}.self_attn.o_proj": RowwiseParallel(output_layouts=Shard(POSITIONS)),
        f"{layer}.mlp.down_proj": RowwiseParallel(output_layouts=Shard(POSITIONS)),
    }


def split_sequence(layers: list[nn.Module], mesh: DeviceMesh) -> None:
    """Split what the first layer is given over the ranks of `mesh`, and join what the last one returns."""
    for layer in layers:
        _join_inside(layer, mesh)

    def split(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        whole_BTH = DTensor.from_local(args[0], mesh, [Replicate()], run_check=False)
        return (whole_BTH.redistribute(placements=[Shard(POSITIONS)]).to_local(), *args[1:]), kwargs

    def join(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], part_BPH: Tensor) -> Tensor:
        return _joined(part_BPH, mesh, _length(kwargs)).to_local()

    layers[0].register_forward_pre_hook(split, with_kwargs=True)
    layers[-1].register_forward_hook(join, with_kwargs=True)


def _join_inside(layer: nn.Module, mesh: DeviceMesh) -> None:
    """Give attention and the feed-forward part all positions; their gradients are summed and split at once."""
    length = 0

    def attends(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal length
        length = _length(kwargs)
        return args, {**kwargs, "hidden_states": _joined(kwargs["hidden_states"], mesh, length)}

    def feeds(_: nn.Module, args: tuple[Tensor]) -> tuple[DTensor]:
        return (_joined(args[0], mesh, length),)

    layer.get_submodule("self_attn").register_forward_pre_hook(attends, with_kwargs=True)
    layer.get_submodule("mlp").register_forward_pre_hook(feeds)
    setattr(layer, SPLIT, True)


class SplitEmbedding(nn.Embedding):
    """A lookup in this rank's part of the vocabulary, whose gradient is of that part alone.

    torch's own backward pass of a split embedding makes the gradient of the whole vocabulary on every rank.
    """

    def forward(self, ids_BT: DTensor) -> DTensor:  # type: ignore[override]
        """Return the vectors of this rank's tokens and zeros for others, to be added up over the ranks."""
        weight = self.weight
        assert isinstance(weight, DTensor)
        mesh, own = weight.device_mesh, weight.to_local()
        rows, first = own.shape[0], mesh.get_local_rank() * -(-weight.shape[0] // mesh.size())
        own_BT = ids_BT.to_local() - first
        is_other_BT = (own_BT < 0) | (own_BT >= rows)
        padding = -1 if self.padding_idx is None else self.padding_idx - first
        part_BTH = nn.functional.embedding(
            own_BT.masked_fill_(is_other_BT, 0), own, padding if 0 <= padding < rows else None
        )
        part_BTH = part_BTH.masked_fill_(is_other_BT[..., None], 0)
        return DTensor.from_local(part_BTH, mesh, [Partial()], run_check=False)


def split_gradient(embedding: nn.Module) -> None:
    """Have an embedding whose vocabulary is split look up its own part; what its class does around a lookup stays."""
    kind, placements = type(embedding), getattr(embedding.weight, "placements", ())
    if placements != (Shard(0),):
        return
    embedding.__class__ = SplitEmbedding if kind is nn.Embedding else type(kind.__name__, (kind, SplitEmbedding), {})


def _length(kwargs: dict[str, Any]) -> int:
    """Tokens of a row, as its rotary positions have them."""
    return int(kwargs["position_embeddings"][0].shape[-2])


def _joined(part_BPH: Tensor, mesh: DeviceMesh, length: int) -> DTensor:
    batch, _, width = part_BPH.shape
    spread = DTensor.from_local(
        part_BPH,
        mesh,
        [Shard(POSITIONS)],
        run_check=False,
        shape=Size((batch, length, width)),
        stride=(length * width, width, 1),
    )
    return spread.redistribute(placements=[Replicate()])
