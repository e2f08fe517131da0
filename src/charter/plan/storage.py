"""Storage and transfer of a stage's results: bytes, where they lie, what moving and keeping them costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charter.catalog.price_book import PriceBook
from charter.catalog.rows import StoragePrice
from charter.cost.monte_carlo import exactly
from charter.cost.storage import (
    StageBytes,
    StorageTier,
    TransferTier,
    internet_egress,
    transfer_usd,
    weights_only_count,
)
from charter.physics.node import weights_bytes
from charter.physics.terms import Breakdown, Interval, Term
from charter.plan.node_needs import storage_terms
from charter.plan.offers import NOT_RENTED
from charter.plan.option import Option
from charter.plan.phase import Workload
from charter.plan.risk import Assumption
from charter.plan.stage_plan import MicroUsd, money
from charter.spec.graph import inputs_of, stage_inputs
from charter.spec.project import Project
from charter.spec.sections import Retention
from charter.spec.stage_base import MODEL
from charter.units import MICRO_USD_PER_USD

# -------- Transfer of results from where a stage ran to where they are read: bytes, money, time.

BYTES_PER_SECOND = 1.25e9
"""10 Gbit/s between providers, storage to storage. Judgement; SkyPilot's optimizer assumes the same."""
BUCKETS = {"s3": "aws", "gs": "gcp", "az": "azure", "abfs": "azure", "r2": "cloudflare"}
"""Scheme of `storage.artifacts` -> whose storage it is."""


@dataclass(frozen=True, kw_only=True)
class Location:
    """Provider and region where bytes lie."""

    infra: str
    region: str | None = None

    def same(self, other: "Location") -> bool:
        """Return True if nothing has to move; a region that is not known counts as the same."""
        unknown = {None, "all"}
        return self.infra == other.infra and (
            self.region == other.region or self.region in unknown or other.region in unknown
        )


def location(option: Option) -> Location:
    """Return where the results of an option lie: the storage of its provider, in the region of its price."""
    return Location(infra=option.place.infra, region=option.price.region or option.place.region)


def bucket(project: Project) -> Location | None:
    """The storage that `storage.artifacts` names, through which everything then goes; its region is not known."""
    scheme, host, _ = (project.storage.artifacts or "").partition("://")
    return Location(infra=BUCKETS[scheme]) if host and scheme in BUCKETS else None


def move_usd(
    num_bytes: float,
    source: Location,
    target: Location,
    book: PriceBook | None = None,
    *,
    already_bytes: float = 0.0,
) -> float:
    """Money to bring bytes from one place to another: the source charges for what leaves it.

    Same region: free. Another region of the same provider: its cross-region price. Elsewhere: its internet tiers, on
    top of `already_bytes` that left it in the same month. Own machines charge nothing, and reading in is free. Prices
    between regions are those of the bundled book unless another is given.

    >>> move_usd(100e9, Location(infra="aws"), Location(infra="gcp"))
    9.0
    >>> move_usd(100e9, Location(infra="lambda"), Location(infra="gcp"))
    0.0
    """
    if source.same(target) or source.infra in NOT_RENTED:
        return 0.0
    if source.infra == target.infra:
        between = _regional(source.infra, book or PriceBook.bundled())
        return transfer_usd(num_bytes, (TransferTier(up_to_bytes=float("inf"), usd_per_gb=between),))
    return transfer_usd(num_bytes, internet_egress(source.infra), already_bytes=already_bytes)


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """Bytes that move from one place to another in one month of the project."""

    num_bytes: float
    source: Location
    target: Location
    month: int


def shipments_usd(shipments: Sequence[Shipment], book: PriceBook) -> list[float]:
    """Money of each, in the given order: what leaves a provider for elsewhere in a month runs through its tiers once.

    >>> to_gcp = Shipment(num_bytes=8e12, source=Location(infra="aws"), target=Location(infra="gcp"), month=0)
    >>> [round(usd) for usd in shipments_usd([to_gcp, to_gcp], PriceBook.bundled())]
    [720, 691]
    """
    left: dict[tuple[str, int], float] = {}
    amounts = []
    for item in shipments:
        key = (item.source.infra, item.month)
        amounts.append(move_usd(item.num_bytes, item.source, item.target, book, already_bytes=left.get(key, 0.0)))
        if item.source.infra != item.target.infra:
            left[key] = left.get(key, 0.0) + item.num_bytes
    return amounts


