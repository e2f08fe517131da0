"""Decisions for one stage: place, layout, time and money, and the options that were dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from charter.cost.money import micro_usd, usd
from charter.physics.terms import Interval, Term
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import EngineLayout, Found
from charter.plan.options.stage_risk import StageRisk
from charter.plan.physics.knowledge import SERVING
from charter.plan.serving.endpoint_option import own_or_endpoint
from charter.plan.stages.interval_source import PeakRange
from charter.plan.stages.node_needs import NodeNeeds
from charter.plan.stages.work_done import NOTHING_DONE, WorkDone
from charter.plan.work.phase import Counters
from charter.spec.execution import Execution

QUANTILES = ("p10", "p50", "p90")
AT_ONCE = Interval(p10=0.0, p50=0.0, p90=0.0)


@dataclass(frozen=True, kw_only=True)
class MicroUsd:
    """A range of money in whole micro-USD; sums of it are exact."""

    p10: int
    p50: int
    p90: int

    def plus(self, other: "MicroUsd") -> "MicroUsd":
        """Quantile by quantile."""
        return MicroUsd(p10=self.p10 + other.p10, p50=self.p50 + other.p50, p90=self.p90 + other.p90)

    def to_json(self) -> dict[str, float]:
        """In usd."""
        return {name: usd(getattr(self, name)) for name in QUANTILES}


def money(interval: Interval) -> MicroUsd:
    """A range rounded to micro-USD once."""
    return MicroUsd(p10=micro_usd(interval.p10), p50=micro_usd(interval.p50), p90=micro_usd(interval.p90))


NOTHING_PAID = MicroUsd(p10=0, p50=0, p90=0)
NO_MONEY: dict[str, float | None] = dict.fromkeys(QUANTILES)


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage of a plan."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    """Stages that it waits for."""
    option: Option
    counters: Counters
    checkpoint_bytes: float
    storage_bytes: float
    """Checkpoints that are kept, the weights it makes, the records it writes."""
    compute_usd: MicroUsd | None
    storage_usd: MicroUsd | None
    rejected: tuple[Rejected, ...]
    workload_terms: tuple[Term, ...]
    node: NodeNeeds
    """What it needs around the accelerators."""
    peak_range: PeakRange
    """How far the peak may be off, and how that is known."""
    time_source: str
    """Which measurements the width of the time comes from."""
    time_quantity: str = SERVING
    """The estimator whose error its time shares with other stages."""
    risk: StageRisk | None = None
    """What is expected of failures, and what checkpoints and spares cost."""
    market_reason: str = ""
    """Why on spot or on demand; empty where there is no choice."""
    options: tuple[Option, ...] = ()
    """Everything that fits, the chosen one among it."""
    searched: Found | None = None
    """The search that the options come from."""
    other_engines: tuple[EngineLayout, ...] = ()
    """What other engines could do on the same accelerators, where that was asked for."""
    transfer_usd: MicroUsd = NOTHING_PAID
    """Bringing what it reads from other providers or regions, and its results to a named storage."""
    transfer_bytes: float = 0.0
    transfer_seconds: Mapping[str, float] = field(default_factory=dict)
    """Until the results of each input are where they are read."""
    wait_seconds: Interval = AT_ONCE
    """In a queue, and for data that goes through a named storage, once the inputs are there."""
    lead_seconds: float = 0.0
    """From the start of the project until its capacity is to be had."""
    endpoint_usd: MicroUsd = NOTHING_PAID
    """What endpoints charge, where `serving` has their price."""
    execution: Execution | None = None
    """What runs; None in plans that were put together for a question of their own."""
    done: WorkDone = NOTHING_DONE
    """Model operations, and tokens that an endpoint is asked for."""

    @property
    def serving_reason(self) -> str:
        """Return why own accelerators or an endpoint, with the figures of both; empty where there is no choice."""
        return own_or_endpoint(self.option, self.options)

    @property
    def usd(self) -> MicroUsd | None:
        """Machines, storage, transfer and endpoints; None where one of them has no price."""
        if self.compute_usd is None or self.storage_usd is None or not all(use.is_priced for use in self.done.api):
            return None
        return self.compute_usd.plus(self.storage_usd).plus(self.transfer_usd).plus(self.endpoint_usd)

    @property
    def gpu_hours(self) -> Interval:
        """Billed hours of all accelerators."""
        return self.option.billed_hours.scaled(self.option.num_accelerators)

    @property
    def fits_probability(self) -> float | None:
        """P(peak <= memory of the fullest device), by `Interval.probability_below`; None where nothing is filled.

        The whole memory of the device counts, not the part that a plan may fill: what is chosen lies near 0.9 or above.
        Limit: processors have no measured width, and the share that a plan leaves free stands for it.
        """
        if self.option.peak.total_bytes <= 0:
            return None
        return round(self.peak_range.interval.probability_below(self.option.fullest_device.memory_bytes), 4)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Everything `--explain` prints."""
        return (*self.workload_terms, *self.option.peak.terms, *self.option.time_terms, *self.node.terms)

    def to_json(self) -> dict[str, object]:
        """The stage as `charter plan --json` prints it."""
        option = self.option
        return {
            "name": self.name,
            "kind": self.kind,
            "inputs": list(self.inputs),
            "accelerator": option.place.accelerator.name,
            "count": option.num_accelerators,
            "num_nodes": option.num_nodes,
            "infra": option.place.infra,
            "region": option.place.region,
            "instance": option.place.instance,
            "market": option.price.market,
            "price": {
                "usd_per_accelerator_hour": option.price.usd_per_hour,
                "source": option.price.source,
                "as_of": option.price.as_of,
            },
            "layout": layout_json(option),
            "execution": None if self.execution is None else self.execution.to_json(),
            "placement": option.placement or None,
            "groups": [group.to_json() for group in option.groups],
            "idle_share": round(option.idle_share, 4),
            "peak_bytes": round(option.peak.total_bytes),
            "peak_bytes_range": {name: round(getattr(self.peak_range.interval, name)) for name in QUANTILES},
            "capacity_bytes": round(option.capacity_bytes),
            "fits": option.peak.total_bytes <= option.capacity_bytes,
            "fits_probability": self.fits_probability,
            "seconds": interval_json(option.seconds),
            "gpu_hours": interval_json(self.gpu_hours),
            "usd": NO_MONEY if self.usd is None else self.usd.to_json(),
            "storage_bytes": round(self.storage_bytes),
            "checkpoint_bytes": round(self.checkpoint_bytes),
            "transfer_bytes": round(self.transfer_bytes),
            "wait_seconds": interval_json(self.wait_seconds),
            "lead_seconds": self.lead_seconds,
            "workload": {name: round(value, 3) for name, value in vars(self.counters).items()},
            **({"asked": [use.to_json() for use in self.done.api]} if self.done.api else {}),
            "breakdown": self._breakdown(),
            "node": self.node.to_json(),
            "risk": None if self.risk is None else self.risk.to_json(),
            "market_reason": self.market_reason,
            "serving_reason": self.serving_reason,
            "rejected": [item.to_json() for item in self.rejected],
            "engine": option.engine,
            "dtype": option.dtype or None,
            "tied_layouts": [item.to_json() for item in option.tied_layouts],
            "other_engines": [item.to_json() for item in self.other_engines],
            "search": None if self.searched is None else self.searched.counts,
        }

    def _breakdown(self) -> dict[str, Mapping[str, float] | None]:
        money = {"compute": self.compute_usd, "storage": self.storage_usd, "transfer": self.transfer_usd}
        money |= {"endpoints": self.endpoint_usd} if self.endpoint_usd.p90 else {}
        priced = {name: usd(value.p50) for name, value in money.items() if value is not None}
        return {
            "memory_bytes": {name: float(round(value)) for name, value in self.option.peak.by_part().items()},
            "seconds": self._seconds_by_part(),
            "usd": priced if len(priced) == len(money) else None,
        }

    def _seconds_by_part(self) -> dict[str, float]:
        """Median seconds by phase; what checkpoints, failures and the start add is the last two."""
        option = self.option
        parts: dict[str, float] = {}
        for term in option.time_terms:
            parts[term.part] = parts.get(term.part, 0.0) + term.value
        around = option.overhead
        risk = around.median_wall_seconds - around.useful_seconds - around.start_seconds
        parts["checkpoints and failures"] = max(0.0, risk)
        parts["start"] = option.overhead.start_seconds
        return {name: round(value, 6) for name, value in parts.items()}


def interval_json(interval: Interval) -> dict[str, float]:
    """Three quantiles, to the microsecond."""
    return {name: round(getattr(interval, name), 6) for name in QUANTILES}


def layout_json(option: Option) -> dict[str, object]:
    """Every degree and knob, with the short name."""
    layout = option.layout
    return {
        "label": option.layout_label,
        "data": layout.data,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "zero": int(layout.zero),
        "sequence_parallel": layout.sequence_parallel,
        "micro_batch": layout.micro_batch,
        "accumulation": layout.accumulation,
        "recompute": layout.recompute.value,
        "context": layout.context,
        "expert": layout.expert,
        "interleave": layout.interleave,
        "replicas": layout.replicas,
        "offload_optimizer": layout.offload_optimizer,
        "offload_parameters": layout.offload_parameters,
    }
