"""Context parallelism: each process of a group has its own positions of every row; attention has complete rows.

Around attention the group exchanges positions for heads, and back (all-to-all): each process attends with its own heads
over all of a row. So every kernel, mask and bound of packed conversations is that of one process.
Source: Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv:2309.14509), section 3.

Legend: B sequences, T tokens of a row, P tokens of one process, A heads, S of one process, D width of a head, R
processes of the group.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from charter.errors import StageError
from charter.models.ranks import Ranks

PARTS = "row_parts"
"""The input of a model by which its layers know that they have parts of rows."""
GROWING = ("dynamic", "longrope")
"""Rotary positions that depend on the longest row of a pass, of which no process sees the end but one."""


INSTEAD = "context parallelism is not written for it: use context: 1"


class RowParts:
    """The positions of every row that this process has, and the exchange with those that have the others."""

    def __init__(self, ranks: Ranks, config: Any, attention: str) -> None:
        heads = config.num_attention_heads
        keys = getattr(config, "num_key_value_heads", None) or heads
        self._count, self._index, self._group = ranks.context_size, ranks.context_rank, ranks.context_group
        if heads % self._count or (keys % self._count and self._count % keys):
            raise StageError(
                f"{heads} attention heads ({keys} of keys) cannot be shared by {self._count} processes; "
                "context must divide both, or be a multiple of the heads of keys"
            )
        rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        if rotation in GROWING:
            reason = f"positions that depend on the longest row ({rotation})"
            raise StageError(f"{config.model_type} has {reason}; {INSTEAD}")
        self._config = config
        self._exchanges = 0
        _take_parts(attention)

    @property
    def counts_rows(self) -> bool:
        """Return True in the one process of a group that counts what belongs to complete rows."""
        return self._index == 0

    def cut(self, values_BT: Tensor) -> Tensor:
        """Return the positions of this process, as many in each; a row that does not divide is longer by zeros."""
        rest = -values_BT.shape[1] % self._count
        return nn.functional.pad(values_BT, (0, rest)).chunk(self._count, 1)[self._index]

    def inputs(self, given: Mapping[str, Any], ids_BP: Tensor) -> dict[str, Any]:
        """Return a model's inputs for own positions; a mask and bounds stay those of complete rows."""
        rows, own = ids_BP.shape
        positions, mask = given.get("position_ids"), given.get("attention_mask")
        if positions is None:
            positions = torch.arange(own, device=ids_BP.device)[None] + own * self._index
            mask = self._causal_mask(rows, own * self._count, ids_BP.device)
        elif positions.shape[1] % self._count:
            raise ValueError(f"packed rows of {positions.shape[1]} tokens cannot be shared by {self._count} processes")
        else:
            positions = self.cut(positions)
        self._exchanges = 0
        return {**given, "input_ids": ids_BP, "position_ids": positions, "attention_mask": mask, PARTS: self}

    def check(self) -> None:
        """Refuse a model of which a layer has attended to the positions of this process alone."""
        layers = self._config.num_hidden_layers
        if self._exchanges != layers:
            others = layers - self._exchanges
            raise StageError(f"{others} of {layers} layers of {self._config.model_type} see parts of rows; {INSTEAD}")

    def total(self, part_B: Tensor) -> Tensor:
        """Add up what each process has of complete rows; its gradient is that of its own part."""
        total_B: Tensor = _Total.apply(part_B, self._group)  # type: ignore[no-untyped-call]
        return total_B

    def _causal_mask(self, rows: int, width: int, device: torch.device) -> Any:
        """Return the mask of complete rows in the form that the model's attention takes; None where it takes none."""
        from transformers.masking_utils import create_causal_mask

        shape = torch.empty((rows, width, 0), device=device)
        return create_causal_mask(self._config, shape, None, None)

    def heads_for_positions(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """All positions of some heads, (B, S, T, D), for the own positions of all of them, (B, A, P, D)."""
        self._exchanges += 1
        if key.shape[1] % self._count:
            key, value = (item.repeat_interleave(self._count // item.shape[1], 1) for item in (key, value))
        shape = (query.shape[0], self._count, -1, *query.shape[2:])
        parts = [item.reshape(shape) for item in (query, key, value)]
        sizes = [item.shape[2] for item in parts]
        dtype = torch.promote_types(query.dtype, value.dtype)
        sent_RBSPD = torch.cat([item.to(dtype) for item in parts], 2).movedim(1, 0)
        given_RBSPD = _exchanged(sent_RBSPD, self._group)
        together_BSTD = given_RBSPD.permute(1, 2, 0, 3, 4).flatten(2, 3)
        split: tuple[Tensor, ...] = torch.split(together_BSTD, sizes, 1)
        return tuple(item.to(own.dtype) for item, own in zip(split, (query, key, value), strict=True))

    def positions_for_heads(self, attended_BTSD: Tensor) -> Tensor:
        """Return the own positions of all heads, (B, P, A, D)."""
        batch, length, *heads = attended_BTSD.shape
        sent_RBPSD = attended_BTSD.reshape(batch, self._count, length // self._count, *heads).movedim(1, 0)
        given_RBPSD = _exchanged(sent_RBPSD, self._group)
        return given_RBPSD.permute(1, 2, 0, 3, 4).flatten(2, 3)


class _PositionExchange(torch.autograd.Function):
    """Part r of the first dimension goes to process r, whose part comes back in its place; its own inverse."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, group: Any) -> Tensor:
        """Return what the others sent."""
        ctx.group = group
        sent = sent.contiguous()
        given = torch.empty_like(sent)
        dist.all_to_all_single(given, sent, group=group)
        return given

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return gradients to where the values came from."""
        return _exchanged(gradient, ctx.group), None


class _Total(torch.autograd.Function):
    """A sum over processes that all go on with, each to its own gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        """Return the sum."""
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as it is: the others have theirs."""
        return gradient, None


def _exchanged(sent: Tensor, group: Any) -> Tensor:
    given: Tensor = _PositionExchange.apply(sent, group)  # type: ignore[no-untyped-call]
    return given


def _take_parts(attention: str) -> None:
    """Let an attention of transformers' models exchange parts of rows where it is given them; else it is as it was."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = ALL_ATTENTION_FUNCTIONS.get(attention)
    if getattr(plain, PARTS, False):
        return

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *,
        row_parts: RowParts | None = None,
        **more: Any,
    ) -> tuple[Tensor, Any]:
        """Attend with own heads over complete rows."""
        own: Any = plain or sys.modules[type(module).__module__].eager_attention_forward
        if row_parts is None:
            return own(module, query, key, value, attention_mask, **more)  # type: ignore[no-any-return]
        more.pop("position_ids", None)  # those of this process
        query, key, value = row_parts.heads_for_positions(query, key, value)
        with _queries_of_a_key(module, query.shape[1] // key.shape[1]):
            attended, _ = own(module, query, key, value, attention_mask, **more)
        return row_parts.positions_for_heads(attended), None

    setattr(attend, PARTS, True)
    AttentionInterface.register(attention, attend)


@contextlib.contextmanager
def _queries_of_a_key(module: Any, count: int) -> Iterator[None]:
    """While open, attention repeats each head of keys `count` times."""
    usual = getattr(module, "num_key_value_groups", None)
    module.num_key_value_groups = count
    try:
        yield
    finally:
        module.num_key_value_groups = usual
