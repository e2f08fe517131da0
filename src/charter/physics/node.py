"""Needs around the accelerators of a node: system memory, cores, disk, bytes over the wire."""

from charter.physics.columns import RECOMPUTE_CODES, array
from charter.physics.memory_shape import rank_parameters
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.shapes import adapter_parameters, count_parameters, num_moe_layers
from charter.physics.stacks import StackProfile
from charter.physics.step_seconds import layer_reductions
from charter.physics.terms import Breakdown, Term, bytes_term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, ZeroStage
from charter.units import GIB

# -------- System memory per node: loading, offloading, checkpoint staging, data loading.

PROCESS_BYTES = 4.0 * GIB
"""Per rank: interpreter, torch, driver mappings, pinned buffers. Assumption."""
LOADER_BYTES = 2.0 * GIB
"""Per rank: data-loading workers. Assumption."""
PINNED_BYTES = 1.0 * GIB
"""Per rank that offloads: two page-locked buffers through which state passes to and from the device. Assumption."""
SYSTEM_BYTES = 8.0 * GIB
"""Operating system, page cache that cannot shrink, agents. Assumption."""


def host_terms(*, loading_bytes: float, checkpoint_bytes: float, offload_bytes: float, ranks: int) -> Breakdown:
    """System memory of a node from the bytes of its parts; `checkpoint_bytes` is the node's share of one checkpoint."""
    staging, pinned = 2.0 * checkpoint_bytes, ranks * PINNED_BYTES * (offload_bytes > 0)
    larger = "staging" if staging > loading_bytes else "loading"
    return Breakdown(
        terms=(
            _host_term(
                larger,
                max(staging, loading_bytes),
                "max(2 B x N, 2 x checkpoint of the node's ranks)",
                "physics/node.py",
            ),
            _host_term(
                "offload", offload_bytes, "optimizer and weights moved off the device", "Rajbhandari et al. 2021"
            ),
            _host_term(
                "pinned buffers", pinned, f"{ranks} ranks x 1 GiB where they offload", "assumption (physics/node.py)"
            ),
            _host_term("processes", ranks * PROCESS_BYTES, f"{ranks} ranks x 4 GiB", "assumption (physics/node.py)"),
            _host_term("data loading", ranks * LOADER_BYTES, f"{ranks} ranks x 2 GiB", "assumption (physics/node.py)"),
            _host_term("system", SYSTEM_BYTES, "8 GiB", "assumption (physics/node.py)"),
        )
    )


def _host_term(name: str, value: float, formula: str, source: str) -> Term:
    return bytes_term(name, "system memory", value, formula, source)


# -------- Processor cores of a node that keep data loading hidden behind the accelerators.

CORES_PER_ACCELERATOR = 4
"""That a job asks for: one for the process, the rest for what it starts, loaders and threads of NCCL. Judgement; no
machine of the shipped prices has fewer."""
TOKENISED_SECONDS_PER_TOKEN = 5e-8
"""CPU time to read, collate and copy one token that is stored as a number, packed end to end: a worker takes about
0.1 ms of Python for a sequence of 2,048. Judgement."""
TEXT_SECONDS_PER_TOKEN = 2.8e-6
"""CPU time to tokenise text as it is read: a compiled byte-level BPE does about 1.5 MB of text per second and core (the
README of Hugging Face tokenizers: 1 GB in under 20 s on a server, read as 32 cores), at 4.2 bytes per token. Judgement
within a factor of two; slow (pure Python) tokenizers take twenty times as long."""


def loader_cores(tokens_per_second: float, *, seconds_per_token: float = TEXT_SECONDS_PER_TOKEN) -> float:
    """Cores that deliver so many tokens a second: `tokens per second x CPU seconds per token`.

    Holds while workers do not wait for the disk; add one core per process that only feeds its accelerator.

    >>> round(loader_cores(100_000), 3), loader_cores(100_000, seconds_per_token=TOKENISED_SECONDS_PER_TOKEN)
    (0.28, 0.005)
    """
    return tokens_per_second * seconds_per_token


# -------- Bytes over the wire per optimizer step and rank.


def hidden_bytes_per_second(num_bytes: float, seconds: float) -> float:
    """Bandwidth at which traffic takes no longer than the work it may hide behind: `bytes / seconds`.

    Below it the rest is exposed and lengthens the step. No latency, and both run at once from start to end: a schedule
    that releases its traffic late (gradients of the first layers) needs more. Infinite where there is traffic and
    nothing to hide it behind.

    >>> hidden_bytes_per_second(100e9, 2.0) / 1e9, hidden_bytes_per_second(1.0, 0.0), hidden_bytes_per_second(0.0, 0.0)
    (50.0, inf, 0.0)
    """
    if num_bytes <= 0:
        return 0.0
    return num_bytes / seconds if seconds > 0 else float("inf")


