"""Cost of a project: the lines of each stage, those of the whole, the spread around them, cost per unit of work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from charter.catalog.price_book import Market, PriceBook
from charter.cost.job import (
    BUCKETS,
    SERVICES,
    ComputeBuckets,
    compute_buckets,
    managed_multiplier,
    micro_usd,
    split_micro_usd,
    usd,
)
from charter.cost.monte_carlo import (
    DRAWS,
    CostDistribution,
    CostTerm,
    Factor,
    Lognormal,
    LogUniform,
    lognormal,
    simulate,
)
from charter.cost.storage import EGRESS_SOURCES, internet_egress, transfer_usd
from charter.physics.terms import Z90, Interval
from charter.plan.offers import NOT_RENTED
from charter.plan.option import SETTLED_MARKETS
from charter.plan.risk import PRICE_SIGMA
from charter.plan.stage_plan import QUANTILES, MicroUsd, StagePlan, money
from charter.plan.storage import storage_tier
from charter.plan.timeline import Sharing, durations, time_factors, waste_factors
from charter.spec.project import Project
from charter.spec.sections import Costs
from charter.units import GB, SECONDS_PER_HOUR, SECONDS_PER_MONTH

# -------- Cost of a project: lines that add up exactly, the spread around them, and cost per unit of work.

DISK, STORAGE, TRANSFER, MANAGED, API = "disk", "object storage", "transfer", "managed service", "endpoints"
FIXED, LABELS, STAFF, CONTINGENCY = "fixed", "human labels", "staff", "contingency"
ALL_BUCKETS = (*BUCKETS, DISK, STORAGE, TRANSFER, MANAGED, API, FIXED, LABELS, STAFF, CONTINGENCY)
NOTHING = MicroUsd(p10=0, p50=0, p90=0)


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """One addend of a project's cost, with what a reader needs to check it."""

    name: str
    bucket: str
    stage: str
    """Empty for what belongs to the project as a whole."""
    usd: MicroUsd
    formula: str
    source: str
    as_of: str = ""

    def to_json(self) -> dict[str, object]:
        """As `charter plan --json` prints it."""
        return {
            "name": self.name,
            "bucket": self.bucket,
            "stage": self.stage or None,
            "usd": self.usd.to_json(),
            "formula": self.formula,
            "source": self.source,
            "as_of": self.as_of,
        }


@dataclass(frozen=True, kw_only=True)
class UnitCost:
    """Cost of one unit of what the project makes."""

    name: str
    """`usd_per_million_trained_tokens`."""
    value: float
    formula: str


@dataclass(frozen=True, kw_only=True)
class ProjectCost:
    """The cost of a whole project."""

    lines: tuple[CostLine, ...]
    unpriced: tuple[str, ...]
    """Stages, models or services without a price: they are missing from every sum, not free."""
    spread: CostDistribution
    """Quantiles over random draws; narrower than the sum of the lines' quantiles, in which everything errs at once."""
    units: tuple[UnitCost, ...]
    energy_kwh: float | None
    """Of the accelerators and what cools and feeds them; None where the power of one is not known."""

    @property
    def total(self) -> MicroUsd | None:
        """The exact sum of the lines, quantile by quantile; None while something has no price."""
        return None if self.unpriced else added(self.lines)

    @property
    def by_bucket(self) -> dict[str, MicroUsd]:
        """Sums by what was paid for, in a fixed order; empty buckets are left out."""
        by_name = {bucket: [line for line in self.lines if line.bucket == bucket] for bucket in ALL_BUCKETS}
        return {bucket: added(lines) for bucket, lines in by_name.items() if lines}

    @property
    def by_stage(self) -> dict[str, MicroUsd]:
        """Sums by stage, in the order of the run; what belongs to no stage is under the empty name."""
        names = dict.fromkeys(line.stage for line in self.lines)
        return {name: added(line for line in self.lines if line.stage == name) for name in names}

    def unit(self, name: str) -> float | None:
        """The value of a unit cost; None where nothing of it is made."""
        return next((item.value for item in self.units if item.name == name), None)

    def to_json(self) -> Mapping[str, object]:
        """The object `total.cost` of `charter plan --json`."""
        total = self.total
        return {
            "usd": None if total is None else total.to_json(),
            "buckets": {name: value.to_json() for name, value in self.by_bucket.items()},
            "lines": [line.to_json() for line in self.lines],
            "unpriced": list(self.unpriced),
            "monte_carlo": {**self.spread.to_json(), **({"usd": None} if self.unpriced else {})},
            "units": {item.name: round(item.value, 9) for item in self.units},
            "energy_kwh": None if self.energy_kwh is None else round(self.energy_kwh, 3),
        }


