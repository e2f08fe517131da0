"""From an option to a stage plan: checkpoints, storage, money."""

from charter.catalog.price_book import PriceBook
from charter.physics.shapes import count_parameters
from charter.physics.terms import Term
from charter.plan.assumption import Assumption
from charter.plan.execution import execution_of
from charter.plan.options.option import Option, Rejected
from charter.plan.options.stage_risk import stage_risk
from charter.plan.physics.knowledge import Knowledge, time_group
from charter.plan.stages.interval_source import peak_range, time_source
from charter.plan.stages.node_needs import checkpoint_bytes, node_needs
from charter.plan.stages.stage_plan import NOTHING_PAID, StagePlan, money
from charter.plan.stages.stage_storage import stage_storage
from charter.plan.stages.work_done import work_done
from charter.plan.work.phase import Workload
from charter.spec.project import Project
from charter.spec.stage import Stage
from charter.units import format_count

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
        node=node_needs(work, option, storage.stored, dtype=getattr(stage, "dtype", "bf16"), knowledge=knowledge),
        peak_range=peak_range(stage, option, knowledge),
        time_source=time_source(stage, option, work, knowledge),
        execution=execution_of(stage, option, work),
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
