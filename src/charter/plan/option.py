"""One way to run one stage: the question to a search, the options it answers with, and why others were dropped."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from charter.catalog.accelerators import CPU, Accelerator
from charter.cost.job import job_usd
from charter.cost.monte_carlo import lognormal
from charter.engines import capabilities
from charter.physics.columns import Array
from charter.physics.terms import Interval, Term
from charter.plan.endpoint_use import ENDPOINT_SOURCE, endpoint_terms
from charter.plan.knowledge import Knowledge
from charter.plan.offers import NodeOffer, Price
from charter.plan.phase import RolePhase, Workload
from charter.plan.risk import PRICE_SIGMA, Overhead, overhead, time_sigmas
from charter.plan.stage_memory import Peak
from charter.spec.layout import Layout
from charter.spec.sections import RiskSettings
from charter.spec.stage_base import Sampling, ServerPool, Stage, StageResources
from charter.units import GIB, format_seconds, format_usd

# -------- One way to run one stage, with what it needs and what it costs; and why other ways were dropped.

SETTLED_MARKETS = ("contract", "owned", "reserved_1y", "reserved_3y", "capacity_block")
"""Markets whose price is agreed before the work starts."""


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """An option that was not taken, and the one reason."""

    option: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """Both fields."""
        return {"option": self.option, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class TiedLayout:
    """A layout on the same accelerators whose time cannot be told from the fastest one's."""

    label: str
    seconds: float
    peak_bytes: float

    def to_json(self) -> dict[str, object]:
        """All three."""
        return {"layout": self.label, "seconds": self.seconds, "peak_bytes": round(self.peak_bytes)}


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Accelerators beside the main ones of an option: the generators of a split PPO, the servers of a judge."""

    name: str
    place: NodeOffer
    num_nodes: int
    layout: Layout
    layout_label: str
    price: Price
    peak: Peak
    capacity_bytes: float

    @property
    def num_accelerators(self) -> int:
        """Accelerators that are paid for."""
        return self.num_nodes * self.place.per_node


@dataclass(frozen=True, kw_only=True)
class RoleGroup:
    """Work of one group of a stage's accelerators where not all do the same: generating, training or scoring."""

    name: str
    """`all`, `trainers`, `scorers`, `critics` or `generators`."""
    roles: tuple[str, ...]
    hardware: str
    num_accelerators: int
    layout: Layout
    layout_label: str
    peak: Peak
    capacity_bytes: float
    busy_share: float
    """Of the working time, in which they compute; the rest is paid for and waits for other groups."""

    def to_json(self) -> dict[str, object]:
        """The group as `charter plan --json` prints it."""
        return {
            "name": self.name,
            "roles": list(self.roles),
            "hardware": self.hardware,
            "num_accelerators": self.num_accelerators,
            "layout": self.layout_label,
            "peak_bytes": round(self.peak.total_bytes),
            "capacity_bytes": round(self.capacity_bytes),
            "busy_share": round(self.busy_share, 4),
        }


