"""Decisions for one stage: place, layout, time and money, the options that were dropped, and what is submitted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log

from charter.cost.job import micro_usd, usd
from charter.engines import rl_engines
from charter.engines.native.capabilities import CAPABILITIES
from charter.physics.terms import Interval, Term
from charter.plan.endpoint_use import NOTHING_DONE, WorkDone
from charter.plan.knowledge import (
    CPU_USABLE_SHARE,
    ENDPOINT_SIGMA_SOURCE,
    LOCAL_SIGMA_SOURCE,
    SERVING,
    Knowledge,
    memory_group,
    time_group,
)
from charter.plan.node_needs import NodeNeeds
from charter.plan.option import DeviceGroup, EngineLayout, Found, Option, Rejected, RoleGroup
from charter.plan.phase import Counters, Workload
from charter.plan.risk import LENGTH_SIGMA
from charter.plan.servers import own_or_endpoint, own_roles
from charter.plan.stage_risk import StageRisk
from charter.spec.execution import CLIENT, TRAINER, ExecutableLayout, Execution, RoleExecution, Use, executable
from charter.spec.project import Project
from charter.spec.sections import why_no_samples
from charter.spec.stage import TRAINS
from charter.spec.stage_base import NATIVE, ServerPool, Stage
from charter.units import GIB

# -------- From a planned option to the value that is run, submitted and exported (`charter.spec.execution`).

POOL_ENGINE = "vllm"
"""What answers for a model on accelerators of its own."""
LEAST_CONTEXT = 8192
"""Tokens; less would save no memory worth a refused prompt."""


def execution_of(
    stage: Stage, option: Option, work: Workload, needs: NodeNeeds, *, pools: Mapping[str, ServerPool]
) -> Execution:
    """Return what runs for a stage that was planned so; `pools` are the servers that the file describes, by model."""
    place = option.place
    return Execution(
        engine=option.engine,
        nodes=option.num_nodes,
        accelerators_per_node=0 if place.is_cpu else place.per_node,
        roles=dict(_roles(stage, option, work, pools)),
        accelerator="" if place.is_cpu else place.accelerator.name,
        market=option.price.market,
        infra=place.infra,
        region=option.price.region or place.region,
        instance=place.instance,
        memory_bytes_per_node=0 if place.is_cpu else ceil(needs.memory.total / GIB) * GIB,
        placement=option.placement,
        generator_tensor=option.generator_tensor if option.groups else 0,
        waits_on_host=option.waits_on_host,
    )


def _roles(
    stage: Stage, option: Option, work: Workload, pools: Mapping[str, ServerPool]
) -> Iterator[tuple[str, RoleExecution]]:
    if stage.kind not in TRAINS:
        yield from _answering(stage, option, work, pools)
    elif option.groups:
        beside = {group.name: group for group in option.beside}
        for group in option.groups:
            yield _group_name(group), _of_group(stage, option, group, beside.get(group.name))
    else:
        rows, parts = stage.SEQUENCES_PER_ROW, option.decode_batch
        layout = executable(option.layout, rows=rows, decode_batch=parts, dtype=option.dtype)
        yield TRAINER, _own(option, "train", layout)


def _own(option: Option, use: Use, layout: ExecutableLayout) -> RoleExecution:
    """A role that has all accelerators of the stage's own machines."""
    return RoleExecution(
        use=use,
        nodes=option.num_nodes,
        accelerators_per_node=0 if option.place.is_cpu else option.place.per_node,
        layout=layout,
        engine=option.engine,
        accelerator="" if option.place.is_cpu else option.place.accelerator.name,
    )


def _answering(
    stage: Stage, option: Option, work: Workload, pools: Mapping[str, ServerPool]
) -> Iterator[tuple[str, RoleExecution]]:
    """A pool for each model that is asked; on processors the stage's own process answers, but for pools of the file.

    All pools of a stage have the same accelerators, each a share of their memory. An evaluation computes with weights
    beside its judge, and has the first group of accelerators for that.
    """
    place, layout = option.place, option.layout
    alone = own_roles(stage, work)
    if place.is_cpu:
        yield CLIENT, _own(option, "client", ExecutableLayout())
        yield from _on_processors(work, alone, pools)
        return
    used = {phase.role for phase in work.phases}.difference(work.remote, alone)
    served = [role for role in work.roles if role.name in used]
    own = (layout.tensor if served else place.per_node) if alone else 0
    yield (
        CLIENT,
        RoleExecution(
            use="client",
            nodes=1,
            accelerators_per_node=own,
            layout=ExecutableLayout(dtype="bf16"),
            engine=NATIVE,
            accelerator=place.accelerator.name if own else "",
        ),
    )
    first = ""
    for model in dict.fromkeys(role.model for role in served):
        names = [role.name for role in served if role.model == model]
        stored = work.role(names[0]).stored
        yield (
            names[0],
            RoleExecution(
                use="serve",
                nodes=option.num_nodes,
                accelerators_per_node=place.per_node - own,
                layout=ExecutableLayout(
                    data=layout.data - (1 if alone else 0),
                    tensor=layout.tensor,
                    micro_batch=layout.micro_batch,
                    dtype=stored,
                ),
                engine=pools[model].engine if model in pools else POOL_ENGINE,
                models=(model,),
                accelerator=place.accelerator.name,
                shares=first,
                memory_share=_memory_share(option, names),
                max_tokens=_most_tokens(work, model),
            ),
        )
        first = first or names[0]