def network_bytes_per_step(
    architecture: Architecture,
    layout: Layout,
    *,
    seq_len: float,
    stack: StackProfile,
    precision: TrainingPrecision = FSDP_MIXED,
    adapter: Adapter | None = None,
) -> Breakdown:
    """Bytes one rank of the first stage sends per optimizer step, by kind of parallelism."""
    a, micro = architecture, layout.accumulation
    rank = rank_parameters(a, layout)
    group = layout.data * layout.context // layout.replicas
    ring = (group - 1) / group
    tokens = layout.micro_batch * seq_len / layout.context
    message = tokens * a.hidden_size * precision.compute_bytes
    trained = adapter_parameters(a, adapter) / (layout.tensor * layout.pipeline) if adapter else rank.total
    if layout.zero >= ZeroStage.PARAMETERS:
        data = micro * ring * (2 * precision.compute_bytes * rank.total + precision.gradient_bytes * trained)
    else:
        data = 2 * ring * precision.gradient_bytes * trained
    between = 2 * (layout.replicas - 1) / layout.replicas * precision.gradient_bytes * trained / group
    each = layer_reductions(
        array(RECOMPUTE_CODES[layout.recompute]), array(stack.stops_early), array(adapter is not None)
    )
    reduces = rank.layers * float(each) * micro
    tensor = reduces * 2 * (layout.tensor - 1) / layout.tensor * message
    sends = 2 * micro * layout.interleave * message / layout.tensor if layout.pipeline > 1 else 0.0
    routed = num_moe_layers(a) / a.num_layers * rank.layers * (a.mixture.experts_per_token if a.mixture else 0)
    expert = 4 * micro * routed * message * (layout.expert - 1) / layout.expert
    return Breakdown(
        terms=(
            _wire_term(
                "data parallel", data, f"ZeRO-{int(layout.zero)} over {group}", "Rajbhandari et al. 2020, section 7"
            ),
            _wire_term("between copies", between, f"gradients of a shard over {layout.replicas} hybrid copies", "HSDP"),
            _wire_term(
                "tensor parallel", tensor, f"{reduces:.0f} all-reduces of b s h", "Shoeybi et al. 2019, section 3"
            ),
            _wire_term("pipeline parallel", sends, "2 sends of b s h / TP per micro-batch", "Narayanan et al. 2021"),
            _wire_term("expert parallel", expert, "4 all-to-alls per routed layer", "GShard, arXiv:2006.16668"),
        )
    )


def _wire_term(name: str, value: float, formula: str, source: str) -> Term:
    return bytes_term(name, "network", value, formula, source)


# -------- Bytes on disk: checkpoints, weights, text.

WEIGHT_BYTES_SAVED = 2.0
OPTIMIZER_BYTES_SAVED = 12.0
"""fp32 master copy and two moments. With fp32 weights the master is the weight: the same 14 bytes less 2."""
LOG_BYTES_PER_STEP = 500.0
"""A line of metrics, an event and a line of text per step. Judgement; lines of the native engine are 200-400 B."""
LOG_BYTES_PER_STAGE = 64 * 1024.0
"""Job, record, start and end of the log. Judgement."""
VERDICT_BYTES = 64.0
"""Of one labelled pair beside its texts: principle, probability, order. Judgement."""


def checkpoint_bytes(
    num_parameters: float,
    *,
    trained_parameters: float | None = None,
    weight_bytes: float = WEIGHT_BYTES_SAVED,
    optimizer_bytes: float = OPTIMIZER_BYTES_SAVED,
) -> float:
    """Bytes of a checkpoint that training can resume from: `2 N + 12 N_trained`, 14 bytes per trained parameter.

    Frozen models (reference, reward) are named by hash, not stored. Check: BLOOM's 2.3 TB for 176.2 B parameters is
    13.1 bytes per parameter (its model card). Data position and random state are counters, a few hundred bytes, and not
    counted.

    >>> checkpoint_bytes(13e9) / 1e9
    182.0
    """
    trained = num_parameters if trained_parameters is None else trained_parameters
    return weight_bytes * num_parameters + optimizer_bytes * trained


def model_checkpoint_bytes(architecture: Architecture, *, adapter: Adapter | None = None) -> float:
    """Bytes of one training checkpoint of a model; with an adapter only the adapter is saved."""
    if adapter:
        return checkpoint_bytes(adapter_parameters(architecture, adapter))
    return checkpoint_bytes(count_parameters(architecture).total)


def weights_bytes(architecture: Architecture) -> float:
    """Bytes of the weights alone.

    >>> from charter.catalog import models
    >>> round(weights_bytes(models.get("bloom").architecture) / 1e9)
    352
    """
    return WEIGHT_BYTES_SAVED * count_parameters(architecture).total


def retained_bytes(full_checkpoint_bytes: float, *, keep_last: int) -> float:
    """Bytes kept under a retention policy: the last full checkpoints.

    One more full checkpoint exists while it is being written (written, verified, renamed, then the oldest removed).
    """
    return (keep_last + 1) * full_checkpoint_bytes


def log_bytes(num_steps: float) -> float:
    """Bytes of metrics and logs of a stage of so many steps.

    >>> log_bytes(1000)
    565536.0
    """
    return LOG_BYTES_PER_STAGE + LOG_BYTES_PER_STEP * num_steps
