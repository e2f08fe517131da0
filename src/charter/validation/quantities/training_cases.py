"""The configuration behind a measured training step: every blank cell filled by a rule that fits any source."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.stacks import StackProfile
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout
from charter.units import GB
from charter.validation.quantities.training_gaps import Job, parallel_layout, with_batches, with_recompute
from charter.validation.rows.accelerator import accelerator_of, node_network, scaleup_domain
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement
from charter.validation.rows.metrics import compares_pairs, in_milliseconds, needs_reference, training_metric
from charter.validation.stacks import profile_of

EVERYWHERE = 1e9
"""Ranks of a shard group that spans all data-parallel ranks."""
LEAST_CLUSTER_NETWORK = 100 * GB / 8
"""Bytes per second of a node: 100 Gbit/s, a common cloud default."""
USUAL_SEQUENCE = {"pretrain": 4096.0, "tuning": 2048.0}
"""Tokens per sequence where a source prints none: judgement. Rates hardly depend on it; a step's time is in proportion
to it, so that such a row is a rough guess."""
_PACKED = re.compile(r"(?<!no )(?<!without )(?<!un)(?<!non-)pack(ed|ing)?\b")
_COMPRESSED = re.compile(r"zero ?\+\+|\bq[wg]z\b", re.IGNORECASE)
"""ZeRO++ (arXiv:2306.10209): weights gathered in 8 bits, gradients reduced in 4; its copies inside a node (hpZ) are not
modelled."""
REFERENCE = 1.3
"""Time of a step that also scores its pairs with a frozen reference (DPO), over one that does not: one forward pass
more beside three or four; judgement."""
KERNELS = {
    "unfused": "unfused", "flash1": "flash1", "triton": "flash1", "flash2": "flash2",
    "flash3": "recent", "flash4": "recent", "cudnn": "recent", "trtllm": "recent", "splash": "compiled",
}  # fmt: skip
"""Generation of an attention kernel by its typed name. PyTorch's `sdpa` and `flex` choose one by release and device,
so that there the stack's habit stays."""
SPREAD = 0.6
"""Of the longest of b sequences over their mean, per unit of ln b: an exponential tail would give 1; judgement."""


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """One measured training step, ready for the planner."""

    architecture: Architecture
    accelerator: Accelerator
    profile: StackProfile
    layout: Layout
    seq: float
    """Tokens computed per sequence."""
    metric: str
    tokens: float
    """Tokens (samples, steps) of a step as the source counts them."""
    scale: float = 1.0
    """From seconds to the row's unit."""
    bits: float = 16.0
    value_bytes: float = 2.0
    block_scaled: bool = False
    autocast: bool = False
    frozen: bool = False
    adapter_rank: float = 0.0
    base_bits: float = 16.0
    shard_group: float = EVERYWHERE
    keeps_gathered: bool = False
    module_recompute: float = 0.0
    recompute_share: float = 1.0
    head_share: float = 1.0
    compression: float = 1.0
    mtp: bool = False
    network_bytes_per_second: float | None = None
    """Of a node."""
    node: int | None = None
    domain: int | None = None


def training_case(row: Measurement) -> TrainingCase:
    """Every gap of a row filled; raises Refusal where model or accelerator are unknown."""
    architecture, accelerator, seq = architecture_of(row), accelerator_of(row), _sequence(row)
    job = Job(row=row, architecture=architecture, accelerator=accelerator, profile=profile_of(row), seq=seq)
    adapter = _adapter(row)
    bits, block_scaled = _bits(row.dtype) if adapter not in ("qlora", "8bit") else (16.0, False)
    layout = with_batches(job, parallel_layout(job))
    layout, modules, share = with_recompute(job, layout, eight_bit=bits < 16)
    sequences = layout.micro_batch * layout.accumulation * layout.data
    pairs = 2 if row.kind == "rm" or compares_pairs(row) else 1
    reference = REFERENCE if compares_pairs(row) and needs_reference(row) else 1.0
    computed, counted = _lengths(job, layout.micro_batch)
    return TrainingCase(
        architecture=architecture,
        accelerator=accelerator,
        profile=_profile(job),
        layout=replace(layout, micro_batch=layout.micro_batch * pairs),
        seq=computed,
        metric=_metric(row),
        tokens=_counted(row, sequences, pairs * counted) / reference,
        scale=(1e3 if in_milliseconds(row) else 1.0) * reference,
        bits=bits,
        value_bytes=4.0 if bits > 16 else 2.0,
        block_scaled=block_scaled,
        autocast="amp" in row.dtype.casefold(),
        frozen=adapter != "full",
        adapter_rank=float(row.lora_rank or 16) if adapter != "full" else 0.0,
        base_bits={"qlora": 4.0, "8bit": 8.0}.get(adapter, 16.0),
        shard_group=_shard_group(row, accelerator),
        keeps_gathered="grad_op" in row.shard,
        module_recompute=modules,
        recompute_share=share,
        head_share=0.0 if row.kind == "rm" else 1.0,
        compression=0.5 if _COMPRESSED.search(f"{row.shard} {row.framework} {row.notes}") else 1.0,
        mtp=bool(architecture.num_mtp_layers) and row.kind == "pretrain" and "w/o mtp" not in row.notes.casefold(),
        network_bytes_per_second=_network(row, accelerator),
        node=row.gpus_per_node,
        domain=scaleup_domain(row.interconnect, row.gpu),
    )