def _on_processors(
    work: Workload, alone: tuple[str, ...], pools: Mapping[str, ServerPool]
) -> Iterator[tuple[str, RoleExecution]]:
    """The servers that the file describes, side by side on the machine of the stage."""
    used = {phase.role for phase in work.phases}.difference(work.remote, alone)
    first = {role.model: role.name for role in reversed(work.roles) if role.name in used and role.model in pools}
    for model, name in sorted(first.items()):
        pool = pools[model]
        layout = ExecutableLayout(data=pool.replicas, micro_batch=pool.most_at_once or 0)
        yield (
            name,
            RoleExecution(
                use="serve", nodes=1, accelerators_per_node=0, layout=layout, engine=pool.engine, models=(model,)
            ),
        )


def _memory_share(option: Option, roles: list[str]) -> float:
    """Share of an accelerator's memory for the servers of one model, out of what the plan may fill."""
    usable = option.capacity_bytes / option.place.accelerator.memory_bytes
    own = sum(term.value for role, term in option.peak.parts if role in roles)
    others = sum(term.value for role, term in option.peak.parts if role not in roles)
    return usable * own / (own + others) if own else usable


def _most_tokens(work: Workload, model: str) -> int:
    """Longest prompt and answer that the servers of a model take: with room, since lengths are estimates.

    vLLM does not start with more than the positions that the model's own configuration has.
    """
    phases = [phase for phase in work.phases if work.model_of(phase.role) == model]
    wanted = max(LEAST_CONTEXT, 2 * ceil(max((phase.longest_tokens for phase in phases), default=0.0)))
    positions = (role.architecture.max_position_embeddings for role in work.roles if role.model == model)
    return min(wanted, *positions)


def _group_name(group: RoleGroup) -> str:
    return TRAINER if group.name in ("all", "trainers") else group.name