def added(lines: Iterable[CostLine]) -> MicroUsd:
    """The exact sum of lines."""
    total = NOTHING
    for line in lines:
        total = total.plus(line.usd)
    return total


# -------- The lines of one stage: accelerator time in five buckets, disk, storage, transfer, premium, endpoints.

DISKS = {"gcp": ("PD", "pd-balanced")}
DEFAULT_DISK = ("EBS", "gp3")


def stage_lines(stage: StagePlan, project: Project, book: PriceBook) -> tuple[CostLine, ...]:
    """Every line of a priced stage that is not zero; a stage without a price has only its endpoints."""
    costs = project.costs
    lines = [_endpoint(stage)]
    if stage.compute_usd is not None:
        compute = _compute(stage, costs)
        lines = [*compute, *_premium(stage, compute, costs), *_around(stage, project, book), *lines]
    return tuple(line for line in lines if line.usd.p90)


def stage_buckets(stage: StagePlan) -> ComputeBuckets:
    """Median seconds of one run, by bucket; accelerators that wait for another group, or for a repair, are idle."""
    risk, spent, waits = stage.option.overhead, stage.option.overhead.spent, stage.option.idle_share
    repairs = 0.0 if spent is None else max(0.0, risk.billed_seconds - risk.start_seconds - spent.billed_seconds)
    return compute_buckets(
        useful=risk.useful_seconds * (1 - waits),
        waiting=risk.useful_seconds * waits + repairs,
        checkpoint=0.0 if spent is None else spent.save_seconds,
        billed=risk.billed_seconds,
    )


def stretch(costs: Costs) -> float:
    """Time that reruns and idle machines add to a stage, as a factor: `(1 + rework) / (1 - idle)`."""
    return (1 + costs.rework) / (1 - costs.idle_share)


def premium_share(stage: StagePlan, costs: Costs) -> float:
    """Of the managed service, over the price of the machines."""
    if costs.managed_service is None:
        return 0.0
    place = stage.option.place
    return managed_multiplier(costs.managed_service, cloud=place.infra, accelerator=place.accelerator.name) - 1


def scaled(amount: MicroUsd, factor: float) -> MicroUsd:
    """A fixed multiple, rounded once."""
    return money(Interval(**{name: getattr(amount, name) * factor / 1e6 for name in QUANTILES}))


def _compute(stage: StagePlan, costs: Costs) -> list[CostLine]:
    """The stage's compute cost split by time, then reruns and idle time on top of it."""
    assert stage.compute_usd is not None
    spent, option = stage_buckets(stage), stage.option
    per_second = (option.usd_per_hour or 0.0) / SECONDS_PER_HOUR
    block = 0.0 if option.fixed_usd is None or not per_second else option.fixed_usd / per_second - spent.total
    seconds = {
        ("useful", "useful"): spent.useful,
        ("checkpoint", "checkpoint"): spent.checkpoint,
        ("lost and restart", "lost and restart"): spent.lost_and_restart,
        ("waiting", "idle"): spent.idle,
        ("unused part of the block", "idle"): max(0.0, block),
    }
    parts = _split(stage.compute_usd, tuple(seconds.values()))
    rate = f"${option.usd_per_hour or 0.0:,.2f} per hour"
    lines = [
        (name, bucket, usd, f"{option.num_accelerators or 1} accelerators, {time / SECONDS_PER_HOUR:,.3g} h x {rate}")
        for ((name, bucket), time), usd in zip(seconds.items(), parts, strict=True)
    ]
    rework = scaled(stage.compute_usd, costs.rework)
    idle = scaled(stage.compute_usd.plus(rework), costs.idle_share / (1 - costs.idle_share))
    lines.append(("idle", "idle", idle, f"{costs.idle_share:.0%} of paid time (costs.idle_share)"))
    lines.append(("rework", "rework", rework, f"{costs.rework:g} x one run (costs.rework)"))
    return [
        CostLine(
            name=f"{stage.name}: {name}",
            bucket=bucket,
            stage=stage.name,
            usd=usd,
            formula=formula,
            source=option.price.source,
            as_of=option.price.as_of,
        )
        for name, bucket, usd, formula in lines
    ]


