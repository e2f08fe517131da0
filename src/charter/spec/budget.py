"""How much may be spent, by whom and on what: the section `budget:` of `charter.yaml`."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import Usd
from charter.spec.ranges import POSITIVE, check_ranges
from charter.spec.suggest import did_you_mean

FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much may be spent, and what happens when it is gone."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    limit: Usd
    """Of the whole project."""
    on_exceed: Literal["warn", "checkpoint_and_stop"] = "checkpoint_and_stop"
    on_forecast: Literal["warn", "hold", "checkpoint_and_stop"] = "warn"
    """What happens when the p10 of the forecast is above a limit: tell, start no further stage, or stop as if it were
    spent."""
    stages: Mapping[str, Usd] = field(default_factory=dict)
    """Limits of single stages."""
    owners: Mapping[str, Usd] = field(default_factory=dict)
    """Limits of owners, over all runs in the ledger: those of a team where `storage.ledger` is shared."""
    tags: Mapping[str, Usd] = field(default_factory=dict)
    """Limits of tags (`team=alignment`), over all runs in the ledger."""
    period: Literal["total", "month"] = "total"
    """What limits of owners and tags are for: all time, or each calendar month (UTC)."""


def check_budget(budget: Budget | None, stages: Collection[str]) -> Iterator[Problem]:
    """Problems of the section: limits that are not above 0, stages that there are not, tags that are none."""
    if budget is None:
        return
    yield from check_ranges(budget, "budget", [("limit", POSITIVE)])
    test, words = POSITIVE
    for part in ("stages", "owners", "tags"):
        for name, limit in getattr(budget, part).items():
            if not test(limit):
                yield Problem(message=f"{words}; found {limit}", path=f"budget.{part}.{name}")
    for name in budget.stages:
        if name not in stages:
            hint = did_you_mean(name, stages)
            yield Problem(message=f"no stage is called {name!r}", path=f"budget.stages.{name}", hint=hint)
    for name in budget.tags:
        key, equals, value = name.partition("=")
        if not (key and equals and value):
            message = f"{name!r} is no tag with its value; write it as in  team=alignment: $5,000"
            yield Problem(message=message, path=f"budget.tags.{name}")
