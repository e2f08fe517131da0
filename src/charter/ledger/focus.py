"""Charges in the column names of FOCUS 1.2 and 1.3 (FinOps Open Cost and Usage Specification), by attempt and month.

This is how the ledger keeps them: money in whole micro-USD, empty where it is not known. `focus_rows` makes the rows
of a dataset from them, in which every column has the form that the specification asks for.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any
from urllib.parse import urlsplit

from charter.errors import DataError
from charter.ledger.account import MILLISECONDS_PER_HOUR, Accounted, totals_of_one
from charter.ledger.attempt import NO_TAGS
from charter.ledger.call import CallSums, RouteTotals
from charter.ledger.focus_columns import BY_NAME, COLUMNS, Version
from charter.ledger.stored import CREDIT, STORED_ON, OtherCharge

PRICING_CATEGORIES = {"on_demand": "Standard", "spot": "Dynamic", "reserved": "Committed"}
Charge = dict[str, str | int | float | None]


def charge(item: Accounted) -> Charge:
    """The charge of one attempt. An attempt without a price has empty costs and its full quantity.

    `BilledCost` stays empty until an invoice is matched. `ListCost` and `EffectiveCost` are both at the price
    that the attempt was started with.
    """
    attempt = item.attempt
    ended_at = attempt.started_at + attempt.duration_milliseconds / 1000
    own = {"run": attempt.run, "stage": attempt.stage, "attempt": str(attempt.number)}
    owner = {"owner": attempt.owner} if attempt.owner else {}
    tags = {**json.loads(attempt.tags), **owner, **own}
    unit = "Machine-Hours" if attempt.accelerator == "cpu" else "Accelerator-Hours"
    return {
        "x_AttemptId": attempt.attempt_id,
        "x_StageId": attempt.stage,
        "ChargePeriodStart": timestamp(attempt.started_at),
        "ChargePeriodEnd": timestamp(ended_at),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"stage {attempt.stage}, attempt {attempt.number}: {attempt.outcome}",
        "BillingCurrency": "USD",
        "ServiceCategory": "Compute",
        "ServiceName": "Charter training",
        "Provider": attempt.infra,
        "ResourceType": attempt.accelerator,
        "PricingCategory": PRICING_CATEGORIES.get(attempt.market, "Other"),
        "PricingQuantity": hours_text(attempt.duration_milliseconds * attempt.count),
        "PricingUnit": unit,
        "ListUnitPrice": attempt.price_micro_usd_per_hour,
        "ListCost": item.cost_micro_usd,
        "EffectiveCost": item.cost_micro_usd,
        "BilledCost": None,
        "Tags": json.dumps(tags, sort_keys=True),
        "x_UsefulSeconds": item.useful_milliseconds / 1000,
        "x_LostSeconds": item.lost_milliseconds / 1000,
        "x_Tokens": attempt.tokens,
        "x_Episodes": attempt.episodes,
        "x_PreferencePairs": attempt.pairs,
        "x_Records": attempt.records,
        "x_PriceSource": attempt.price_source,
        "x_PriceAsOf": attempt.price_as_of,
        "x_EstimateOrActual": "estimate" if attempt.outcome == "running" else "actual",
        "x_Owner": attempt.owner,
        "x_JobId": attempt.job_id,
        "x_Nodes": attempt.nodes,
        "x_Shard": attempt.shard,
        "x_Clock": attempt.clock,
        "x_IdleSeconds": None if attempt.idle_milliseconds is None else item.idle_milliseconds / 1000,
        "x_IdleCost": item.idle_micro_usd,
        "x_LostCost": item.lost_micro_usd,
        "x_EnergyJoules": attempt.energy_joules,
        "x_EnergySource": attempt.energy_source,
    }


def hours_text(milliseconds: int) -> str:
    """Milliseconds as hours with nine decimals.

    >>> hours_text(1_800_000)
    '0.500000000'
    """
    return f"{milliseconds / MILLISECONDS_PER_HOUR:.9f}"


def timestamp(unix_seconds: float) -> str:
    """Unix seconds as FOCUS writes a moment.

    >>> timestamp(0.25)
    '1970-01-01T00:00:00.250Z'
    """
    return _iso(datetime.fromtimestamp(unix_seconds, tz=UTC))


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class ApiUsage:
    """The calls of one stage to one model on one server, as one store of calls has them."""

    run: str
    stage: str
    fingerprint: str
    store_id: str
    """Which store: one that was moved away keeps what it cost in the ledger, beside the new one."""
    route: RouteTotals
    owner: str | None = None
    """Person or team that they are billed to, where the ledger was told."""
    tags: str = NO_TAGS
    """The project's tags as JSON, as attempts have them."""

    @property
    def host(self) -> str:
        """The server's name."""
        return urlsplit(self.route.endpoint).hostname or self.route.endpoint