@dataclass(frozen=True, kw_only=True)
class Option:
    """A place, a number of nodes, a layout and a market for one stage."""

    place: NodeOffer
    num_nodes: int
    layout: Layout
    layout_label: str
    price: Price
    peak: Peak
    capacity_bytes: float
    time_terms: tuple[Term, ...]
    overhead: Overhead
    time_sigmas: tuple[float, ...]
    engine: str = "native"
    """Which engine runs this layout."""
    dtype: str = ""
    """Number format of the matrix products that are trained with; empty where nothing is trained."""
    tied_layouts: tuple[TiedLayout, ...] = ()
    """The best layout of every family that cannot be told from the fastest on these accelerators, fastest first."""
    beside: tuple[DeviceGroup, ...] = ()
    """More accelerators that the stage holds at the same time, of the same kind or another."""
    placement: str = ""
    """Of the roles of a PPO stage: `colocated`, `split` or `async`; empty where there is nothing to place."""
    waits_on_host: bool = False
    """Roles that share accelerators wait in host memory while it is not their turn."""
    generator_tensor: int = 1
    """Tensor parallelism of the generator of a PPO stage."""
    decode_batch: int = 0
    """Answers of a rollout that a replica of the native engine draws at once; 0: all of its share."""
    host_bytes: float = 0.0
    """Bytes per accelerator that wait in host memory."""
    fixed_usd: float | None = None
    """A bill that does not follow the hours: capacity bought in whole blocks."""
    remote: tuple[str, ...] = ()
    """Roles that an endpoint answers for."""
    endpoint_usd: Interval | None = None
    """What endpoints charge, where their price is known."""
    groups: tuple[RoleGroup, ...] = ()
    """Who does what on the accelerators, those of `beside` included; empty where all do the same."""

    @property
    def idle_share(self) -> float:
        """Share of the accelerators' working time that is paid for and spent waiting for other groups."""
        total = sum(group.num_accelerators for group in self.groups)
        busy = sum(group.num_accelerators * group.busy_share for group in self.groups)
        return 1 - busy / total if total else 0.0

    @property
    def idle_usd(self) -> float | None:
        """Median bill of the accelerators for the time in which they wait for other groups; None without a price."""
        machines, hourly = self.machines_usd, self.usd_per_hour
        if machines is None or not hourly:
            return None
        prices = {group.place.accelerator.name: group.price.usd_per_hour or 0.0 for group in self.beside}
        own = self.price.usd_per_hour or 0.0
        idle = sum(
            group.num_accelerators * (1 - group.busy_share) * prices.get(group.hardware, own) for group in self.groups
        )
        return machines.p50 * idle / hourly

    @property
    def fullest_device(self) -> Accelerator:
        """The device that `peak` fills: of the group nearest to its limit where groups differ."""
        if not self.groups:
            return self.place.accelerator
        fullest = max(self.groups, key=lambda group: group.peak.total_bytes / group.capacity_bytes)
        others = {group.place.accelerator.name: group.place.accelerator for group in self.beside}
        return others.get(fullest.hardware, self.place.accelerator)

    @property
    def num_accelerators(self) -> int:
        """Accelerators that are paid for, all groups; none on a machine without."""
        return self._own_accelerators + sum(group.num_accelerators for group in self.beside)

    @property
    def _own_accelerators(self) -> int:
        return 0 if self.place.is_cpu else self.num_nodes * self.place.per_node

    @property
    def usd_per_hour(self) -> float | None:
        """Price of everything that the stage holds at once, per hour; None when a part has no price."""
        parts = [(max(1, self._own_accelerators), self.price)]
        parts += [(group.num_accelerators, group.price) for group in self.beside]
        prices = [(count, price.usd_per_hour) for count, price in parts]
        return None if any(usd is None for _, usd in prices) else sum(count * (usd or 0.0) for count, usd in prices)

    @property
    def seconds(self) -> Interval:
        """Wall-clock time, restarts and waits included.

        The luck of a spot pool is independent of how far the estimate is off: distances from the median add as squares.
        """
        around, waits = self.overhead, self.overhead.waits
        if waits is None:
            return lognormal(around.wall_seconds, *self.time_sigmas)
        working = lognormal(around.billed_seconds, *self.time_sigmas)
        middle = working.p50 + waits.p50
        early = math.hypot(working.p50 - working.p10, waits.p50 - waits.p10)
        late = math.hypot(working.p90 - working.p50, waits.p90 - waits.p50)
        return Interval(p10=max(working.p10, middle - early), p50=middle, p90=middle + late)

    @property
    def billed_hours(self) -> Interval:
        """Hours that are paid for, of each accelerator."""
        return lognormal(self.overhead.billed_seconds / 3600, *self.time_sigmas)

    @property
    def usd(self) -> Interval | None:
        """Cost of machines and endpoints, None without a price of the machines."""
        machines, endpoints = self.machines_usd, self.endpoint_usd
        if machines is None or endpoints is None:
            return machines
        return Interval(
            p10=machines.p10 + endpoints.p10, p50=machines.p50 + endpoints.p50, p90=machines.p90 + endpoints.p90
        )

    @property
    def machines_usd(self) -> Interval | None:
        """Cost of the machines, None without a price."""
        if self.fixed_usd is not None:
            return lognormal(self.fixed_usd)
        if self.usd_per_hour is None:
            return None
        median = job_usd(
            accelerators=1, hours=self.overhead.billed_seconds / 3600, usd_per_accelerator_hour=self.usd_per_hour
        )
        price_sigma = 0.0 if self.price.market in SETTLED_MARKETS else PRICE_SIGMA
        return lognormal(median, *self.time_sigmas, price_sigma)

    @property
    def label(self) -> str:
        """`2 nodes x 8 H100-SXM-80GB on aws, spot`."""
        plain = ("on_demand", "contract", "owned", "unpriced", "own")
        market = "" if self.price.market in plain else f", {self.price.market}"
        return f"{self.place.machines(self.num_nodes)} {self.place.where}{market}"


