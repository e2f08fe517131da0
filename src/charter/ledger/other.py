"""Charges that are neither attempts nor calls: storage, transfer, fees of a service."""

from dataclasses import dataclass
from typing import Literal

from charter.ledger.attempt import NO_TAGS

Category = Literal["Storage", "Networking", "Other"]
"""Service categories of FOCUS 1.2."""


@dataclass(frozen=True, kw_only=True)
class OtherCharge:
    """One charge, as it was measured or billed."""

    run: str
    stage: str = ""
    """Empty for what no stage alone has caused."""
    category: Category
    service: str
    provider: str
    resource: str
    """What is paid for: a bucket, a volume."""
    started_at: float
    ended_at: float
    quantity: str
    """A decimal number of `unit`, as text, so that it stays exact."""
    unit: str
    unit_price_micro_usd: int | None = None
    micro_usd: int | None = None
    price_source: str | None = None
    price_as_of: str | None = None
    owner: str | None = None
    tags: str = NO_TAGS
