"""The columns of FOCUS 1.2 that Charter writes: names, feature levels, nullability, allowed values.

Source: FinOps Open Cost and Usage Specification 1.2 (CC-BY-4.0), section 3, one subsection per column.
"""

from dataclasses import dataclass
from typing import Literal

Level = Literal["Mandatory", "Conditional", "Recommended"]
Type = Literal["String", "Decimal", "DateTime", "Json", "Currency", "Unit"]

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
COLUMNS = tuple(sorted((*_WRITTEN, *_UNKNOWN_HERE), key=lambda column: column.name))
BY_NAME = {column.name: column for column in COLUMNS}
MANDATORY = tuple(column.name for column in COLUMNS if column.level == "Mandatory")