def _split(amount: MicroUsd, weights: tuple[float, ...]) -> tuple[MicroUsd, ...]:
    if sum(weights) <= 0:
        return (amount, *(scaled(amount, 0.0) for _ in weights[1:]))
    p10, p50, p90 = (split_micro_usd(getattr(amount, name), weights) for name in QUANTILES)
    return tuple(MicroUsd(p10=a, p50=b, p90=c) for a, b, c in zip(p10, p50, p90, strict=True))


def _premium(stage: StagePlan, compute: list[CostLine], costs: Costs) -> tuple[CostLine, ...]:
    share = premium_share(stage, costs)
    if share <= 0 or costs.managed_service is None:
        return ()
    service = SERVICES[costs.managed_service]
    return (
        CostLine(
            name=f"{stage.name}: {service.name}",
            bucket=MANAGED,
            stage=stage.name,
            usd=scaled(added(compute), share),
            formula=f"{share:.0%} of the machines",
            source=service.confidence,
        ),
    )


def _around(stage: StagePlan, project: Project, book: PriceBook) -> list[CostLine]:
    """Disks, object storage and transfer."""
    costs = project.costs
    rented = stage.option.place.infra not in NOT_RENTED
    lines = [_disk(stage, costs, book)] if costs.disk_gb_per_node and rented else []
    if stage.storage_usd is not None:
        days = costs.retention.days
        formula = f"{stage.storage_bytes / GB:,.3g} GB; results for {days:g} days after the stage"
        tier = storage_tier(project, stage.option, book, costs.retention.tier)
        lines.append(_line(stage, STORAGE, stage.storage_usd, formula, f"{tier.name}: {tier.source}", tier.as_of))
    formula = f"{stage.transfer_bytes / GB:,.3g} GB between places x price per GB"
    lines.append(_line(stage, TRANSFER, stage.transfer_usd, formula, "price book of transfer"))
    return lines


def _disk(stage: StagePlan, costs: Costs, book: PriceBook) -> CostLine:
    option = stage.option
    product, tier = DISKS.get(option.place.infra, DEFAULT_DISK)
    price = next(item for item in book.storage_prices(product=product) if item.tier == tier)
    nodes = option.num_nodes + sum(group.num_nodes for group in option.beside)
    per_second = nodes * costs.disk_gb_per_node * price.usd / SECONDS_PER_MONTH
    usd = money(option.seconds.scaled(per_second * stretch(costs)))
    formula = f"{nodes} x {costs.disk_gb_per_node:g} GB x ${price.usd:g} per GB and month"
    return _line(stage, DISK, usd, formula, f"{price.provider} {product} {tier}", price.provenance.as_of)


def _endpoint(stage: StagePlan) -> CostLine:
    requests, prompted, answered = (
        sum(getattr(use, name) for use in stage.done.api) for name in ("requests", "input_tokens", "output_tokens")
    )
    names = ", ".join(dict.fromkeys(use.model for use in stage.done.api))
    formula = f"{requests:,.0f} requests: {prompted:,.0f} tokens read, {answered:,.0f} written, x their prices"
    return _line(stage, API, stage.endpoint_usd, formula, f"serving: {names}")


def _line(stage: StagePlan, bucket: str, usd: MicroUsd, formula: str, source: str, as_of: str = "") -> CostLine:
    return CostLine(
        name=f"{stage.name}: {bucket}",
        bucket=bucket,
        stage=stage.name,
        usd=usd,
        formula=formula,
        source=source,
        as_of=as_of,
    )


# -------- Causes that each amount of a plan depends on, for the Monte Carlo; those of time are in `plan.timeline`.