NEAR = 1.05
"""Among plans within 5 % of the cheapest the fastest is taken: the estimate cannot tell them apart."""


# -------- Question to a search, and its answer: one stage, the options that fit, and why the others do not.


@dataclass(frozen=True, kw_only=True)
class StageQuestion:
    """One stage to be placed."""

    stage: Stage
    work: Workload
    dtype: str
    checkpoint_bytes: float
    use_spot: bool | str
    knowledge: Knowledge

    engine: str = "native"
    """Whose layouts a training stage may take."""
    is_first: bool = False
    """Whether it is the first stage of its run."""
    risk: RiskSettings = field(default_factory=RiskSettings)
    """What the project knows about failures."""
    asked: Workload | None = None
    """The whole work of a stage that trains and meanwhile asks models at an address; `work` is then what runs here."""
    pools: Mapping[str, ServerPool] = field(default_factory=dict)
    """Servers that the file describes, by model."""
    peaks: dict[tuple[object, ...], Peak] = field(default_factory=dict, compare=False, repr=False)
    """Peaks that were written out already, by what they depend on; many places ask for the same one."""

    def peak_once(self, key: tuple[object, ...], make: Callable[[], Peak]) -> Peak:
        """The peak of a key, made on the first call."""
        if key not in self.peaks:
            self.peaks[key] = make()
        return self.peaks[key]

    @property
    def trained_dtype(self) -> str:
        """Number format of the matrix products that are trained with; empty where nothing is trained."""
        return self.dtype if self.work.trained else ""

    def has_agents(self, infra: str) -> bool:
        """Return True if Charter's agents watch each other on nodes of a place, which may be named by its scheduler."""
        engine, kind = capabilities(self.engine), self.stage.kind
        return bool(self.work.trained) and engine.runs_on_nodes(kind) and not engine.has_one_driver(kind, infra)

    @property
    def waits(self) -> tuple[Term, ...]:
        """Seconds in which accelerators that train wait for what is asked at an address: no layout changes them."""
        return () if self.asked is None else endpoint_terms(self.asked)

    @property
    def fixed(self) -> StageResources | None:
        """Return the resources that the stage itself prescribes."""
        return self.stage.resources

    @property
    def training(self) -> RolePhase:
        """The first training phase."""
        return next(phase for phase in self.work.phases if phase.work == "train")

    @property
    def units(self) -> float | None:
        """Steps, or batches, after which a checkpoint may be written."""
        return max((phase.steps for phase in self.work.phases), default=None)

    @property
    def time_sigmas_of(self) -> tuple[bool, bool]:
        """Return whether answers are generated, and whether their length is fixed."""
        generates = any(phase.work == "generate" for phase in self.work.phases)
        stage = self.stage
        fixed = isinstance(stage, Sampling) and stage.min_new_tokens >= stage.max_new_tokens
        return generates, fixed


