"""`make_plan`: from a project and facts to a plan. Pure; the machine and the facts come in as values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from charter.plan.assess import KEPT_DAYS, stage_plan
from charter.plan.assumption import Assumption
from charter.plan.corpus import Library
from charter.plan.infeasible import infeasible
from charter.plan.knowledge import Knowledge, shipped
from charter.plan.machine import Machine
from charter.plan.node_needs import checkpoint_bytes
from charter.plan.option import Option, Rejected, pick
from charter.plan.phase import Workload
from charter.plan.place import LOCAL, control_place, may_run_here, places
from charter.plan.plan import Plan
from charter.plan.risk import risk_assumptions
from charter.plan.question import Found, Question
from charter.plan.roles import Models
from charter.plan.search import search
from charter.plan.stage_plan import StagePlan
from charter.plan.why_not import loses_to
from charter.plan.workload import workload
from charter.spec.architecture import Architecture
from charter.spec.dataset import DataFacts
from charter.spec.graph import execution_order, stage_inputs
from charter.spec.project import Project
from charter.spec.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Everything that fits for one stage, before one option is taken."""

    name: str
    stage: Stage
    work: Workload
    found: Found
    refused: tuple[Rejected, ...]
    chosen: Option

    def choosing(self, option: Option) -> "Candidates":
        """The same with another choice."""
        return replace(self, chosen=option)


def make_plan(
    project: Project,
    *,
    architectures: Mapping[str, Architecture],
    data_facts: Mapping[str, DataFacts],
    machine: Machine | None = None,
    knowledge: Knowledge | None = None,
) -> Plan:
    """Place, time and price every stage: the cheapest that fits, sped up where the deadline asks for it.

    `architectures` of every entry of `models`, `data_facts` of every data set that is there; `machine` is needed for
    local plans; `knowledge` is the shipped calibration unless given. Raises `InfeasibleError` when a stage fits
    nowhere.
    """
    known = knowledge or shipped()
    library = Library(project=project, facts=data_facts, assumptions=[])
    models = Models(project=project, architectures=architectures)
    candidates = [
        _candidates(name, project, models=models, library=library, machine=machine, knowledge=known)
        for name in execution_order(project)
    ]
    plan = _assemble(project, candidates, library, known)
    for _ in range(8 * len(candidates)):
        if plan.deadline_seconds is None or plan.seconds.p90 <= plan.deadline_seconds:
            break
        faster = _speed_up(plan, candidates)
        if faster is None:
            break
        candidates = faster
        plan = _assemble(project, candidates, library, known)
    return plan


def _candidates(
    name: str, project: Project, *, models: Models, library: Library, machine: Machine | None, knowledge: Knowledge
) -> Candidates:
    stage = project.pipeline[name]
    work = workload(stage, models, library)
    for role in work.remote:
        model = work.role(role).model
        endpoint = project.serving[model].endpoint
        library.assume(f"{name}.{role}", "not planned", f"answered by {endpoint}; its time and price are not counted")
    rented = work.needs_accelerator or may_run_here(project)
    where, refused = places(project, stage, machine) if rented else ((control_place(machine),), ())
    question = Question(
        stage=stage,
        work=work,
        dtype=getattr(stage, "dtype", "bf16"),
        checkpoint_bytes=checkpoint_bytes(work),
        use_spot=_spot(project, stage),
        knowledge=knowledge,
    )
    found = search(question, where)
    if not found.options:
        raise infeasible(name, question, where, found)
    return Candidates(
        name=name,
        stage=stage,
        work=work,
        found=found,
        refused=tuple(Rejected(option=item.option, reason=item.reason) for item in refused),
        chosen=pick(list(found.options)),
    )


def _spot(project: Project, stage: Stage) -> bool | str:
    own = stage.resources.use_spot if stage.resources is not None else None
    return project.resources.use_spot if own is None else own


def _assemble(project: Project, candidates: list[Candidates], library: Library, knowledge: Knowledge) -> Plan:
    stages: list[StagePlan] = []
    assumptions = list(library.assumptions)
    for item in candidates:
        made, storage = stage_plan(
            item.name,
            item.stage,
            project=project,
            inputs=stage_inputs(project, item.name),
            work=item.work,
            option=item.chosen,
            rejected=_rejected(item),
            knowledge=knowledge,
        )
        stages.append(made)
        spot = item.chosen.price.market == "spot"
        _extend(assumptions, risk_assumptions(item.chosen.place, spot=spot, knowledge=knowledge))
        _extend(assumptions, (_price_assumption(item.chosen), *((storage,) if storage else ())))
    if any(stage.usd is not None for stage in stages):
        _extend(assumptions, (Assumption(name="days that results are kept", value=KEPT_DAYS, source="judgement"),))
    _extend(assumptions, (Assumption(name="reruns and sweeps", value=0, source="not counted: every stage runs once"),))
    return Plan(
        name=project.name,
        stages=tuple(stages),
        budget_usd=None if project.budget is None else project.budget.limit,
        deadline_seconds=project.deadline,
        max_parallel=_max_parallel(project, candidates),
        assumptions=tuple(sorted(assumptions, key=lambda item: (item.name, str(item.value)))),
    )


def _extend(assumptions: list[Assumption], more: tuple[Assumption, ...]) -> None:
    assumptions += [item for item in more if item not in assumptions]


def _price_assumption(option: Option) -> Assumption:
    price = option.price
    return Assumption(
        name=f"price, usd per hour: {option.place.label}, {price.market}",
        value=price.usd_per_hour,
        source=price.source,
        as_of=price.as_of,
    )


def _max_parallel(project: Project, candidates: list[Candidates]) -> int | None:
    """Stages on this machine share it; rented stages each have machines of their own."""
    if any(item.chosen.place.infra == LOCAL and item.work.needs_accelerator for item in candidates):
        return project.resources.max_parallel_stages
    return None


def _rejected(item: Candidates) -> tuple[Rejected, ...]:
    """What fitted and lost, best first; then what does not fit; then what is not to be had."""
    chosen = item.chosen
    losers = sorted(
        (option for option in item.found.options if option is not chosen),
        key=lambda option: (
            option.usd.p50 if option.usd is not None else 0.0,
            option.overhead.wall_seconds,
            option.label,
        ),
    )
    lost = [Rejected(option=f"{o.label} {o.layout_label}", reason=loses_to(o, chosen)) for o in losers]
    return (*lost, *item.found.rejected, *item.refused)


def _speed_up(plan: Plan, candidates: list[Candidates]) -> list[Candidates] | None:
    """One stage of the critical path on a faster option: the one that saves a second for the least money."""
    path = plan.timeline("p90").critical_path
    moves = [
        (price, index, option)
        for index, item in enumerate(candidates)
        if item.name in path
        for option in item.found.options
        if option.seconds.p90 < item.chosen.seconds.p90
        for price in [_usd_per_second_saved(item.chosen, option)]
    ]
    if not moves:
        return None
    _, index, option = min(moves, key=lambda move: (move[0], move[1], move[2].label))
    return [*candidates[:index], candidates[index].choosing(option), *candidates[index + 1 :]]


def _usd_per_second_saved(chosen: Option, option: Option) -> float:
    saved = chosen.seconds.p90 - option.seconds.p90
    if chosen.usd is None or option.usd is None:
        return -saved
    return (option.usd.p50 - chosen.usd.p50) / saved
