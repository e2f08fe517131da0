"""From a choice to a plan: every stage with its figures, totals, and what they rest on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from charter.cost.uncertainty import exactly
from charter.engines import capabilities
from charter.physics.shapes.parameters import count_parameters
from charter.physics.terms import Interval
from charter.plan.assumption import Assumption
from charter.plan.choice.candidates import Candidates, rejections
from charter.plan.choice.whole import QUEUE_P10, QUEUE_P90, Whole, hub_transfer
from charter.plan.gather import Facts, Gathered
from charter.plan.hardware.place import LOCAL
from charter.plan.layouts.layout_verdicts import layout_verdicts
from charter.plan.money.project_cost import project_cost
from charter.plan.money.stage_cost import scaled
from charter.plan.options.option import Option
from charter.plan.options.purchase import commitment_notes
from charter.plan.options.risk import risk_assumptions
from charter.plan.physics.knowledge import TRAINING_MEMORY, Knowledge
from charter.plan.plan import Plan
from charter.plan.spot import explain_markets
from charter.plan.stages.assess import stage_plan
from charter.plan.stages.stage_plan import StagePlan, money
from charter.plan.stages.transfer import Shipment, bucket, location, move_seconds, shipments_usd
from charter.plan.timeline import mean_shares
from charter.spec.project import Project
from charter.spec.stage import NATIVE
from charter.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

if TYPE_CHECKING:
    from charter.plan.choice.choose import Choice

NO_NATIVE_ROW = Assumption(
    name="rows of the native engine measured on an accelerator",
    value=0,
    source="no accelerator row of it exists: time is that of Hugging Face stacks, memory its own list of tensors; "
    "`charter plan --probe` or `charter validate calibrate` measures it",
)
SECONDS_PER_MONTH = HOURS_PER_MONTH * SECONDS_PER_HOUR


def short_plan(problem: Whole, choice: "Choice", facts: Facts) -> Plan:
    """A plan without assumptions, reasons and the project's other costs: to compare with."""
    return _plan(problem, choice, facts)[0]


def full_plan(problem: Whole, choice: "Choice", gathered: Gathered, facts: Facts) -> Plan:
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


def _plan(problem: Whole, choice: "Choice", facts: Facts) -> tuple[Plan, list[Assumption]]:
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
            dict.fromkeys(risk_assumptions(option.place, spot=spot, knowledge=facts.knowledge, settings=project.risk))
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