LABEL_SIGMA = 0.25
"""Of what bought labels come to, on the scale of logarithms: some pairs are labelled twice. Judgement."""
OWN_BUCKETS = (API, DISK, LABELS, STORAGE, TRANSFER)
"""Buckets whose lines stand for themselves; what is paid by the month follows the finish."""


def amounts(
    stages: Sequence[StagePlan], lines: Sequence[CostLine], project: Project, per_second: float, book: PriceBook
) -> tuple[CostTerm, ...]:
    """Every addend of the cost; `per_second` is what fixed services and staff cost."""
    terms = [
        CostTerm(
            stage=stage.name,
            usd=usd(stage.compute_usd.p50) * (1 + project.costs.rework) * (1 + premium_share(stage, project.costs)),
            factors=(*_machine_factors(stage, project, book), *waste_factors(project.costs)),
        )
        for stage in stages
        if stage.compute_usd is not None
    ]
    terms += [
        CostTerm(stage=line.stage, usd=usd(line.usd.p50), factors=(_price_of_line(line),))
        for line in lines
        if line.bucket in OWN_BUCKETS and line.usd.p50
    ]
    return (*terms, CostTerm(stage="", usd_per_second=per_second)) if per_second else tuple(terms)


def _machine_factors(stage: StagePlan, project: Project, book: PriceBook) -> tuple[Factor, ...]:
    """Of the machines' bill; a block costs the same however long the work takes."""
    if stage.option.fixed_usd is not None:
        return ()
    return (*time_factors(stage), *_price_factors(stage, project.costs, book))


def _price_factors(stage: StagePlan, costs: Costs, book: PriceBook) -> tuple[Factor, ...]:
    """One cause per provider, so that stages on it move together; known prices have none."""
    option = stage.option
    if option.price.market in SETTLED_MARKETS or not option.price.usd_per_hour:
        return ()
    if costs.provider == "open" and (offered := _offered(stage, book)):
        low, high = (price / option.price.usd_per_hour for price in offered)
        return (Factor(cause="price, provider open", distribution=LogUniform(low=low, high=high)),)
    return (Factor(cause=f"price on {option.place.infra}", distribution=Lognormal(sigma=PRICE_SIGMA)),)


def _offered(stage: StagePlan, book: PriceBook) -> tuple[float, float] | None:
    """Lowest and highest price in the book of the accelerator in the stage's market; None without two of them."""
    market = Market.SPOT if stage.option.price.market == Market.SPOT else Market.ON_DEMAND
    offers = book.offers(stage.option.place.accelerator.name, market=market)
    prices = [price for offer in offers if (price := offer.usd_per_accelerator_hour(market)) and offer.whole_machine]
    return (min(prices), max(prices)) if len(set(prices)) > 1 else None


def _price_of_line(line: CostLine) -> Factor:
    if line.bucket == LABELS:
        return Factor(cause="cost of human labels", distribution=Lognormal(sigma=LABEL_SIGMA))
    if line.bucket == API:
        return Factor(cause="answer length", distribution=Lognormal(sigma=log(line.usd.p90 / line.usd.p50) / Z90))
    return Factor(cause="prices of storage and transfer", distribution=Lognormal(sigma=PRICE_SIGMA))


# -------- Cost per unit of what a project makes, and the electricity it takes.

LOAD_FACTOR = 0.8
"""Mean draw of a busy accelerator over its rated power: on-premises assumptions, middle scenario (judgement)."""
POWER_USAGE_EFFECTIVENESS = 1.3
"""Electricity of the building over that of the machines: the same table; Uptime's survey mean is 1.56."""
PER_UNIT = (
    ("usd_per_million_trained_tokens", ("pretrain", "sft", "judge", "preference_model", "dpo"), "tokens", 1e6),
    ("usd_per_million_generated_tokens", ("generate", "critique"), "generated_tokens", 1e6),
    ("usd_per_preference_pair", ("label",), "pairs", 1.0),
    ("usd_per_critique_revision", ("critique",), "records", 1.0),
    ("usd_per_pm_example", ("preference_model",), "pairs", 1.0),
    ("usd_per_ppo_episode", ("ppo",), "episodes", 1.0),
)
"""Name, kinds of stage that make the unit, counter, units per price."""


