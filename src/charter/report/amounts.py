"""Times and money of a report: whole milliseconds and micro-USD, so that parts add up to totals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from charter.cost.job import micro_usd


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A time and its cost; no cost where there is no price."""

    milliseconds: int
    micro_usd: int | None

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return self.milliseconds / 1000

    @property
    def usd(self) -> float | None:
        """The cost in dollars."""
        return None if self.micro_usd is None else self.micro_usd / 1_000_000

    def __add__(self, other: "Amount") -> "Amount":
        costs = [cost for cost in (self.micro_usd, other.micro_usd) if cost is not None]
        return Amount(milliseconds=self.milliseconds + other.milliseconds, micro_usd=sum(costs) if costs else None)

    def scaled(self, share: float) -> "Amount":
        """A share of it, rounded to whole units."""
        return Amount(
            milliseconds=round(self.milliseconds * share),
            micro_usd=None if self.micro_usd is None else round(self.micro_usd * share),
        )

    def to_json(self, suffix: str = "") -> dict[str, float | int | None]:
        """`seconds` and `usd` for people, `milliseconds` and `micro_usd` for exact sums."""
        return {
            f"seconds{suffix}": self.seconds,
            f"usd{suffix}": self.usd,
            f"milliseconds{suffix}": self.milliseconds,
            f"micro_usd{suffix}": self.micro_usd,
        }


NOTHING = Amount(milliseconds=0, micro_usd=None)


@dataclass(frozen=True, kw_only=True)
class AmountSpread:
    """An estimate: median, and the tenth and ninetieth percentiles."""

    p10: Amount
    p50: Amount
    p90: Amount

    def __add__(self, other: "AmountSpread") -> "AmountSpread":
        return AmountSpread(p10=self.p10 + other.p10, p50=self.p50 + other.p50, p90=self.p90 + other.p90)

    def scaled(self, share: float) -> "AmountSpread":
        """A share of it."""
        return AmountSpread(p10=self.p10.scaled(share), p50=self.p50.scaled(share), p90=self.p90.scaled(share))

    def to_json(self) -> dict[str, float | int | None]:
        """The median plain, the others with `_p10` and `_p90`."""
        return {**self.p50.to_json(), **self.p10.to_json("_p10"), **self.p90.to_json("_p90")}


NO_SPREAD = AmountSpread(p10=NOTHING, p50=NOTHING, p90=NOTHING)


def planned(stage: Mapping[str, Any]) -> AmountSpread:
    """Time and cost of one stage of a plan."""
    seconds, usd = stage.get("seconds") or {}, stage.get("usd") or {}

    def amount(quantile: str) -> Amount:
        cost = usd.get(quantile)
        return Amount(
            milliseconds=round((seconds.get(quantile) or 0) * 1000),
            micro_usd=None if cost is None else micro_usd(cost),
        )

    return AmountSpread(p10=amount("p10"), p50=amount("p50"), p90=amount("p90"))


def ratio(value: float | None, base: float | None) -> float | None:
    """A time or an amount against another, to six digits; None where there is nothing to divide by.

    >>> ratio(3.0, 2.0), ratio(3.0, 0.0), ratio(None, 2.0)
    (1.5, None, None)
    """
    return None if value is None or not base else round(value / base, 6)
