"""Transfer of results from where a stage ran to where they are read: bytes, money, time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charter.catalog.price_book import PriceBook
from charter.cost.storage import TransferTier, internet_egress, transfer_usd
from charter.plan.hardware.place import LOCAL, ON_PREM
from charter.plan.options.option import Option
from charter.plan.stages.node_needs import storage_terms
from charter.plan.work.phase import Workload
from charter.spec.graph import inputs_of, stage_inputs
from charter.spec.project import Project
from charter.spec.stage import MODEL

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
    if source.same(target) or source.infra in (LOCAL, ON_PREM):
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
