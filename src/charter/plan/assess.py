"""From an option to a stage plan: checkpoints, storage, money."""

from dataclasses import dataclass

from charter.catalog.facts import storage_prices
from charter.cost.interval import exactly
from charter.cost.storage import StorageTier, StoredBytes, storage_usd
from charter.estimate.shapes.parameters import count_parameters
from charter.estimate.terms import Breakdown, Interval, Term
from charter.plan.assumption import Assumption
from charter.plan.interval_source import peak_range, time_source
from charter.plan.knowledge import Knowledge
from charter.plan.node_needs import checkpoint_bytes, node_needs, storage_terms
from charter.plan.option import Option, Rejected
from charter.plan.phase import Workload
from charter.plan.place import LOCAL, ON_PREM
from charter.plan.stage_plan import MicroUsd, StagePlan, money
from charter.spec.project import Project
from charter.spec.stage import Stage
from charter.units import SECONDS_PER_DAY, format_count

KEPT_DAYS = 30.0
"""Days that weights and records are kept after the run; checkpoints go when their stage is done. Judgement."""
OWN_DISK = StorageTier(name="own disk", usd_per_gb_month=0.0)
SERIES = ("tokens", "generated_tokens", "pairs", "episodes", "records")


def storage_tier(project: Project, option: Option) -> tuple[StorageTier, Assumption | None]:
    """Where artifacts of a rented stage live: the provider's standard object storage, else S3's price."""
    if option.place.infra in (LOCAL, ON_PREM) and project.storage.artifacts is None:
        return OWN_DISK, None
    provider = "gcp" if (project.storage.artifacts or "").startswith("gs://") or option.place.infra == "gcp" else "aws"
    priced = [
        item for item in storage_prices(provider) if item.unit == "GB-month" and _is_standard(item.product, item.tier)
    ]
    first = priced[0]
    tier = StorageTier(
        name=f"{provider} {first.product} {first.tier}",
        usd_per_gb_month=first.usd,
        source=first.provenance.source,
        as_of=first.provenance.as_of,
    )
    assumed = Assumption(
        name=f"storage, usd per GB and month: {tier.name}",
        value=tier.usd_per_gb_month,
        source=tier.source,
        as_of=tier.as_of,
    )
    return tier, assumed


def _is_standard(product: str, tier: str) -> bool:
    return product in ("S3", "GCS") and tier.lower().startswith("standard")


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What a stage keeps on disk, and for how long."""

    stored: Breakdown

    @property
    def checkpoints(self) -> float:
        """Bytes of the checkpoints that exist together."""
        return self.stored.part("checkpoints")

    @property
    def kept(self) -> float:
        """Bytes that stay after the stage: weights, records, logs."""
        return self.stored.total - self.checkpoints

    def usd(self, seconds: float, tier: StorageTier) -> float:
        """Storage cost: checkpoints for the time of the stage, results for 30 days more."""
        held = [
            StoredBytes(num_bytes=self.checkpoints, seconds=seconds),
            StoredBytes(num_bytes=self.kept, seconds=seconds + KEPT_DAYS * SECONDS_PER_DAY),
        ]
        return storage_usd(held, tier)


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
) -> tuple[StagePlan, Assumption | None]:
    """The plan of one stage, and the storage price it assumes."""
    kept = Assessment(stored=storage_terms(work, project.storage.keep_last))
    tier, assumed = storage_tier(project, option)
    compute = None if option.usd is None else money(option.usd)
    seconds = option.seconds
    made = StagePlan(
        name=name,
        kind=stage.kind,
        inputs=inputs,
        option=option,
        counters=work.counters,
        checkpoint_bytes=checkpoint_bytes(work),
        storage_bytes=kept.stored.total,
        compute_usd=compute,
        storage_usd=None if compute is None else _storage_money(kept, seconds, tier),
        rejected=rejected,
        workload_terms=_workload_terms(work),
        node=node_needs(work, option, kept.stored, dtype=getattr(stage, "dtype", "bf16"), knowledge=knowledge),
        peak_range=peak_range(stage, option, knowledge),
        time_source=time_source(stage, option, work, knowledge),
    )
    return made, assumed


def _storage_money(kept: Assessment, seconds: Interval, tier: StorageTier) -> MicroUsd:
    low, middle, high = (money(exactly(kept.usd(value, tier))).p50 for value in (seconds.p10, seconds.p50, seconds.p90))
    return MicroUsd(p10=low, p50=middle, p90=high)


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
            source="answered by an endpoint, not planned" if phase.role in work.remote else "stage fields and data",
        )
        for phase in work.phases
    ]
    totals = [
        Term(name=name, part="produces", value=value, unit=name, formula="", source="stage fields and data")
        for name in SERIES
        if (value := getattr(work.counters, name))
    ]
    return (*roles, *phases, *totals)