def usage_sums(usage: Iterable[ApiUsage]) -> CallSums:
    """The sums over some usage."""
    return sum((item.route.sums for item in usage), CallSums())


def stage_usage(usage: Iterable[ApiUsage]) -> dict[str, CallSums]:
    """The sums by stage; they add up to `usage_sums` exactly."""
    by_stage: dict[str, CallSums] = {}
    for item in usage:
        by_stage[item.stage] = by_stage.get(item.stage, CallSums()) + item.route.sums
    return by_stage


def refuse_fewer(seen_before: int | None, item: ApiUsage) -> None:
    """DataError when a store has fewer calls than the ledger has seen in it: it has lost some."""
    if seen_before is not None and seen_before > item.route.sums.requests:
        raise DataError(
            f"the calls of stage {item.stage} to {item.route.endpoint} are {item.route.sums.requests} by their "
            f"own record, and were {seen_before} before: calls.sqlite in the stage's directory has lost some\n"
            "  move it away (with its -wal and -shm) and run again: what they cost stays in the ledger"
        )


def usage_charge(item: ApiUsage) -> Charge:
    """The charge of some calls. `EffectiveCost` is what is settled; what may come on top is `x_UnknownMicroUsd`.

    The quantity is in tokens of all kinds, so there is no unit price: tokens in, cached and out differ in price.
    """
    route, sums = item.route, item.route.sums
    owner = {"owner": item.owner} if item.owner else {}
    tags = {**json.loads(item.tags), **owner, "run": item.run, "stage": item.stage}
    cost = None if sums.unpriced and not sums.settled_micro_usd else sums.settled_micro_usd
    return {
        "x_Run": item.run,
        "x_StageId": item.stage,
        "x_Fingerprint": item.fingerprint,
        "x_StoreId": item.store_id,
        "x_Endpoint": route.endpoint,
        "x_Model": route.model,
        "ChargePeriodStart": timestamp(route.first_at),
        "ChargePeriodEnd": timestamp(max(route.first_at, route.last_at)),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"stage {item.stage}: {sums.requests} calls to {route.model}",
        "BillingCurrency": "USD",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Model API",
        "Provider": item.host,
        "ResourceType": route.model,
        "PricingCategory": "Standard",
        "PricingQuantity": str(sums.prompt_tokens + sums.completion_tokens),
        "PricingUnit": "Tokens",
        "ListCost": cost,
        "EffectiveCost": cost,
        "BilledCost": None,
        "Tags": json.dumps(tags, sort_keys=True, ensure_ascii=False),
        "x_Requests": sums.requests,
        "x_Answered": sums.answered,
        "x_Refused": sums.refused,
        "x_Unknown": sums.unknown,
        "x_Unpriced": sums.unpriced,
        "x_PromptTokens": sums.prompt_tokens,
        "x_CachedTokens": sums.cached_tokens,
        "x_CompletionTokens": sums.completion_tokens,
        "x_SettledMicroUsd": sums.settled_micro_usd,
        "x_UnknownMicroUsd": sums.unknown_micro_usd,
        "x_FirstAt": route.first_at,
        "x_LastAt": route.last_at,
        "x_EstimateOrActual": "estimate" if sums.unknown else "actual",
        "x_Owner": item.owner,
        "x_OwnTags": item.tags,
    }