def _regional(infra: str, book: PriceBook) -> float:
    """usd per GB between two regions of a provider; providers without such a price that charge for the internet are
    taken at the default of OpenCost, the others as free."""
    named = [item for item in book.storage_prices(infra, "egress") if "cross-region" in item.tier]
    if named:
        return named[0].usd
    if internet_egress(infra)[0].usd_per_gb == 0:
        return 0.0
    return next(item.usd for item in book.storage_prices("opencost default", "egress") if item.tier == "region egress")


def move_seconds(num_bytes: float, source: Location, target: Location) -> float:
    """Time of the same: at 10 Gbit/s; nothing where it lies there already."""
    return 0.0 if source.same(target) else num_bytes / BYTES_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class Freight:
    """Bytes that one stage writes for others, and that it reads from them and from the data sets of the project."""

    written_bytes: float
    read_bytes: Mapping[str, float]
    """By the stage that wrote it."""
    data_bytes: float

    @property
    def total_read_bytes(self) -> float:
        """All that it reads."""
        return sum(self.read_bytes.values()) + self.data_bytes


def freights(project: Project, works: Mapping[str, Workload], data_bytes: Mapping[str, float]) -> dict[str, Freight]:
    """Of every stage: final weights in 16 bits where it makes a model, records otherwise; no checkpoints."""
    written = {name: _written(project, name, work) for name, work in works.items()}
    return {
        name: Freight(
            written_bytes=written[name],
            read_bytes={other: written[other] for other in stage_inputs(project, name)},
            data_bytes=sum(data_bytes.get(item, 0.0) for names in inputs_of(project, name).values() for item in names),
        )
        for name in works
    }


def _written(project: Project, name: str, work: Workload) -> float:
    part = "weights" if project.pipeline[name].MAKES == MODEL else "data"
    return storage_terms(work, project.storage.keep_last).part(part)


# -------- Storage of a stage: bytes on disk, where they lie, and what they cost over time.

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
    if option.place.infra in NOT_RENTED and project.storage.artifacts is None:
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


# -------- Price of a GB and month in the places where a run really keeps its bytes, by the prices that the plan uses.


@dataclass(frozen=True, kw_only=True)
class StoredPrice:
    """The price of one place."""

    provider: str
    micro_usd_per_gb_month: int | None
    """None where no price is known."""
    source: str = ""
    as_of: str = ""


def place_price(bucket: str | None, *, infra: str | None, own_endpoint: str | None = None) -> StoredPrice:
    """The price of a bucket, or of a directory where `bucket` is None.

    Own disks are free, as in the plan. A disk of a rented machine, and a bucket of a store that is reached at an
    address of its own (`own_endpoint`), have no price in the catalog.

    >>> place_price("s3://bucket", infra=None).micro_usd_per_gb_month
    23000
    >>> place_price(None, infra=None), place_price(None, infra="aws").micro_usd_per_gb_month
    (StoredPrice(provider='own disk', micro_usd_per_gb_month=0, source='own disk', as_of=''), None)
    """
    if bucket is None:
        if infra is None or infra in NOT_RENTED:
            return StoredPrice(provider=OWN_DISK.name, micro_usd_per_gb_month=0, source=OWN_DISK.name)
        return StoredPrice(provider=str(infra), micro_usd_per_gb_month=None)
    provider = BUCKETS.get(bucket.partition("://")[0], "")
    if own_endpoint is not None or provider not in TIERS:
        return StoredPrice(provider=provider if own_endpoint is None else own_endpoint, micro_usd_per_gb_month=None)
    tier = tier_of(provider, PriceBook.bundled())
    return StoredPrice(
        provider=provider,
        micro_usd_per_gb_month=round(tier.usd_per_gb_month * MICRO_USD_PER_USD),
        source=f"{tier.name}: {tier.source}",
        as_of=tier.as_of,
    )
