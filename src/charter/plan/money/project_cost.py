"""`project_cost`: what a planned project costs as a whole."""

from collections.abc import Mapping, Sequence

from charter.catalog.price_book import PriceBook
from charter.cost.money import micro_usd
from charter.cost.monte_carlo import DRAWS, simulate
from charter.cost.storage import EGRESS_SOURCES, internet_egress, transfer_usd
from charter.cost.uncertainty import lognormal
from charter.errors import UsageError
from charter.physics.terms import Interval
from charter.plan.finish import durations
from charter.plan.hardware.place import LOCAL, ON_PREM
from charter.plan.money.cost_breakdown import CONTINGENCY, FIXED, LABELS, STAFF, TRANSFER, CostLine, ProjectCost, added
from charter.plan.money.cost_spread import LABEL_SIGMA, amounts
from charter.plan.money.stage_cost import scaled, stage_lines
from charter.plan.money.unit_costs import energy_kwh, unit_costs
from charter.plan.stages.stage_plan import MicroUsd, StagePlan, money
from charter.plan.timeline import Sharing
from charter.spec.project import Project
from charter.spec.sections import Costs
from charter.units import GB, HOURS_PER_MONTH, SECONDS_PER_HOUR

SECONDS_PER_MONTH = HOURS_PER_MONTH * SECONDS_PER_HOUR


def project_cost(
    stages: Sequence[StagePlan],
    project: Project,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    sharing: Sharing | None = None,
    book: PriceBook | None = None,
    actual_usd: Mapping[str, float] | None = None,
    actual_seconds: Mapping[str, float] | None = None,
) -> ProjectCost:
    """Lines of every stage and of the project around them, the spread of the total, and unit costs.

    total = accelerator time (useful, checkpoint, lost and restart, idle, rework) + disks + object storage + transfer +
    managed service + endpoints + fixed services + labels + staff + contingency. Without a section `costs:` the lines
    are those of the stages alone. `sharing` is what stages hold of while they run; without it they start as soon as
    their inputs allow. The finish is drawn as the plan's is, and stretched by the reruns and idle time of `costs:`.
    Services and staff by the month are paid for the finish of the random draws. In the spread a stage in
    `actual_usd` costs what it did cost; the lines stay those of the plan. `book` is the plan's, or the bundled one.
    """
    unknown = sorted(set(actual_usd or {}) - {stage.name for stage in stages})
    if unknown:
        names = ", ".join(stage.name for stage in stages)
        raise UsageError(f"actual costs of {', '.join(unknown)}, but the stages are {names}")
    costs, prices = project.costs, book or PriceBook.bundled()
    lines = [line for stage in stages for line in stage_lines(stage, project, prices)]
    if costs.download_results:
        lines += _downloads(stages)
    lines += _labels(costs)
    spread = simulate(
        amounts(stages, lines, project, _usd_per_second(costs), prices),
        durations(stages, sharing, costs),
        capacity={} if sharing is None else sharing.capacity,
        seed=seed,
        draws=draws,
        contingency=costs.contingency,
        actual_usd=actual_usd,
        actual_seconds=actual_seconds,
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
        _line(name, FIXED, money(months.scaled(price)), f"${price:,.6g} x {months.p50:.3g} months", "costs")
        for name, price in costs.fixed_usd_per_month.items()
    ]
    if costs.staff is not None:
        price = costs.staff.fte * costs.staff.usd_per_month
        formula = f"{costs.staff.fte:g} people x ${costs.staff.usd_per_month:,.6g} x {months.p50:.3g} months"
        lines.append(_line("staff", STAFF, money(months.scaled(price)), formula, "costs.staff"))
    return lines


def _labels(costs: Costs) -> list[CostLine]:
    if costs.human_labels is None:
        return []
    pairs, price = costs.human_labels.pairs, costs.human_labels.usd_per_pair
    usd = money(lognormal(pairs * price, LABEL_SIGMA))
    return [_line("human labels", LABELS, usd, f"{pairs:,} pairs x ${price:g}", "costs.human_labels")]


def _downloads(stages: Sequence[StagePlan]) -> list[CostLine]:
    """Weights and records of every rented stage, out of each cloud once, within one month's tiers."""
    clouds = dict.fromkeys(stage.option.place.infra for stage in stages)
    lines = []
    for cloud in clouds:
        if cloud in (LOCAL, ON_PREM):
            continue
        of = [stage for stage in stages if stage.option.place.infra == cloud]
        num_bytes = sum(stage.node.storage.total - stage.node.storage.part("checkpoints") for stage in of)
        source, as_of = EGRESS_SOURCES.get(cloud, ("most smaller clouds charge nothing; from memory, verify", ""))
        usd = _sure(transfer_usd(num_bytes, internet_egress(cloud)))
        lines.append(_line(f"results out of {cloud}", TRANSFER, usd, f"{num_bytes / GB:,.3g} GB", source, as_of))
    return lines


def _contingency(lines: Sequence[CostLine], costs: Costs) -> CostLine:
    formula = f"{costs.contingency:.0%} of everything else"
    return _line("contingency", CONTINGENCY, scaled(added(lines), costs.contingency), formula, "costs.contingency")


def _sure(usd: float) -> MicroUsd:
    return MicroUsd(p10=micro_usd(usd), p50=micro_usd(usd), p90=micro_usd(usd))


def _line(name: str, bucket: str, usd: MicroUsd, formula: str, source: str, as_of: str = "") -> CostLine:
    return CostLine(name=name, bucket=bucket, stage="", usd=usd, formula=formula, source=source, as_of=as_of)
