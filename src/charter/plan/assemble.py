"""From a choice to a plan: every stage with its figures and its market, totals, and what they rest on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from charter.catalog.price_book import PriceBook
from charter.cost.monte_carlo import exactly
from charter.engines import capabilities
from charter.physics.shapes import count_parameters
from charter.physics.terms import Interval, Term
from charter.plan.decision import QUEUE_P10, QUEUE_P90, Whole, hub_transfer
from charter.plan.endpoint_use import work_done
from charter.plan.gather import Candidates, Facts, Gathered, rejections
from charter.plan.knowledge import TRAINING_MEMORY, Knowledge, time_group
from charter.plan.layout_search import layout_verdicts
from charter.plan.money import project_cost, scaled
from charter.plan.node_needs import checkpoint_bytes, node_needs
from charter.plan.offers import LOCAL
from charter.plan.option import Option, Rejected
from charter.plan.phase import Workload
from charter.plan.plan import Plan
from charter.plan.purchase import commitment_notes
from charter.plan.risk import Assumption, risk_assumptions
from charter.plan.stage_plan import (
    NOTHING_PAID,
    StagePlan,
    execution_of,
    money,
    peak_range,
    planned_samples,
    time_source,
)
from charter.plan.stage_risk import stage_risk
from charter.plan.storage import Shipment, bucket, location, move_seconds, shipments_usd, stage_storage
from charter.plan.timeline import mean_shares
from charter.spec.project import Project
from charter.spec.stage_base import NATIVE, Stage
from charter.units import SECONDS_PER_HOUR, SECONDS_PER_MONTH, format_count, format_seconds, format_usd

if TYPE_CHECKING:
    from charter.plan.choose import PlanChoice


# -------- From an option to a stage plan: checkpoints, storage, money.

SERIES = ("tokens", "generated_tokens", "pairs", "episodes", "records")


def stage_plan(
    name: str,
    stage: Stage,
    *,
    project: Project,
    inputs: tuple[str, ...],
    work: Workload,
    option: Option,
    rejected: tuple[Rejected, ...],
    knowledge: Knowledge,
    book: PriceBook,
) -> tuple[StagePlan, Assumption | None]:
    """The plan of one stage, and the price of storage it assumes."""
    work = work.answered_by_endpoints(option.remote) if work.either else work
    storage = stage_storage(work, option, project, book)
    compute = None if option.machines_usd is None else money(option.machines_usd)
    needs = node_needs(work, option, storage.stored, dtype=getattr(stage, "dtype", "bf16"), knowledge=knowledge)
    plan = StagePlan(
        name=name,
        kind=stage.kind,
        inputs=inputs,
        option=option,
        counters=work.counters,
        checkpoint_bytes=checkpoint_bytes(work),
        storage_bytes=storage.stored.total,
        compute_usd=compute,
        storage_usd=None if compute is None else storage.usd(option.seconds),
        rejected=rejected,
        workload_terms=_workload_terms(work),
        node=needs,
        peak_range=peak_range(stage, option, knowledge),
        time_source=time_source(stage, option, work, knowledge),
        execution=execution_of(stage, option, work, needs, pools=project.pools_of(stage)),
        samples=planned_samples(stage, option, project),
        done=work_done(work),
        endpoint_usd=NOTHING_PAID if option.endpoint_usd is None else money(option.endpoint_usd),
        risk=stage_risk(option, project.risk),
        time_quantity=time_group(stage, moe=False)[0],
    )
    return plan, storage.assumption


def _workload_terms(work: Workload) -> tuple[Term, ...]:
    """Roles, phases and totals, for `--explain`."""
    roles = [
        Term(
            name=f"{role.name} ({role.model})",
            part="roles",
            value=float(count_parameters(role.architecture).total),
            unit="parameters",
            formula=f"{'trained' if role.trained else 'frozen'}"
            + (", scalar head" if role.scalar_head else "")
            + (f", LoRA rank {role.adapter.rank}" if role.adapter else ""),
            source="architecture",
        )
        for role in work.roles
    ]
    phases = [
        Term(
            name=phase.name,
            part="phases",
            value=phase.tokens,
            unit="tokens",
            formula=f"{format_count(phase.steps)} batches of {phase.batch} sequences, "
            f"{phase.prompt_tokens:,.0f} tokens read + {phase.new_tokens:,.0f} generated",
            source="answered by an endpoint" if phase.role in work.remote else "stage fields and data",
        )
        for phase in work.phases
    ]
    totals = [
        Term(name=name, part="produces", value=value, unit=name, formula="", source="stage fields and data")
        for name in SERIES
        if (value := getattr(work.counters, name))
    ]
    return (*roles, *phases, *totals)


# -------- Spot or on demand for a stage, and why: by expected billed cost and by the p90 of the finish, in one line.
#
# The bill of a spot job follows from a formula; when it is done does not, since outages are heavy-tailed. So money is
# compared at its median and time at p90, whose waits come from drawn histories (`resilience.spot`).

SPOT, ON_DEMAND = "spot", "on_demand"


@dataclass(frozen=True, kw_only=True)
class SpotVerdict:
    """Better one of two versions of an option, and what the other would change."""

    market: Literal["spot", "on_demand"]
    usd_saved: float
    """By spot, at the median of the bill; below zero where spot costs more."""
    more_seconds: float
    """That spot takes, at p50."""
    interruptions: float
    lost_seconds_each: float
    """Work lost at one interruption."""
    late_seconds: float | None
    """By how much the p90 of spot misses the time allowed; below zero inside it, None without a limit."""

    @property
    def reason(self) -> str:
        """One line for a table."""
        late, saved = self.late_seconds, format_usd(abs(self.usd_saved))
        if self.usd_saved <= 0:
            return f"on demand: spot costs {saved} more after {self._trouble}"
        if late is not None and late > 0:
            return f"on demand: p90 of spot misses the deadline by {_hours(late)} (it costs {saved} less)"
        inside = "" if late is None else "; p90 inside the deadline"
        return f"spot: {saved} less for {_more(self.more_seconds)}; {self._trouble}{inside}"

    @property
    def _trouble(self) -> str:
        count = self.interruptions
        times = f"{count:.0f} interruptions" if count >= 1.5 else f"{count:.2g} interruptions expected"
        return f"{times}, {format_seconds(self.lost_seconds_each)} lost each"


def spot_verdict(on_demand: Option, spot: Option, *, allowed_seconds: float | None = None) -> SpotVerdict | None:
    """Spot where it is billed less in expectation and its p90 is within the time allowed; None without both prices.

    Where on demand misses the time allowed as well, the deadline decides nothing and money does.
    """
    if on_demand.usd is None or spot.usd is None:
        return None
    saved = on_demand.usd.p50 - spot.usd.p50
    late = None if allowed_seconds is None else spot.seconds.p90 - allowed_seconds
    hopeless = allowed_seconds is not None and on_demand.seconds.p90 > allowed_seconds
    in_time = late is None or late <= 0 or hopeless
    spent = spot.overhead.spent
    count = spent.interruptions if spent else 0.0
    return SpotVerdict(
        market="spot" if saved > 0 and in_time else "on_demand",
        usd_saved=saved,
        more_seconds=spot.seconds.p50 - on_demand.seconds.p50,
        interruptions=count,
        lost_seconds_each=spent.lost_seconds / count if spent and count else 0.0,
        late_seconds=None if hopeless else late,
    )


def market_reason(chosen: Option, options: Iterable[Option], *, allowed_seconds: float | None = None) -> str:
    """Return why the chosen option is on spot or on demand; empty where it could only be one of them.

    `options` is everything that fits, `allowed_seconds` what the deadline leaves for this stage. A choice that the
    comparison of the two alone does not explain was made for the whole plan, and the line says so.
    """
    other = _twin(chosen, options)
    if other is None:
        if chosen.price.market == SPOT:
            return "spot: no other market is allowed or offered here"
        return ""
    pair = (other, chosen) if chosen.price.market == SPOT else (chosen, other)
    verdict = spot_verdict(*pair, allowed_seconds=allowed_seconds)
    if verdict is None:
        return ""
    if verdict.market == chosen.price.market:
        return verdict.reason
    if chosen.price.market == SPOT:
        return f"spot: for the whole plan; alone, {verdict.reason}"
    saved = format_usd(verdict.usd_saved)
    return f"on demand: {_more(verdict.more_seconds, less=True)} for {saved} more, for the whole plan"


def explain_markets(plan: Plan) -> Plan:
    """The plan with the reason for each stage's market, among the `options` of the stage.

    What the deadline leaves for a stage is its own p90 on spot plus what the whole plan, drawn with it there, has left.
    """

    def explained(stage: StagePlan) -> StagePlan:
        allowed = None
        spot = stage.option if stage.option.price.market == SPOT else _twin(stage.option, stage.options)
        if plan.deadline_seconds is not None and spot is not None:
            drawn = plan if spot is stage.option else _with(plan, stage, spot)
            allowed = plan.deadline_seconds - drawn.seconds.p90 + spot.seconds.p90
        reason = market_reason(stage.option, stage.options, allowed_seconds=allowed)
        return replace(stage, market_reason=reason)

    return replace(plan, stages=tuple(explained(stage) for stage in plan.stages))


def _with(plan: Plan, stage: StagePlan, option: Option) -> Plan:
    """The plan with another option for one stage."""
    changed = replace(stage, option=option)
    return replace(plan, stages=tuple(changed if item is stage else item for item in plan.stages))


def _twin(chosen: Option, options: Iterable[Option]) -> Option | None:
    """The same job on the same machines at the other market, else the cheapest job there."""
    wanted = {SPOT: ON_DEMAND, ON_DEMAND: SPOT}.get(chosen.price.market)
    others = [option for option in options if option.price.market == wanted and option.usd is not None]

    def like(option: Option) -> tuple[bool, float, str]:
        same = (option.place, option.num_nodes, option.layout_label, option.beside) == (
            chosen.place,
            chosen.num_nodes,
            chosen.layout_label,
            chosen.beside,
        )
        return (not same, option.usd.p50 if option.usd else 0.0, option.label + option.layout_label)

    return min(others, key=like, default=None)


def _hours(seconds: float) -> str:
    hours = seconds / SECONDS_PER_HOUR
    return f"{hours:.0f} h" if hours >= 2 else format_seconds(seconds)


def _more(seconds: float, *, less: bool = False) -> str:
    sign = "-" if less else "+"
    return f"{sign}{_hours(abs(seconds))}"


# -------- From a choice to a plan: every stage with its figures, totals, and what they rest on.

NO_NATIVE_ROW = Assumption(
    name="rows of the native engine on an accelerator in the fit",
    value=0,
    source="planned at the speed of Hugging Face stacks and with the memory of its own tensors; on one H200, 8B took 4 "
    "to 19 % longer than that, and 0.6B, which waited for the host, 1.7 times as long (docs/reference/first-gpu.md); "
    "`charter plan --probe` or `charter validate calibrate` measures it",
)


def short_plan(problem: Whole, choice: "PlanChoice", facts: Facts) -> Plan:
    """A plan without assumptions, reasons and the project's other costs: to compare with."""
    return _plan(problem, choice, facts)[0]


