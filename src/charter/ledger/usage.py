"""What calls to servers cost, by stage, server and model: values of the ledger and their charges in FOCUS columns."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from charter.errors import DataError
from charter.ledger.attempt import NO_TAGS
from charter.ledger.call import CallSums, RouteTotals
from charter.ledger.focus import Charge, timestamp


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
    found: dict[str, CallSums] = {}
    for item in usage:
        found[item.stage] = found.get(item.stage, CallSums()) + item.route.sums
    return found


def refuse_fewer(known: int | None, item: ApiUsage) -> None:
    """DataError when a store has fewer calls than the ledger has seen in it: it has lost some."""
    if known is not None and known > item.route.sums.requests:
        raise DataError(
            f"the calls of stage {item.stage} to {item.route.endpoint} are {item.route.sums.requests} by their "
            f"own record, and were {known} before: calls.sqlite in the stage's directory has lost some\n"
            "  move it away (with its -wal and -shm) and run again: what they cost stays in the ledger"
        )


def usage_charge(item: ApiUsage, *, labels: Mapping[str, str] | None = None) -> Charge:
    """The charge of some calls. `EffectiveCost` is what is settled; what may come on top is `x_UnknownMicroUsd`.

    The quantity is in tokens of all kinds, so there is no unit price: tokens in, cached and out differ in price.
    """
    route, sums = item.route, item.route.sums
    owner = {"owner": item.owner} if item.owner else {}
    tags = {**(labels or {}), **json.loads(item.tags), **owner, "run": item.run, "stage": item.stage}
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