Cell = str | int | Decimal | None
Row = dict[str, Cell]
MICRO = Decimal("0.000001")
NANO_HOURS = Decimal("0.000000001")
UNIT_PRICE = Decimal("1e-15")
"""Of an average price per token: a million tokens are then exact to a nano-USD."""
PUBLISHER = "Charter"
SUBCATEGORY_OF_OTHER = {"Storage": "Object Storage", "Networking": "Network Infrastructure", "Other": "Other (Other)"}
SUBCATEGORIES_OF_SERVICES = {STORED_ON[True]: "File Storage"}


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account that the rows are billed to."""

    identifier: str
    """The project."""


def rows_of_attempts(
    accounted: Iterable[Accounted], account: Account, *, billed: Mapping[int, tuple[str, Decimal]] | None = None
) -> Iterator[Row]:
    """One row per attempt and billing month; money, time and counts divided so that they add up exactly.

    `billed` is what a provider's bill says of an attempt: its name, and the amount.
    """
    for item in accounted:
        parts = list(_months(item))
        bill, amount = (billed or {}).get(item.attempt.attempt_id, ("", None))
        remaining = amount
        for part in parts:
            row = _attempt_row(item, part, account)
            if amount is not None and remaining is not None:
                duration = max(1, item.attempt.duration_milliseconds)
                share = remaining if part is parts[-1] else amount * part.milliseconds / duration
                share = share.quantize(MICRO)
                remaining -= share
                row |= {"BilledCost": share, "x_BillName": bill}
            yield row


def rows_of_usage(usage: Iterable[ApiUsage], account: Account) -> Iterator[Row]:
    """One row per stage, server and model; in the month of the first call."""
    for item in usage:
        charges = usage_charge(item)
        sums = item.route.sums
        tokens = Decimal(sums.prompt_tokens + sums.completion_tokens)
        effective = Decimal(sums.settled_micro_usd).scaleb(-6)
        price = (effective / tokens).quantize(UNIT_PRICE, ROUND_HALF_EVEN) if tokens else Decimal(0)
        row = _frame(
            account, provider=item.host, started_at=item.route.first_at, ended_at=item.route.last_at, owner=item.owner
        )
        row |= _priced(quantity=tokens, unit="Tokens", unit_price=price, effective=effective)
        row |= {
            **{name: _cell(charges[name]) for name in DESCRIBED},
            "ServiceSubcategory": "Generative AI",
            "ResourceId": f"{item.run}/{item.stage}/{item.route.endpoint}/{item.route.model}",
            "ResourceName": item.route.model,
            "ResourceType": "Model",
            "SkuId": item.route.model,
            "SkuMeter": "Tokens",
            "SkuPriceId": f"{item.route.model}@{item.host}",
            "x_IsPriced": _flag(not sums.unpriced),
            "x_PriceIsAverage": "true",
            **{name: _cell(value) for name, value in charges.items() if name.startswith("x_") and name != "x_OwnTags"},
        }
        yield row


def rows_of_other(charges: Iterable[OtherCharge], account: Account) -> Iterator[Row]:
    """One row per charge for storage, transfer or a fee, and per credit."""
    for item in charges:
        quantity = Decimal(item.quantity)
        effective = Decimal(item.micro_usd or 0).scaleb(-6)
        price = Decimal(item.unit_price_micro_usd or 0).scaleb(-6)
        if not price and quantity:
            price = (effective / quantity).quantize(UNIT_PRICE, ROUND_HALF_EVEN)
        row = _frame(
            account, provider=item.provider, started_at=item.started_at, ended_at=item.ended_at, owner=item.owner
        )
        row |= _priced(quantity=quantity, unit=item.unit, unit_price=price, effective=effective)
        tags = {**json.loads(item.tags), **({"owner": item.owner} if item.owner else {}), "run": item.run}
        row |= {
            "ChargeDescription": f"{item.service}: {item.resource}",
            "PricingCategory": "Standard",
            "ServiceCategory": item.category,
            "ServiceSubcategory": SUBCATEGORIES_OF_SERVICES.get(item.service, SUBCATEGORY_OF_OTHER[item.category]),
            "ServiceName": item.service,
            "ResourceId": item.resource,
            "ResourceName": item.resource,
            "ResourceType": item.service,
            "SkuId": item.service,
            "SkuMeter": item.unit,
            "SkuPriceId": f"{item.service}@{item.provider}",
            "Tags": json.dumps({**tags, **({"stage": item.stage} if item.stage else {})}, sort_keys=True),
            "x_StageId": item.stage or None,
            "x_Run": item.run,
            "x_Owner": item.owner,
            "x_PriceSource": item.price_source,
            "x_PriceAsOf": item.price_as_of,
            "x_IsPriced": _flag(item.micro_usd is not None),
        }
        yield _credited(row, effective) if item.service == CREDIT else row


NOT_OF_CREDITS = (
    "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingQuantity",
    "PricingUnit", "PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice", "SkuId", "SkuMeter",
    "SkuPriceId",
)  # fmt: skip
"""Columns of a quantity at a price: nothing was used, and a unit price is never below zero."""


def _credited(row: Row, effective: Decimal) -> Row:
    """Return the row of a charge as that of money which a provider gives back."""
    costs = {"ListCost": effective, "ContractedCost": effective}
    return row | dict.fromkeys(NOT_OF_CREDITS) | costs | {"ChargeCategory": "Credit", "ChargeFrequency": "One-Time"}


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The part of an attempt that falls into one month."""

    started_at: float
    milliseconds: int
    number: int
    values: Mapping[str, int]