def full_plan(problem: Whole, choice: "PlanChoice", gathered: Gathered, facts: Facts) -> Plan:
    """The plan of a choice with everything that a report shows."""
    plan, storage = _plan(problem, choice, facts)
    stages = tuple(
        replace(
            stage,
            options=item.options,
            rejected=(*rejections(item, stage.option), *layout_verdicts(item.found.question, stage.option)),
            searched=item.found,
        )
        for stage, item in zip(plan.stages, problem.candidates, strict=True)
    )
    full = replace(
        plan,
        stages=stages,
        assumptions=_assumptions(problem, stages, [*gathered.library.assumptions, *storage], facts),
        models=_models(facts),
        cost=project_cost(stages, problem.project, sharing=plan.shared, book=facts.book),
    )
    return explain_markets(full)


def _models(facts: Facts) -> tuple[tuple[str, float], ...]:
    return tuple((name, float(count_parameters(item).total)) for name, item in facts.architectures.items())


def _plan(problem: Whole, choice: "PlanChoice", facts: Facts) -> tuple[Plan, list[Assumption]]:
    project, options = problem.project, problem.options(choice)
    at = {item.name: option for item, option in zip(problem.candidates, options, strict=True)}
    stages: list[StagePlan] = []
    assumed: list[Assumption] = []
    for item in problem.candidates:
        planned, storage = stage_plan(
            item.name,
            item.stage,
            project=project,
            inputs=item.inputs,
            work=item.work,
            option=at[item.name],
            rejected=(),
            knowledge=facts.knowledge,
            book=facts.book,
        )
        stages.append(_with_waits(planned, problem, at))
        assumed += [storage] if storage else []
    made_plan = Plan(
        name=project.name,
        stages=tuple(stages),
        budget_usd=None if project.budget is None else project.budget.limit,
        deadline_seconds=project.deadline,
        max_parallel=_max_parallel(project, problem.candidates, options),
        assumptions=(),
        sharing=problem.sharing(options),
        objective=project.objective,
        proven=choice.proven,
    )
    return _with_transfer(_on_one_machine(made_plan), problem), assumed