Overflow = tuple[Peak, float, Accelerator]
"""Peak of a layout that does not fit, the bytes that a plan may fill, and the device."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Options that fit, and what did not."""

    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    closest: Overflow | None
    """Of the layouts that do not fit, the one that overflows least."""
    evaluated: int = 0
    """Layouts whose peak, and where they fit whose time, were computed."""
    pruned: int = 0
    """Layouts that a bound ruled out: their model state alone does not fit."""
    question: StageQuestion | None = None
    """What was asked."""

    @property
    def counts(self) -> dict[str, int]:
        """Layouts that were evaluated in full, and those that a bound ruled out."""
        return {"evaluated": self.evaluated, "pruned": self.pruned}


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Options that did not fit at one place and node count."""

    rejected: tuple[Rejected, ...] = ()
    peaks: tuple[Overflow, ...] = ()
    evaluated: int = 0
    pruned: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineLayout:
    """The best layout of one engine."""

    engine: str
    layout: str
    seconds: float
    """Of work, without failures and waits."""
    ratio: float
    """Against the work of the chosen option."""
    peak_bytes: float
    refused: str = ""
    """What the engine cannot do of the stage as it is written; empty where it takes all of it."""

    def to_json(self) -> dict[str, object]:
        """All fields."""
        return {
            "engine": self.engine,
            "layout": self.layout,
            "seconds": self.seconds,
            "ratio": round(self.ratio, 4),
            "peak_bytes": round(self.peak_bytes),
            "refused": self.refused,
        }


# -------- The one reason why an option was not taken, in a sentence.

PARTS_NAMED = 4


def does_not_fit(peak: Peak, capacity_bytes: float, device: Accelerator, risk: float) -> str:
    """`needs 96.2 GiB of 74.4 usable: optimizer 48.2, parameters 24.1, ...; largest: policy: optimizer 48.2`.

    Of a need between what a plan fills and what the device has, the probability that it fits after all is said.
    """
    parts = sorted(peak.by_part().items(), key=lambda item: -item[1])[:PARTS_NAMED]
    named = ", ".join(f"{name.replace('_', ' ')} {value / GIB:.1f}" for name, value in parts)
    largest = largest_term(peak)
    tensor = f"largest: {largest.name} {largest.value / GIB:.1f}"
    needs = f"needs {peak.total_bytes / GIB:.1f} GiB of {capacity_bytes / GIB:.1f} usable: {named}; {tensor}"
    if device.kind == CPU or not capacity_bytes < peak.total_bytes <= device.memory_bytes:
        return needs
    sigma = math.log(device.memory_bytes / capacity_bytes) / NormalDist().inv_cdf(1 - risk)
    chance = Interval.around(peak.total_bytes, sigma=sigma).probability_below(device.memory_bytes)
    may = f"it fits the {device.memory_bytes / GIB:.1f} GiB of the device with a probability of {chance * 100:.0f} %"
    return f"{needs}; {may}, where a plan asks for {100 - risk * 100:.0f} % (risk.out_of_memory: {risk:g})"


def largest_term(peak: Peak) -> Term:
    """The biggest single term: what overflows."""
    return max(peak.terms, key=lambda term: term.value)


NEARLY = 0.95
"""The least share of a cost that is nearly that cost, as the objective `cheapest` takes it."""


def loses_to(option: Option, chosen: Option) -> str:
    """Dearer, or slower, with both figures: the medians that the table prints, not means, which spot waits raise."""
    mine, best = option.usd, chosen.usd
    times = f"{format_seconds(option.seconds.p50)}, chosen {format_seconds(chosen.seconds.p50)}"
    if mine is None or best is None:
        return f"slower: {times}"
    prices = f"{format_usd(mine.p50)}, chosen {format_usd(best.p50)}"
    if mine.p50 > best.p50:
        return f"dearer: {prices} (time {times})"
    tied = "slower for nearly the same money" if mine.p50 >= NEARLY * best.p50 else "slower"
    return f"{tied}: {times} (cost {prices})"


# -------- An option from its parts: its time at a measured pace, and what failures and checkpoints add.


LOAD_SIGMA = 0.45
"""Of the logarithm of what a plan adds for other programs: they come and go. 13 runs of cai-smoke on a shared machine
differed from their plans by 0.40 (root mean square) at slowdowns of 2.4 (`benchmarks/recorded_runs.jsonl`, 2026-11)."""


def make_option(
    question: StageQuestion,
    place: NodeOffer,
    num_nodes: int,
    layout: Layout,
    label: str,
    peak: Peak,
    terms: tuple[Term, ...],
) -> Option:
    """The option on demand (or owned), with its risk."""
    terms = (*_at_measured_pace(question, place, terms), *question.waits)
    useful = sum(term.value for term in terms)
    generates, fixed_length = question.time_sigmas_of
    moe = any(role.architecture.mixture is not None for role in question.work.roles)
    sigma = question.knowledge.time_sigma(question.stage, place.accelerator, moe=moe)
    sigma = math.hypot(sigma, LOAD_SIGMA * math.log(place.slowdown))
    return Option(
        place=place,
        num_nodes=num_nodes,
        dtype=question.trained_dtype,
        layout=layout,
        layout_label=label,
        price=place.price,
        peak=peak,
        capacity_bytes=question.knowledge.usable_bytes(place.accelerator),
        time_terms=terms,
        overhead=overhead(
            useful,
            place=place,
            num_nodes=num_nodes,
            spot=False,
            checkpoint_bytes=question.checkpoint_bytes,
            settings=question.risk,
            units=question.units,
            is_first=question.is_first,
            agents=question.has_agents(place.infra),
        ),
        time_sigmas=time_sigmas(sigma, generates=generates, fixed_length=fixed_length),
    )


def _at_measured_pace(question: StageQuestion, place: NodeOffer, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """The terms, and one that brings their sum to the pace that a run of this kind was measured at.

    Where none was measured, what other programs on this machine take is such a term.
    """
    pace = question.knowledge.pace(place.accelerator, question.stage.kind)
    if pace is None:
        return (*terms, *_beside_other_programs(place, terms))
    correction = Term(
        name="measured pace",
        part="measured pace",
        value=(pace.factor - 1) * sum(term.value for term in terms),
        unit="seconds",
        formula=f"({pace.factor:.3f} - 1) x the estimate; measured on {pace.steps} steps",
        source=pace.source,
    )
    return (*terms, correction)


def _beside_other_programs(place: NodeOffer, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    here = sum(term.value for term in terms if term.source != ENDPOINT_SOURCE)  # a server elsewhere is not slowed
    if place.slowdown <= 1.0 or not here:
        return ()
    return (
        Term(
            name="other programs on this machine",
            part="other programs",
            value=(place.slowdown - 1) * here,
            unit="seconds",
            formula=f"({place.slowdown:.2f} - 1) x what is computed here: equal shares of the processors",
            source="others at work in the last five minutes and now (the fewer), and stages side by side",
        ),
    )


# -------- Options that nothing beats in time, money, headroom and p90 time, and those that tie with the chosen one.


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Options that no other beats or equals in everything while beating it in something, in their order.

    Compared: p50 and p90 of the time, p50 of the money (an unpriced option counts as the dearest), and the share of
    the device that stays free.
    """
    if not options:
        return ()
    table = np.array([_objectives(option) for option in options])
    return tuple(option for option, is_optimal in zip(options, front(table), strict=True) if is_optimal)