SHARED = ("milliseconds", "useful_milliseconds", "micro_usd", "tokens", "episodes", "pairs", "records",
          "idle_milliseconds", "idle_micro_usd", "lost_to_kills_micro_usd", "lost_to_failures_micro_usd",
          "energy_joules")  # fmt: skip


DESCRIBED = ("ChargeDescription", "PricingCategory", "ServiceCategory", "ServiceName", "Tags")
AS_CHARGED = (
    *DESCRIBED, "ResourceType", "x_AttemptId", "x_StageId", "x_Shard", "x_JobId", "x_Nodes", "x_Owner", "x_Clock",
    "x_EnergySource", "x_PriceSource", "x_PriceAsOf", "x_EstimateOrActual",
)  # fmt: skip
"""Columns of a row that are the same in every month of its attempt, and stand in the attempt's charge."""


def _months(item: Accounted) -> Iterator[_Part]:
    """An attempt by calendar months (UTC)."""
    started_at, duration = item.attempt.started_at, item.attempt.duration_milliseconds
    totals = totals_of_one(item)
    before, at, number = dict.fromkeys(SHARED, 0), 0, 0
    month = datetime.fromtimestamp(started_at, tz=UTC)
    while True:
        month = _next_month(month)
        until = max(at, min(duration, round((month.timestamp() - started_at) * 1000)))
        share = {
            name: getattr(totals, name) * until // duration if duration else getattr(totals, name) for name in SHARED
        }
        values = {name: share[name] - before[name] for name in SHARED}
        yield _Part(started_at=started_at + at / 1000, milliseconds=until - at, number=number, values=values)
        if until >= duration:
            return
        before, at, number = share, until, number + 1


