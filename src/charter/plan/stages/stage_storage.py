"""Storage of a stage: bytes on disk, where they lie, and what they cost over time."""

from dataclasses import dataclass

from charter.catalog.facts import StoragePrice
from charter.catalog.price_book import PriceBook
from charter.cost.storage import StageBytes, StorageTier, weights_only_count
from charter.cost.uncertainty import exactly
from charter.physics.node import weights_bytes
from charter.physics.terms import Breakdown, Interval, Term
from charter.plan.assumption import Assumption
from charter.plan.hardware.place import LOCAL, ON_PREM
from charter.plan.options.option import Option
from charter.plan.stages.node_needs import storage_terms
from charter.plan.stages.stage_plan import MicroUsd, money
from charter.plan.work.phase import Workload
from charter.spec.project import Project
from charter.spec.sections import Retention

OWN_DISK = StorageTier(name="own disk", usd_per_gb_month=0.0)
STANDARD = "standard"
TIERS = {
    "aws": {STANDARD: ("S3", "Standard first"), "infrequent": ("S3", "Standard-IA"), "archive": ("S3", "Glacier Inst")},
    "gcp": {STANDARD: ("GCS", "Standard single"), "infrequent": ("GCS", "Nearline"), "archive": ("GCS", "Coldline")},
}
"""Provider -> class in charter.yaml -> product and first words of the tier in the catalog."""


@dataclass(frozen=True, kw_only=True)
class StageStorage:
    """Bytes of one stage, and the classes of storage that hold them while it runs and afterwards."""

    stored: Breakdown
    kept: StageBytes
    while_running: StorageTier
    afterwards: StorageTier

    @property
    def assumption(self) -> Assumption | None:
        """The price of the class that holds everything while the stage runs; None on own disks."""
        tier = self.while_running
        if tier == OWN_DISK:
            return None
        return Assumption(
            name=f"storage, usd per GB and month: {tier.name}",
            value=tier.usd_per_gb_month,
            source=tier.source,
            as_of=tier.as_of,
        )

    def usd(self, seconds: Interval) -> MicroUsd:
        """Cost when the stage takes its p10, p50 and p90 time."""
        low, middle, high = (
            money(exactly(self.kept.usd(value, while_running=self.while_running, afterwards=self.afterwards))).p50
            for value in (seconds.p10, seconds.p50, seconds.p90)
        )
        return MicroUsd(p10=low, p50=middle, p90=high)


def stage_storage(work: Workload, option: Option, project: Project, book: PriceBook) -> StageStorage:
    """Full checkpoints by `keep_last`, weights alone of every m-th checkpoint, final weights and records."""
    retention = project.costs.retention
    terms = storage_terms(work, retention.keep_last or project.storage.keep_last).terms
    weights_only = _weights_only(work, option, retention)
    full = sum(term.value for term in terms if term.part == "checkpoints")
    return StageStorage(
        stored=Breakdown(terms=(*terms, weights_only) if weights_only.value else terms),
        kept=StageBytes(
            full_bytes=full,
            weights_only_bytes=weights_only.value,
            result_bytes=sum(term.value for term in terms) - full,
            days=retention.days,
        ),
        while_running=storage_tier(project, option, book),
        afterwards=storage_tier(project, option, book, retention.tier),
    )


def storage_tier(project: Project, option: Option, book: PriceBook, kind: str = STANDARD) -> StorageTier:
    """Return where a stage's artifacts live: the provider's storage of that class, else S3's; own disks are free."""
    if option.place.infra in (LOCAL, ON_PREM) and project.storage.artifacts is None:
        return OWN_DISK
    provider = "gcp" if (project.storage.artifacts or "").startswith("gs://") or option.place.infra == "gcp" else "aws"
    return tier_of(provider, book, kind)


def tier_of(provider: str, book: PriceBook, kind: str = STANDARD) -> StorageTier:
    """A class of a provider's object storage, as the catalog has it."""
    priced = _price(provider, kind, book)
    return StorageTier(
        name=f"{provider} {priced.product} {priced.tier}",
        usd_per_gb_month=priced.usd,
        minimum_days=priced.min_duration_days or 0.0,
        source=priced.provenance.source,
        as_of=priced.provenance.as_of,
    )


def _price(provider: str, kind: str, book: PriceBook) -> StoragePrice:
    product, tier = TIERS[provider][kind]
    return next(item for item in book.storage_prices(provider, product) if item.tier.startswith(tier))


def _weights_only(work: Workload, option: Option, retention: Retention) -> Term:
    interval = option.overhead.interval_seconds
    saves = option.overhead.useful_seconds / interval if interval > 0 and work.trained else 0.0
    count = weights_only_count(saves, every=retention.weights_every)
    each = weights_bytes(work.trained[0].architecture) if work.trained else 0.0
    return Term(
        name="weights of earlier checkpoints",
        part="weights",
        value=count * each,
        unit="bytes",
        formula=f"{count} of {saves:,.1f} checkpoints x {each:,.0f} B",
        source="costs.retention.weights_every",
    )
