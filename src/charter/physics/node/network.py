"""Bytes over the wire per optimizer step and rank."""

from charter.physics.memory.states import rank_parameters
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.shapes.parameters import adapter_parameters, num_moe_layers
from charter.physics.terms import Breakdown, Term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage


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
    reduces = rank.layers * (6 if layout.recompute is Recompute.FULL else 4) * micro
    tensor = reduces * 2 * (layout.tensor - 1) / layout.tensor * message
    sends = 2 * micro * layout.interleave * message / layout.tensor if layout.pipeline > 1 else 0.0
    routed = num_moe_layers(a) / a.num_layers * rank.layers * (a.mixture.experts_per_token if a.mixture else 0)
    expert = 4 * micro * routed * message * (layout.expert - 1) / layout.expert
    return Breakdown(
        terms=(
            _bytes(
                "data parallel", data, f"ZeRO-{int(layout.zero)} over {group}", "Rajbhandari et al. 2020, section 7"
            ),
            _bytes("between copies", between, f"gradients of a shard over {layout.replicas} hybrid copies", "HSDP"),
            _bytes("tensor parallel", tensor, f"{reduces} all-reduces of b s h", "Shoeybi et al. 2019, section 3"),
            _bytes("pipeline parallel", sends, "2 sends of b s h / TP per micro-batch", "Narayanan et al. 2021"),
            _bytes("expert parallel", expert, "4 all-to-alls per routed layer", "GShard, arXiv:2006.16668"),
        )
    )


def _bytes(name: str, value: float, formula: str, source: str) -> Term:
    return Term(name=name, part="network", value=value, unit="bytes", formula=formula, source=source)