def _of_group(stage: Stage, option: Option, group: RoleGroup, beside: DeviceGroup | None) -> RoleExecution:
    """One group of accelerators of a placement: complete nodes, or some accelerators of one."""
    per_node = (beside.place if beside else option.place).per_node
    count = group.num_accelerators
    nodes, each = (count // per_node, per_node) if count % per_node == 0 else (1, count)
    return RoleExecution(
        use="serve" if group.name == "generators" else "train",
        nodes=nodes,
        accelerators_per_node=each,
        layout=executable(group.layout, rows=stage.SEQUENCES_PER_ROW, dtype=option.dtype),
        engine=option.engine,
        accelerator=group.hardware,
        parts=() if len(option.groups) == 1 else ("generate",) if group.name == "generators" else group.roles,
    )


# -------- Sources of the intervals of a stage's time and memory: which measurements set their width.


@dataclass(frozen=True, kw_only=True)
class PeakRange:
    """The 80 % interval of a stage's peak memory on one accelerator, and what of it to plan with."""

    interval: Interval
    enough_bytes: float
    source: str

    @property
    def margin(self) -> float:
        """Return the factor from the sum of terms to what to plan with; a limit of that sum moves by it, too."""
        return self.enough_bytes / self.interval.p50 if self.interval.p50 else 1.0


def peak_range(stage: Stage, option: Option, knowledge: Knowledge) -> PeakRange:
    """p10 to p90 of the peak: the half-width of its group; on processors the share that a plan leaves free."""
    quantity, group = memory_group(stage)
    if option.place.is_cpu:
        width = -log(CPU_USABLE_SHARE)
        source = "judgement: the share of the machine's memory that a local plan leaves free"
    else:
        width, source = knowledge.half_width(quantity, group), knowledge.told(quantity, group)
    peak = option.peak.total_bytes
    interval = Interval(p10=peak * exp(-width), p50=peak, p90=peak * exp(width))
    enough = knowledge.enough_bytes(interval, group, option.place.accelerator)
    return PeakRange(interval=interval, enough_bytes=enough, source=source)


def time_source(stage: Stage, option: Option, work: Workload, knowledge: Knowledge) -> str:
    """Return the source of the width of the stage's time, in words."""
    moe = any(role.architecture.mixture is not None for role in work.roles)
    quantity, group = time_group(stage, moe=moe)
    engine = rl_engines().get(option.engine) if option.groups else None
    pace = None if engine else knowledge.pace(option.place.accelerator, stage.kind)
    if work.remote and not work.needs_accelerator:
        source = ENDPOINT_SIGMA_SOURCE
    elif not work.needs_accelerator or (option.place.is_cpu and pace is None):
        source = LOCAL_SIGMA_SOURCE
    elif pace is not None:
        source = f"{pace.steps} steps measured ({pace.source}); what is left after a few rows: {quantity}"
    else:
        source = knowledge.told(quantity, group, rl_stack=engine.stack.label if engine else None)
    if work.remote and work.needs_accelerator:
        source += f"; of the endpoint {ENDPOINT_SIGMA_SOURCE}"
    return source + (f"; and answer lengths (sigma {LENGTH_SIGMA:g}, judgement)" if len(option.time_sigmas) > 1 else "")


# -------- Decisions for one stage: place, layout, time and money, and the options that were dropped.

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
class PlannedSamples:
    """Answers of a model in training to a few prompts at its checkpoints, for people to read."""

    prompts: int
    share: float
    """Of the stage's time, at most."""
    why_none: str = ""
    """Empty where there are answers."""


def planned_samples(stage: Stage, option: Option, project: Project) -> PlannedSamples | None:
    """Return the answers that a stage gives while it trains; None for one that is never asked."""
    if stage.kind not in CAPABILITIES.answers or option.engine != NATIVE or project.sample_data is None:
        return None
    settings = project.samples
    why = why_no_samples(is_compiled=bool(stage.resources is not None and stage.resources.compile))
    return PlannedSamples(prompts=settings.count, share=0.0 if why else settings.share, why_none=why)


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
    samples: PlannedSamples | None = None
    """Answers for people to read; their time and money come on top of the stage's own."""

    @property
    def sample_seconds(self) -> float:
        """Return the most that answers for people to read take: their share of the stage's time at p50."""
        return 0.0 if self.samples is None else self.samples.share * self.option.seconds.p50

    @property
    def sample_usd(self) -> float | None:
        """Return the most that they cost: the same share of what the machines cost at p50; None without a price."""
        if self.compute_usd is None:
            return None
        return 0.0 if self.samples is None else self.samples.share * usd(self.compute_usd.p50)

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
            "enough_bytes": round(self.peak_range.enough_bytes),
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
            **({} if self.samples is None else {"samples": self._samples_json(self.samples)}),
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

    def _samples_json(self, samples: PlannedSamples) -> dict[str, object]:
        most = None if self.sample_usd is None else round(self.sample_usd, 6)
        return {
            "prompts": samples.prompts,
            "share": samples.share,
            "seconds_at_most": round(self.sample_seconds, 3),
            "usd_at_most": most,
            "why_none": samples.why_none or None,
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
        "offload_activations": layout.offload_activations,
    }


# -------- A stage in a line: what it runs on, how long, how much.


def kind_of(stage: StagePlan) -> str:
    """Hardware, provider and market of a stage in words: `H100-SXM-80GB:8 on aws, spot`."""
    option = stage.option
    return f"{option.place.label}, {option.price.market.replace('_', ' ')}"


def differences(stages: Sequence[StagePlan], base: Sequence[StagePlan]) -> dict[str, str]:
    """Stages whose hardware, provider or market differs from `base`, with what they have."""
    other = {stage.name: kind_of(stage) for stage in base}
    return {stage.name: kind_of(stage) for stage in stages if kind_of(stage) != other.get(stage.name)}


def stage_line(stage: StagePlan) -> Mapping[str, object]:
    """The stage as one short JSON object."""
    option = stage.option
    return {
        "name": stage.name,
        "accelerator": option.place.accelerator.name,
        "count": option.num_accelerators,
        "num_nodes": option.num_nodes,
        "infra": option.place.infra,
        "region": option.price.region or option.place.region,
        "market": option.price.market,
        "layout": option.layout_label,
        "seconds": interval_json(option.seconds),
        "usd": NO_MONEY if stage.usd is None else stage.usd.to_json(),
    }