def near_tied(options: Sequence[Option], chosen: Option) -> tuple[Option, ...]:
    """Options whose money (time, where a price is missing) cannot be told from the chosen one's: the 80 % intervals
    of the two overlap at the medians, p50 of either inside p10 to p90 of the other."""
    return tuple(option for option in options if option is not chosen and _alike(option, chosen))


def _alike(option: Option, chosen: Option) -> bool:
    mine, best = option.usd, chosen.usd
    if mine is None or best is None:
        mine, best = option.seconds, chosen.seconds
    return best.p10 <= mine.p50 <= best.p90 and mine.p10 <= best.p50 <= mine.p90


def _objectives(option: Option) -> tuple[float, ...]:
    seconds, usd = option.seconds, option.usd
    free = 1 - option.peak.total_bytes / option.capacity_bytes if option.capacity_bytes else 0.0
    return (seconds.p50, seconds.p90, float("inf") if usd is None else usd.p50, -free)


def front(table: Array) -> NDArray[np.bool_]:
    """Rows of objectives (smaller is better) that no other row dominates; equal rows all stay.

    >>> front(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0]])).tolist()
    [True, True, False, True]
    """
    order = np.lexsort(table.T[::-1])
    mask = np.zeros(len(table), dtype=bool)
    best = np.empty((0, table.shape[1]))
    for row in order:
        one = table[row]
        beaten = np.all(best <= one, axis=1) & np.any(best < one, axis=1)
        if not beaten.any():
            mask[row] = True
            best = np.vstack([best, one])
    return mask
