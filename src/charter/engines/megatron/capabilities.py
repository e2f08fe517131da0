"""Layouts of Megatron-LM: the parallelism guide of Megatron-Core and its `ModelParallelConfig`."""

from charter.engines.common.capabilities import NONE, OPTIMIZER, Capabilities, FixedField
from charter.physics.precision import MEGATRON
from charter.spec.layout import Recompute

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
VERSION = f"0.20.0 ({COMMIT[:7]})"
"""What the mapping was read from."""
CAPABILITIES = Capabilities(
    name="megatron",
    does="tensor, sequence, pipeline (interleaved), context and expert parallelism, distributed optimizer (ZeRO-1)",
    stack="megatron-core",
    memory="megatron",
    precision=MEGATRON,
    zero=(NONE, OPTIMIZER),
    recompute=tuple(Recompute),
    tensor=True,
    sequence_parallel=True,
    pipeline=True,
    interleave=True,
    even_pipeline=True,
    context=True,
    expert=True,
    packs=True,
    kinds=("pretrain", "sft"),
    fp8_kinds=("pretrain", "sft"),
    fixed=(
        FixedField(field="adapter", only=None, why="it trains all parameters"),
        FixedField(
            field="packing", only=False, why="a row begins anew at a system message only, which not every one has"
        ),
    ),
)
