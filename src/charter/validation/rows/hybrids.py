"""Hybrids of attention and Mamba-2 that the catalog does not know, from the widths of a row."""

import math
from collections.abc import Iterator
from dataclasses import replace

from charter.physics.shapes import count_parameters
from charter.spec.architecture import Architecture, StateSpace

MAMBA_HEAD, GROUPS = 64, 8
ATTENTION_SHARE = 0.08
"""Attention layers among the blocks: 7-10 % in Nemotron-H, 10 % in Granite 4, 12 % in Jamba."""


def hybrid_architecture(shape: Architecture, params_b: float | None, *, depth_is_known: bool) -> Architecture:
    """The hybrid whose parameters come closest to `params_b` among the usual kinds; Nemotron-H's where it is blank.

    Kinds: a block is a mixer, an MLP or attention (Nemotron-H, arXiv:2504.03624, table 1), or every layer has a mixer
    and an MLP (Granite 4, Bamba); state 128 or 256; inner width twice the model's; MLP gated or not. Where the row
    does not say how many blocks there are, their number is scaled with the rest.
    """
    kinds = list(_kinds(shape))
    if params_b is None:
        return kinds[0]
    target = params_b * 1e9
    if not depth_is_known:
        kinds = [_with_depth(shape, kind, target) for kind in kinds]
    return min(kinds, key=lambda kind: abs(math.log(count_parameters(kind).total / target)))


def _kinds(shape: Architecture) -> Iterator[Architecture]:
    states = (256, 128) if shape.hidden_size >= 8192 else (128, 256)
    for apart, gated in ((True, False), (True, True), (False, True), (False, False)):
        for state in states:
            yield _hybrid(replace(shape, gated_mlp=gated), state_size=state, apart=apart)


def _hybrid(shape: Architecture, *, state_size: int, apart: bool) -> Architecture:
    attention = max(1, round(ATTENTION_SHARE * shape.num_layers))
    others = shape.num_layers - attention
    inner = 2 * shape.hidden_size
    space = StateSpace(
        num_layers=others // 2 if apart else others,
        inner_size=inner,
        state_size=state_size,
        num_heads=max(1, inner // MAMBA_HEAD),
        num_groups=GROUPS,
    )
    return replace(
        shape,
        state_space=space,
        num_attention_layers=attention,
        num_mlp_layers=others - others // 2 if apart else None,
        norms_per_layer=1 if apart else 2,
        tied_embeddings=False,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        norm_parameters_per_feature=1,
    )


def _with_depth(shape: Architecture, kind: Architecture, target: float) -> Architecture:
    assert kind.state_space is not None
    count = count_parameters(kind)
    blocks = (target - (count.total - count.layers)) / (count.layers / kind.num_layers)
    deeper = replace(shape, num_layers=max(4, round(blocks)), gated_mlp=kind.gated_mlp)
    return _hybrid(deeper, state_size=kind.state_space.state_size, apart=kind.num_mlp_layers is not None)
