"""The columns of FOCUS 1.2 and 1.3 that Charter writes: names, feature levels, nullability, allowed values.

Source: FinOps Open Cost and Usage Specification 1.2 (CC-BY-4.0), section 3, one subsection per column; what 1.3 adds,
from its pages of columns (specification/datasets/cost_and_usage/columns).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["Mandatory", "Conditional", "Recommended"]
Type = Literal["String", "Decimal", "DateTime", "Json", "JsonObject", "Currency", "Unit"]
Version = Literal["1.2", "1.3"]
VERSIONS: tuple[Version, ...] = ("1.2", "1.3")
DEFAULT_VERSION: Version = "1.2"
"""Until a released validator reads 1.3: focus-validator 1.0.0, of 2026-11-26, reads 1.0."""

SERVICE_CATEGORIES = (
    "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
    "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance", "Media", "Migration",
    "Mobile", "Networking", "Security", "Storage", "Web", "Other",
)  # fmt: skip
CHARGE_CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
PRICING_CATEGORIES = ("Standard", "Dynamic", "Committed", "Other")
CHARGE_FREQUENCIES = ("One-Time", "Recurring", "Usage-Based")
SUBCATEGORIES = {
    "AI and Machine Learning": (
        "AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing",
        "Other (AI and Machine Learning)",
    ),
    "Compute": (
        "Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines",
        "Other (Compute)",
    ),
    "Networking": (
        "Application Networking", "Content Delivery", "Network Connectivity", "Network Infrastructure",
        "Network Routing", "Network Security", "Other (Networking)",
    ),
    "Storage": (
        "Backup Storage", "Block Storage", "File Storage", "Object Storage", "Storage Platforms", "Other (Storage)",
    ),
    "Other": ("Other (Other)",),
}  # fmt: skip
"""Of the service categories that Charter writes."""
ALL_SUBCATEGORIES = tuple(name for group in SUBCATEGORIES.values() for name in group)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    name: str
    level: Level
    type: Type
    nullable: bool
    allowed: tuple[str, ...] = ()
    least: float | None = None


def _column(
    name: str, level: Level, type: Type, *, nullable: bool = False, allowed: tuple[str, ...] = (),
    least: float | None = None,
) -> Column:  # fmt: skip
    return Column(name=name, level=level, type=type, nullable=nullable, allowed=allowed, least=least)


_WRITTEN: tuple[Column, ...] = (
    _column("BilledCost", "Mandatory", "Decimal"),
    _column("BillingAccountId", "Mandatory", "String"),
    _column("BillingAccountName", "Mandatory", "String", nullable=True),
    _column("BillingAccountType", "Conditional", "String"),
    _column("BillingCurrency", "Mandatory", "Currency"),
    _column("BillingPeriodEnd", "Mandatory", "DateTime"),
    _column("BillingPeriodStart", "Mandatory", "DateTime"),
    _column("ChargeCategory", "Mandatory", "String", allowed=CHARGE_CATEGORIES),
    _column("ChargeClass", "Mandatory", "String", nullable=True, allowed=("Correction",)),
    _column("ChargeDescription", "Mandatory", "String", nullable=True),
    _column("ChargeFrequency", "Recommended", "String", allowed=CHARGE_FREQUENCIES),
    _column("ChargePeriodEnd", "Mandatory", "DateTime"),
    _column("ChargePeriodStart", "Mandatory", "DateTime"),
    _column("ConsumedQuantity", "Conditional", "Decimal", nullable=True),
    _column("ConsumedUnit", "Conditional", "Unit", nullable=True),
    _column("ContractedCost", "Mandatory", "Decimal"),
    _column("ContractedUnitPrice", "Conditional", "Decimal", nullable=True, least=0.0),
    _column("EffectiveCost", "Mandatory", "Decimal"),
    _column("InvoiceId", "Recommended", "String", nullable=True),
    _column("InvoiceIssuerName", "Mandatory", "String"),
    _column("ListCost", "Mandatory", "Decimal"),
    _column("ListUnitPrice", "Conditional", "Decimal", nullable=True, least=0.0),
    _column("PricingCategory", "Conditional", "String", nullable=True, allowed=PRICING_CATEGORIES),
    _column("PricingCurrency", "Conditional", "Currency", nullable=True),
    _column("PricingCurrencyContractedUnitPrice", "Conditional", "Decimal", nullable=True, least=0.0),
    _column("PricingCurrencyEffectiveCost", "Conditional", "Decimal", nullable=True),
    _column("PricingCurrencyListUnitPrice", "Conditional", "Decimal", nullable=True, least=0.0),
    _column("PricingQuantity", "Mandatory", "Decimal", nullable=True),
    _column("PricingUnit", "Mandatory", "Unit", nullable=True),
    _column("ProviderName", "Mandatory", "String"),
    _column("PublisherName", "Mandatory", "String"),
    _column("ResourceId", "Conditional", "String", nullable=True),
    _column("ResourceName", "Conditional", "String", nullable=True),
    _column("ResourceType", "Conditional", "String", nullable=True),
    _column("ServiceCategory", "Mandatory", "String", allowed=SERVICE_CATEGORIES),
    _column("ServiceName", "Mandatory", "String"),
    _column(
        "ServiceSubcategory", "Recommended", "String", allowed=ALL_SUBCATEGORIES
    ),
    _column("SkuId", "Conditional", "String", nullable=True),
    _column("SkuMeter", "Conditional", "String", nullable=True),
    _column("SkuPriceDetails", "Conditional", "Json", nullable=True),
    _column("SkuPriceId", "Conditional", "String", nullable=True),
    _column("SubAccountId", "Conditional", "String", nullable=True),
    _column("SubAccountName", "Conditional", "String", nullable=True),
    _column("SubAccountType", "Conditional", "String", nullable=True),
    _column("Tags", "Conditional", "Json", nullable=True),
)  # fmt: skip
_UNKNOWN_HERE: tuple[Column, ...] = (
    _column("AvailabilityZone", "Recommended", "String", nullable=True),
    _column("CapacityReservationId", "Conditional", "String", nullable=True),
    _column("CapacityReservationStatus", "Conditional", "String", nullable=True, allowed=("Used", "Unused")),
    _column("CommitmentDiscountCategory", "Conditional", "String", nullable=True, allowed=("Spend", "Usage")),
    _column("CommitmentDiscountId", "Conditional", "String", nullable=True),
    _column("CommitmentDiscountName", "Conditional", "String", nullable=True),
    _column("CommitmentDiscountQuantity", "Conditional", "Decimal", nullable=True),
    _column("CommitmentDiscountStatus", "Conditional", "String", nullable=True, allowed=("Used", "Unused")),
    _column("CommitmentDiscountType", "Conditional", "String", nullable=True),
    _column("CommitmentDiscountUnit", "Conditional", "Unit", nullable=True),
    _column("RegionId", "Conditional", "String", nullable=True),
    _column("RegionName", "Conditional", "String", nullable=True),
)
"""Columns that are always null: a bill has them, a run does not know them."""
_SINCE_1_3: tuple[Column, ...] = (
    _column("AllocatedMethodDetails", "Recommended", "JsonObject", nullable=True),
    _column("AllocatedMethodId", "Conditional", "String", nullable=True),
    _column("AllocatedResourceId", "Conditional", "String", nullable=True),
    _column("AllocatedResourceName", "Conditional", "String", nullable=True),
    _column("AllocatedTags", "Conditional", "Json", nullable=True),
    _column("ContractApplied", "Conditional", "JsonObject", nullable=True),
    _column("HostProviderName", "Mandatory", "String", nullable=True),
    _column("ServiceProviderName", "Mandatory", "String"),
)
"""Whose machines and whose service it is; the rest is null, since Charter splits no charge and knows no contract."""


def _sorted(*columns: Column) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda column: column.name))


COLUMNS: Mapping[Version, tuple[Column, ...]] = {
    "1.2": _sorted(*_WRITTEN, *_UNKNOWN_HERE),
    "1.3": _sorted(*_WRITTEN, *_UNKNOWN_HERE, *_SINCE_1_3),
}
"""Of a dataset in a version of the specification. 1.3 keeps ProviderName and PublisherName, which 1.4 removes."""
BY_NAME = {column.name: column for column in COLUMNS["1.3"]}


def version_of(names: Iterable[str]) -> Version:
    """The version whose columns a dataset has.

    >>> version_of(["BilledCost", "ProviderName"]), version_of(["BilledCost", "ServiceProviderName"])
    ('1.2', '1.3')
    """
    return "1.3" if {column.name for column in _SINCE_1_3} & set(names) else "1.2"