def _on_one_machine(plan: Plan) -> Plan:
    """The plan with the price of a machine that stages share split among those that run at the same time.

    So its money is price x wall clock, as in the ledger, and not twice that where two stages run side by side.
    """
    if plan.max_parallel is None or plan.max_parallel < 2:
        return plan
    share = mean_shares(plan.timeline())
    stages = (
        replace(stage, compute_usd=scaled(stage.compute_usd, share[stage.name]))
        if stage.compute_usd is not None and stage.option.place.infra == LOCAL
        else stage
        for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))


def _with_waits(stage: StagePlan, problem: Whole, at: dict[str, Option]) -> StagePlan:
    """The stage with what moves to it, the queue and the lead time of its place."""
    option, project, freight = stage.option, problem.project, problem.freights[stage.name]
    here, queue = location(option), option.place.queue_seconds
    hub = bucket(project)
    _, hub_seconds = hub_transfer(project, freight, option, problem.book)
    pairs = {} if hub else {name: (location(at[name]), size) for name, size in freight.read_bytes.items()}
    moving = {name: pair for name, pair in pairs.items() if not pair[0].same(here)}
    through_hub = 0.0 if hub is None or hub.same(here) else freight.total_read_bytes + freight.written_bytes
    return replace(
        stage,
        transfer_bytes=sum(size for _, size in moving.values()) + through_hub,
        transfer_seconds={name: move_seconds(size, source, here) for name, (source, size) in moving.items()},
        wait_seconds=Interval(
            p10=queue * QUEUE_P10 + hub_seconds, p50=queue + hub_seconds, p90=queue * QUEUE_P90 + hub_seconds
        ),
        lead_seconds=option.place.lead_seconds,
    )