def unit_costs(stages: Sequence[StagePlan], lines: Sequence[CostLine]) -> tuple[UnitCost, ...]:
    """Whole cost of the stages that make a unit over the units they make, at the median; waste makes units dearer."""
    spent = {stage.name: usd(added(line for line in lines if line.stage == stage.name).p50) for stage in stages}
    priced = [stage for stage in stages if stage.compute_usd is not None]
    costs = [_per_unit(name, kinds, counter, per, priced, spent) for name, kinds, counter, per in PER_UNIT]
    runs = [stage for stage in priced if stage.kind == "eval"]
    if runs:
        costs.append(_ratio("usd_per_eval_run", sum(spent[stage.name] for stage in runs), len(runs), "eval stages"))
    total = usd(added(lines).p50)
    if total:
        useful = usd(added(line for line in lines if line.bucket == "useful").p50)
        costs.append(_ratio("useful_usd_per_total_usd", useful, total, "all lines"))
    operations = sum(stage.done.useful_flops for stage in priced)
    if operations:
        costs.append(_ratio("usd_per_useful_pflop", sum(spent.values()), operations / 1e15, "10^15 operations"))
    return tuple(item for item in costs if item is not None)


def energy_kwh(stages: Sequence[StagePlan], factor: float = 1.0) -> float | None:
    """Rated power x load x PUE x billed hours, times `factor`; None where the power of what computes is not known.

    A stage that computes with no model of its own (it prepares data, or asks an endpoint) takes no accelerator.
    The processors, memory and network of the node are not in it; BLOOM's 433 MWh over 1.08 M hours are 400 W per
    A100, its rated power without load and PUE.
    """
    watts_hours = 0.0
    for stage in stages:
        option = stage.option
        if option.peak.total_bytes <= 0:
            continue
        hours = option.overhead.billed_seconds / SECONDS_PER_HOUR
        beside = sum(group.num_accelerators for group in option.beside)
        groups = [(option.num_accelerators - beside, option.place.accelerator.tdp_watts)]
        groups += [(group.num_accelerators, group.place.accelerator.tdp_watts) for group in option.beside]
        for count, watts in groups:
            if watts is None or count == 0:
                return None
            watts_hours += count * watts * hours
    return watts_hours * LOAD_FACTOR * POWER_USAGE_EFFECTIVENESS * factor / 1000


def _per_unit(
    name: str,
    kinds: tuple[str, ...],
    counter: str,
    per: float,
    stages: Sequence[StagePlan],
    spent: Mapping[str, float],
) -> UnitCost | None:
    of = [stage for stage in stages if stage.kind in kinds and getattr(stage.counters, counter) > 0]
    units = sum(getattr(stage.counters, counter) for stage in of)
    return _ratio(name, sum(spent[stage.name] for stage in of), units / per, counter) if units else None


def _ratio(name: str, above: float, below: float, what: str) -> UnitCost:
    return UnitCost(name=name, value=above / below, formula=f"${above:,.6g} / {below:,.6g} {what}")


# -------- `project_cost`: what a planned project costs as a whole.


def project_cost(
    stages: Sequence[StagePlan],
    project: Project,
    *,
    draws: int = DRAWS,
    sharing: Sharing | None = None,
    book: PriceBook | None = None,
) -> ProjectCost:
    """Lines of every stage and of the project around them, the spread of the total, and unit costs.

    total = accelerator time (useful, checkpoint, lost and restart, idle, rework) + disks + object storage + transfer +
    managed service + endpoints + fixed services + labels + staff + contingency. Without a section `costs:` the lines
    are those of the stages alone. `sharing` is what stages hold of while they run; without it they start as soon as
    their inputs allow. The finish is drawn as the plan's is, and stretched by the reruns and idle time of `costs:`.
    Services and staff by the month are paid for the finish of the random draws. `book` is the
    plan's, or the bundled one.
    """
    costs, prices = project.costs, book or PriceBook.bundled()
    lines = [line for stage in stages for line in stage_lines(stage, project, prices)]
    if costs.download_results:
        lines += _downloads(stages)
    lines += _labels(costs)
    spread = simulate(
        amounts(stages, lines, project, _usd_per_second(costs), prices),
        durations(stages, sharing, costs),
        capacity={} if sharing is None else sharing.capacity,
        draws=draws,
        contingency=costs.contingency,
    )
    lines += _monthly(costs, spread.seconds)
    if costs.contingency:
        lines.append(_contingency(lines, costs))
    return ProjectCost(
        lines=tuple(lines),
        unpriced=_unpriced(stages),
        spread=spread,
        units=unit_costs(stages, lines),
        energy_kwh=energy_kwh(stages, 1 + costs.rework),
    )


