"""The lines of one stage: accelerator time in five buckets, disk, storage, transfer, premium, endpoints."""

from charter.catalog.price_book import PriceBook
from charter.cost.buckets import ComputeBuckets, compute_buckets
from charter.cost.job import SERVICES, managed_multiplier
from charter.cost.money import split_micro_usd
from charter.physics.terms import Interval
from charter.plan.hardware.place import LOCAL, ON_PREM
from charter.plan.money.cost_breakdown import API, DISK, MANAGED, STORAGE, TRANSFER, CostLine, added
from charter.plan.stages.stage_plan import QUANTILES, MicroUsd, StagePlan, money
from charter.plan.stages.stage_storage import storage_tier
from charter.spec.project import Project
from charter.spec.sections import Costs
from charter.units import GB, HOURS_PER_MONTH, SECONDS_PER_HOUR

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
    rented = stage.option.place.infra not in (LOCAL, ON_PREM)
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
    per_second = nodes * costs.disk_gb_per_node * price.usd / (HOURS_PER_MONTH * SECONDS_PER_HOUR)
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