def _attempt_row(item: Accounted, part: _Part, account: Account) -> Row:
    attempt, values, charges = item.attempt, part.values, charge(item)
    unit = str(charges["PricingUnit"])
    quantity = (Decimal(part.milliseconds * attempt.count) / MILLISECONDS_PER_HOUR).quantize(
        NANO_HOURS, ROUND_HALF_EVEN
    )
    price = Decimal(attempt.price_micro_usd_per_hour or 0).scaleb(-6)
    ended_at = part.started_at + part.milliseconds / 1000
    row = _frame(account, provider=attempt.infra, started_at=part.started_at, ended_at=ended_at, owner=attempt.owner)
    row |= _priced(quantity=quantity, unit=unit, unit_price=price, effective=Decimal(values["micro_usd"]).scaleb(-6))
    sku = attempt.accelerator
    return row | {
        **{name: _cell(charges[name]) for name in AS_CHARGED},
        "ServiceSubcategory": "Virtual Machines",
        "ResourceId": f"{attempt.run}/{attempt.stage}/{attempt.number}",
        "ResourceName": attempt.stage,
        "SkuId": sku,
        "SkuMeter": unit,
        "SkuPriceId": f"{sku}@{attempt.infra}/{attempt.market}",
        "x_Part": part.number,
        "x_Run": attempt.run,
        "x_Outcome": attempt.outcome,
        "x_StartedAt": timestamp(part.started_at),
        "x_EndedAt": timestamp(ended_at),
        "x_BilledSeconds": Decimal(part.milliseconds).scaleb(-3),
        "x_UsefulSeconds": Decimal(values["useful_milliseconds"]).scaleb(-3),
        "x_LostSeconds": Decimal(values["milliseconds"] - values["useful_milliseconds"]).scaleb(-3),
        "x_LostCost": _usd(values["lost_to_kills_micro_usd"] + values["lost_to_failures_micro_usd"]),
        "x_IdleSeconds": None if attempt.idle_milliseconds is None else Decimal(values["idle_milliseconds"]).scaleb(-3),
        "x_IdleCost": None if attempt.idle_milliseconds is None else _usd(values["idle_micro_usd"]),
        "x_EnergyKilowattHours": None
        if attempt.energy_joules is None
        else (Decimal(values["energy_joules"]) / 3_600_000).quantize(NANO_HOURS),
        "x_Tokens": values["tokens"],
        "x_Episodes": values["episodes"],
        "x_PreferencePairs": values["pairs"],
        "x_Records": values["records"],
        "x_IsPriced": _flag(attempt.price_micro_usd_per_hour is not None),
        "x_BillName": None,
    }


def _frame(account: Account, *, provider: str, started_at: float, ended_at: float, owner: str | None) -> Row:
    """Return the fields of every row: whose, when, by whom. The invoice is provisional: one per project and month."""
    start = datetime.fromtimestamp(started_at, tz=UTC)
    month = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return {
        "BillingAccountId": account.identifier,
        "BillingAccountName": account.identifier,
        "BillingAccountType": "Project",
        "BillingCurrency": "USD",
        "PricingCurrency": "USD",
        "InvoiceId": f"{account.identifier}-{month:%Y-%m}",
        "BillingPeriodStart": _moment(month.timestamp()),
        "BillingPeriodEnd": _moment(_next_month(start).timestamp()),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _moment(started_at),
        "ChargePeriodEnd": _moment(max(ended_at, started_at) + 0.999999),
        "InvoiceIssuerName": provider,
        "HostProviderName": provider,
        "ProviderName": provider,
        "PublisherName": PUBLISHER,
        "ServiceProviderName": provider,
        "SubAccountId": owner,
        "SubAccountName": owner,
        "SubAccountType": None if owner is None else "Owner",
    }


def _priced(*, quantity: Decimal, unit: str, unit_price: Decimal, effective: Decimal) -> Row:
    product = quantity * unit_price
    return {
        "BilledCost": effective,
        "EffectiveCost": effective,
        "ListCost": product,
        "ContractedCost": product,
        "ListUnitPrice": unit_price,
        "ContractedUnitPrice": unit_price,
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "SkuPriceDetails": None,
        "PricingCurrencyContractedUnitPrice": unit_price,
        "PricingCurrencyEffectiveCost": effective,
        "PricingCurrencyListUnitPrice": unit_price,
    }


def column_order(rows: Iterable[Mapping[str, Cell]], version: Version) -> list[str]:
    """All columns of a version of FOCUS first, by name, then Charter's own: every row has every column."""
    own = {name for row in rows for name in row if name not in BY_NAME}
    return [*(column.name for column in COLUMNS[version]), *sorted(own)]


def _next_month(moment: datetime) -> datetime:
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (start + timedelta(days=32)).replace(day=1)


def _moment(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _usd(micro_usd: int) -> Decimal:
    return Decimal(micro_usd).scaleb(-6)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _cell(value: Any) -> Cell:
    return Decimal(repr(value)) if isinstance(value, float) else value
