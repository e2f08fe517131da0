"""Layouts of MaxText on TPUs, as far as Charter writes them: its FSDP, whole slices as replicas, experts.

Read at e591f30: src/maxtext/configs/base.yml (mesh axes) and configs/types.py. It has tensor, context and pipeline
parallelism too. They are left out: a batch is counted there in rows of a device, and where several devices share a row
it loads rows that it then drops (types.py, calculate_global_batch_sizes). It runs on NVIDIA's accelerators too, where
Charter writes no files for it.
"""

from charter.engines.common.capabilities import GOOGLE, NONE, PARAMETERS, Capabilities, FixedField
from charter.physics.precision import FSDP_MIXED
from charter.spec.layout import Recompute

COMMIT, DATE = "e591f30cbbf217ed67ef71263ec0538239f9c3b8", "2026-08-22"
VERSION = f"0.2.4 ({COMMIT[:7]})"
"""What the mapping was read from."""
CAPABILITIES = Capabilities(
    name="maxtext",
    does="FSDP (ZeRO-3), copies of it on several slices, data and expert parallelism, on TPUs",
    stack="maxtext",
    memory="maxtext",
    precision=FSDP_MIXED,
    zero=(NONE, PARAMETERS),
    recompute=tuple(Recompute),
    expert=True,
    hybrid=True,
    fills_rows=True,
    kinds=("pretrain", "sft"),
    makers=(GOOGLE,),
    untried=(GOOGLE,),
    without_fp8="on TPUs its products of 8 bits are of integers (quantization: int8)",
    fixed=(
        FixedField(field="adapter", only=None, why="its adapters are of its other trainer, on Tunix"),
        FixedField(field="packing", only=False, why="it packs by an order of its own, so that batches would be others"),
    ),
)