def _unpriced(stages: Sequence[StagePlan]) -> tuple[str, ...]:
    """Stages without a price, and models whose endpoint has none."""
    names = [stage.name for stage in stages if stage.compute_usd is None]
    unpriced = (use.model for stage in stages for use in stage.done.api if not use.is_priced)
    return (*names, *(f"endpoint of {model}" for model in dict.fromkeys(unpriced)))


def _usd_per_second(costs: Costs) -> float:
    """Fixed services and staff."""
    staff = 0.0 if costs.staff is None else costs.staff.fte * costs.staff.usd_per_month
    return (sum(costs.fixed_usd_per_month.values()) + staff) / SECONDS_PER_MONTH


def _monthly(costs: Costs, seconds: Interval) -> list[CostLine]:
    """Fixed services and staff, from the first start to the last end."""
    months = seconds.scaled(1 / SECONDS_PER_MONTH)
    lines = [
        _project_line(name, FIXED, money(months.scaled(price)), f"${price:,.6g} x {months.p50:.3g} months", "costs")
        for name, price in costs.fixed_usd_per_month.items()
    ]
    if costs.staff is not None:
        price = costs.staff.fte * costs.staff.usd_per_month
        formula = f"{costs.staff.fte:g} people x ${costs.staff.usd_per_month:,.6g} x {months.p50:.3g} months"
        lines.append(_project_line("staff", STAFF, money(months.scaled(price)), formula, "costs.staff"))
    return lines


def _labels(costs: Costs) -> list[CostLine]:
    if costs.human_labels is None:
        return []
    pairs, price = costs.human_labels.pairs, costs.human_labels.usd_per_pair
    usd = money(lognormal(pairs * price, LABEL_SIGMA))
    return [_project_line("human labels", LABELS, usd, f"{pairs:,} pairs x ${price:g}", "costs.human_labels")]


def _downloads(stages: Sequence[StagePlan]) -> list[CostLine]:
    """Weights and records of every rented stage, out of each cloud once, within one month's tiers."""
    clouds = dict.fromkeys(stage.option.place.infra for stage in stages)
    lines = []
    for cloud in clouds:
        if cloud in NOT_RENTED:
            continue
        of = [stage for stage in stages if stage.option.place.infra == cloud]
        num_bytes = sum(stage.node.storage.total - stage.node.storage.part("checkpoints") for stage in of)
        source, as_of = EGRESS_SOURCES.get(cloud, ("most smaller clouds charge nothing; from memory, verify", ""))
        usd = _sure(transfer_usd(num_bytes, internet_egress(cloud)))
        lines.append(
            _project_line(f"results out of {cloud}", TRANSFER, usd, f"{num_bytes / GB:,.3g} GB", source, as_of)
        )
    return lines


def _contingency(lines: Sequence[CostLine], costs: Costs) -> CostLine:
    formula = f"{costs.contingency:.0%} of everything else"
    return _project_line(
        "contingency", CONTINGENCY, scaled(added(lines), costs.contingency), formula, "costs.contingency"
    )


def _sure(usd: float) -> MicroUsd:
    return MicroUsd(p10=micro_usd(usd), p50=micro_usd(usd), p90=micro_usd(usd))


def _project_line(name: str, bucket: str, usd: MicroUsd, formula: str, source: str, as_of: str = "") -> CostLine:
    return CostLine(name=name, bucket=bucket, stage="", usd=usd, formula=formula, source=source, as_of=as_of)