def _with_transfer(plan: Plan, problem: Whole) -> Plan:
    """The plan with what its transfers cost: by provider over all stages, in the month of the median start."""
    shipments: list[Shipment] = []
    owners: list[str] = []
    hub = bucket(problem.project)
    at = {stage.name: location(stage.option) for stage in plan.stages}
    starts = plan.timeline().start_seconds if any(stage.transfer_bytes for stage in plan.stages) else {}
    for stage in sorted(plan.stages, key=lambda stage: starts.get(stage.name, 0.0)):
        freight, here = problem.freights[stage.name], at[stage.name]
        moves = [(size, at[name], here) for name, size in freight.read_bytes.items()]
        if hub is not None:
            moves = [(freight.total_read_bytes, hub, here), (freight.written_bytes, here, hub)]
        month = int(starts.get(stage.name, 0.0) // SECONDS_PER_MONTH)
        shipments += [Shipment(num_bytes=size, source=there, target=to, month=month) for size, there, to in moves]
        owners += [stage.name] * len(moves)
    paid: dict[str, float] = {}
    for name, usd in zip(owners, shipments_usd(shipments, problem.book), strict=True):
        paid[name] = paid.get(name, 0.0) + usd
    if not any(paid.values()):
        return plan
    stages = (replace(stage, transfer_usd=money(exactly(paid.get(stage.name, 0.0)))) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def _max_parallel(project: Project, candidates: Sequence[Candidates], options: Sequence[Option]) -> int | None:
    """Stages on this machine share it; rented stages each have machines of their own."""
    for item, option in zip(candidates, options, strict=True):
        if option.place.infra == LOCAL and item.work.needs_accelerator:
            return project.resources.max_parallel_stages
    return None


def _assumptions(
    problem: Whole, stages: Sequence[StagePlan], others: Sequence[Assumption], facts: Facts
) -> tuple[Assumption, ...]:
    project = problem.project
    assumptions = dict.fromkeys(others)
    for stage in stages:
        option = stage.option
        spot = option.price.market == "spot"
        assumptions.update(
            dict.fromkeys(
                risk_assumptions(
                    option.place,
                    spot=spot,
                    unseen=option.overhead.detection,
                    knowledge=facts.knowledge,
                    settings=project.risk,
                )
            )
        )
        assumptions[_price(option)] = None
        if project.resources.reserved is not None and option.num_accelerators:
            assumptions.update(dict.fromkeys(commitment_notes(option)))
        if _never_measured(stage, facts.knowledge):
            assumptions[NO_NATIVE_ROW] = None
        maker, question = option.place.accelerator.vendor, stage.searched and stage.searched.question
        if question and question.work.trained and maker in capabilities(option.engine).untried:
            name, source = f"engine {option.engine} on {maker}", "its documentation; nobody here has seen it run there"
            assumptions[Assumption(name=name, value="never run", source=source)] = None
    assumptions.update(dict.fromkeys(_of_waits(stages)))
    if any(stage.usd is not None for stage in stages):
        days = project.costs.retention.days
        assumptions[Assumption(name="days that results are kept", value=days, source="judgement")] = None
    rework = project.costs.rework
    rework_source = (
        "costs.rework: lines of their own in the project's cost" if rework else "not counted: every stage runs once"
    )
    assumptions[Assumption(name="reruns and sweeps", value=rework or 0, source=rework_source)] = None
    return tuple(sorted(assumptions, key=lambda item: (item.name, str(item.value))))


def _never_measured(stage: StagePlan, knowledge: Knowledge) -> bool:
    """Return True if the native engine computes on accelerators, and neither rows nor steps of it there are known."""
    option = stage.option
    if option.engine != NATIVE or option.place.is_cpu or option.peak.total_bytes <= 0:
        return False
    own_rows = "calibrated" in (
        knowledge.situations.get(stage.time_quantity),
        knowledge.situations.get(TRAINING_MEMORY),
    )
    return not own_rows and knowledge.pace(option.place.accelerator, stage.kind) is None


def _price(option: Option) -> Assumption:
    price = option.price
    return Assumption(
        name=f"price, usd per hour: {option.place.label}, {price.market}",
        value=price.usd_per_hour,
        source=price.source,
        as_of=price.as_of,
    )


def _of_waits(stages: Sequence[StagePlan]) -> list[Assumption]:
    """Return the assumptions behind queues, lead times and transfers, where there are any."""
    assumptions = []
    for stage in stages:
        place = stage.option.place
        if place.queue_seconds:
            source = f"charter.yaml; p90 is {QUEUE_P90:g} times that, as of an exponential wait"
            assumptions.append(
                Assumption(name=f"queue on {place.infra}, seconds", value=place.queue_seconds, source=source)
            )
        if place.lead_seconds:
            source = "charter.yaml: from the start of the project"
            assumptions.append(
                Assumption(name=f"lead time of {place.infra}, seconds", value=place.lead_seconds, source=source)
            )
        if stage.transfer_bytes:
            source = "10 Gbit/s between providers; egress by charter.cost.storage, tiers per provider and month"
            assumptions.append(
                Assumption(name=f"{stage.name}: bytes moved", value=round(stage.transfer_bytes), source=source)
            )
    return assumptions