def _metric(row: Measurement) -> str:
    counted = training_metric(row) or ""
    if counted == "step":
        return "step_time_s"
    return "tokens_per_s_per_gpu" if counted.endswith("per gpu") else "tokens_per_s_total"


def _counted(row: Measurement, sequences: float, tokens: float) -> float:
    """Return the units that a rate of the row counts in one step: its tokens, its samples, or the step itself."""
    unit = training_metric(row) or ""
    if unit.startswith("samples"):
        return sequences
    return 1.0 if unit.startswith("steps") else sequences * tokens


def _network(row: Measurement, accelerator: Accelerator) -> float | None:
    """Of a node, as printed; a cluster that does not say has no workstation's network card."""
    printed = node_network(row.interconnect, row.gpus_per_node or accelerator.devices_per_node)
    usual = accelerator.scaleout_bytes_per_second_per_node
    return printed or (LEAST_CLUSTER_NETWORK if usual and usual < LEAST_CLUSTER_NETWORK else None)


def _sequence(row: Measurement) -> float:
    """As printed; blank: prompt and answer, else what a run of its kind usually has."""
    seq = row.seq or row.mean_len or (row.isl or 0) + (row.osl or 0)
    return float(seq or USUAL_SEQUENCE["pretrain" if row.kind == "pretrain" else "tuning"])


def _lengths(job: Job, micro_batch: int) -> tuple[float, float]:
    """Tokens computed and tokens counted per sequence.

    Packed or padded to the limit: the limit. Where batches are padded to their longest answer, the longest of b
    lengths is about `1 + 0.6 ln b` means, and the source counts real tokens.
    """
    mean, seq = job.row.mean_len, job.seq
    packed = bool(_PACKED.search(job.row.notes.casefold())) or job.megatron or job.row.kind == "pretrain"
    if not mean or mean >= seq or packed:
        return seq, seq
    return min(seq, mean * (1 + SPREAD * math.log(max(micro_batch, 1)))), mean


def _profile(job: Job) -> StackProfile:
    """The stack's profile with what the row says of kernels and of gradients on the wire."""
    profile, dtype = job.profile, job.row.dtype.casefold()
    if kernel := KERNELS.get(job.row.attention_kernel):
        profile = replace(profile, attention=kernel)
    elif job.row.flash == 0:
        profile = replace(profile, attention="unfused")
    elif job.row.flash == 1 and profile.attention == "unfused":
        profile = replace(profile, attention="flash2")
    if "pure" in dtype:
        return replace(profile, gradient_bytes=2.0)
    if "amp" in dtype and profile.name in ("composer", "fsdp", "litgpt"):
        return replace(profile, gradient_bytes=4.0)
    return profile


def _bits(dtype: str) -> tuple[float, bool]:
    """Bits of the operands of products, and whether blocks of them share a scale."""
    text = dtype.casefold()
    if "fp4" in text and "nf4" not in text and "bnb" not in text:
        return 4.0, True
    if any(word in text for word in ("fp8", "float8", "e4m3", "f8")) or text == "int8":
        return 8.0, any(word in text for word in ("mx", "alt", "block"))
    if "tf32" in text:
        return 19.0, False
    if "fp32" in text or "float32" in text:
        return 32.0, False
    return 16.0, False


def _adapter(row: Measurement) -> str:
    text, dtype = row.adapter.casefold(), row.dtype.casefold()
    lora = any(word in text for word in ("lora", "adapter", "dora")) or (not text and row.kind == "lora")
    if "qlora" in text or (lora and any(word in dtype for word in ("int4", "nf4", "4bit", "4-bit", "fp4"))):
        return "qlora"
    if lora and any(word in dtype for word in ("int8", "8bit", "8-bit")):
        return "8bit"
    return "lora" if lora else "full"


def _shard_group(row: Measurement, accelerator: Accelerator) -> float:
    if any(word in row.shard.casefold() for word in ("hybrid", "hsdp")):
        return float(row.gpus_per_node or accelerator.devices_per_node)
    return EVERYWHERE
