"""A provider's bill against the ledger, line by line: what is equal, what differs and why. Pure.

Times are compared to the second and money to the cent, which is what bills are written in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

from charter.ledger.account import Accounted
from charter.ledger.bill_matching import Matcher
from charter.ledger.node_names import expand_nodes

Kind = Literal["equal", "rounding", "granule", "price", "time", "amount", "missing", "extra", "unpriced"]
MEANINGS: Mapping[Kind, str] = {
    "equal": "equal to the second and the cent",
    "rounding": "the same time and price; the bill rounds each of its lines to the cent",
    "granule": "billed in whole multiples of a time; the ledger counts every second",
    "price": "the same time at another price",
    "time": "another time at the same price",
    "amount": "another amount for reasons that the bill does not say",
    "missing": "in the ledger, not on the bill",
    "extra": "on the bill, not in the ledger",
    "unpriced": "billed, and the ledger has no price for it",
}
GRANULES_SECONDS = (60, 600, 3600, 86_400)
CENT = Decimal("0.01")
SAME_SECONDS = Decimal("1")
"""Bills have whole seconds, or hours with a few digits; the ledger has milliseconds."""
PRICE_SHARE = Decimal("0.000001")
"""Prices are equal when they differ by less than this share: quantities with few digits give prices with few."""


@dataclass(frozen=True, kw_only=True)
class BillLine:
    """One line of a bill."""

    line: int
    """In the file."""
    started_at: float | None
    ended_at: float | None
    seconds: Decimal | None
    """Billed unit-seconds: quantity times its unit; None where the unit is no time."""
    unit_price_usd: Decimal | None
    """Per unit and hour."""
    usd: Decimal
    resource: str = ""
    """What the provider calls it: an instance, a node, a job."""
    sku: str = ""
    text: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BillFinding:
    """How some lines and one attempt stand to each other."""

    kind: Kind
    lines: tuple[int, ...]
    attempt_id: int | None
    what: str
    """The attempt, or what the bill calls it."""
    billed_seconds: Decimal | None
    ledger_seconds: Decimal | None
    billed_usd: Decimal | None
    ledger_usd: Decimal | None
    why: str

    @property
    def difference_usd(self) -> Decimal:
        """Bill minus ledger."""
        return (self.billed_usd or Decimal(0)) - (self.ledger_usd or Decimal(0))

    def to_json(self) -> dict[str, Any]:
        """Decimals as texts, so that they stay exact."""

        def text(value: Decimal | None) -> str | None:
            return None if value is None else f"{value:f}"

        return {
            "kind": self.kind,
            "meaning": MEANINGS[self.kind],
            "lines": list(self.lines),
            "attempt_id": self.attempt_id,
            "what": self.what,
            "billed_seconds": text(self.billed_seconds),
            "ledger_seconds": text(self.ledger_seconds),
            "billed_usd": text(self.billed_usd),
            "ledger_usd": text(self.ledger_usd),
            "difference_usd": text(self.difference_usd),
            "why": self.why,
        }


def compare_bill(lines: Sequence[BillLine], accounted: Sequence[Accounted]) -> tuple[BillFinding, ...]:
    """Every line and every attempt in exactly one finding; attempts in their order, then what only the bill has."""
    matcher = Matcher([item.attempt for item in accounted])
    by_attempt: dict[int, list[BillLine]] = {}
    extra = []
    for line in lines:
        attempt_id = matcher.attempt_of(line)
        if attempt_id is None:
            extra.append(line)
        else:
            by_attempt.setdefault(attempt_id, []).append(line)
    found = [_compared(item, by_attempt.get(item.attempt.attempt_id, [])) for item in accounted]
    return (*found, *(_extra(line) for line in extra))


def sums_by_kind(findings: Iterable[BillFinding]) -> dict[Kind, tuple[int, Decimal]]:
    """How many findings of each kind, and what bill minus ledger comes to."""
    sums: dict[Kind, tuple[int, Decimal]] = {}
    for finding in findings:
        count, usd = sums.get(finding.kind, (0, Decimal(0)))
        sums[finding.kind] = (count + 1, usd + finding.difference_usd)
    return {kind: sums[kind] for kind in MEANINGS if kind in sums}


def _compared(item: Accounted, lines: Sequence[BillLine]) -> BillFinding:
    attempt = item.attempt
    what = f"stage {attempt.stage}, attempt {attempt.number}" + (f", job {attempt.job_id}" if attempt.job_id else "")
    ours = None if item.cost_micro_usd is None else Decimal(item.cost_micro_usd).scaleb(-6)
    duration = Decimal(attempt.duration_milliseconds).scaleb(-3)
    if not lines:
        free = attempt.duration_milliseconds == 0
        return _finding(
            "equal" if free else "missing", lines, item, what, None, duration * attempt.count, ours,
            "it took no time" if free else "no line of the bill names it, its job or its machines at its time",
        )  # fmt: skip
    billed = sum((line.usd for line in lines), Decimal(0))
    seconds = _sum_seconds(lines)
    mine = _comparable(seconds, item)
    kind, why = _verdict(lines, seconds, mine, billed, ours, item)
    return _finding(kind, lines, item, what, seconds, mine, ours, why)


def _verdict(
    lines: Sequence[BillLine], seconds: Decimal | None, mine: Decimal, billed: Decimal, ours: Decimal | None,
    item: Accounted,
) -> tuple[Kind, str]:  # fmt: skip
    same_time = seconds is None or abs(seconds - mine) < SAME_SECONDS
    if ours is None:
        return "unpriced", "set resources.price, so that the next attempts have one"
    if same_time and _cents(billed) == _cents(ours):
        return "equal", ""
    if same_time and abs(billed - ours) <= CENT * len(lines) / 2 + Decimal("0.000001"):
        return "rounding", f"{len(lines)} lines, each rounded: {billed - ours:+f} USD in all"
    if same_time and seconds is not None:
        return "price", f"{_per_hour(billed, seconds)} USD per hour there, {_per_hour(ours, mine)} here"
    if seconds is None:
        return "amount", f"{billed - ours:+f} USD; the bill names no time"
    if granule := _granule(lines, seconds, mine, item):
        return "granule", f"billed in multiples of {granule} s: {seconds - mine:+f} s, {billed - ours:+f} USD"
    if _same_price(billed, seconds, ours, mine):
        return "time", f"{seconds - mine:+f} s, {billed - ours:+f} USD"
    return "amount", f"{seconds - mine:+f} s and another price: {billed - ours:+f} USD"


def _finding(
    kind: Kind, lines: Sequence[BillLine], item: Accounted, what: str, seconds: Decimal | None, mine: Decimal,
    ours: Decimal | None, why: str,
) -> BillFinding:  # fmt: skip
    return BillFinding(
        kind=kind,
        lines=tuple(line.line for line in lines),
        attempt_id=item.attempt.attempt_id,
        what=what,
        billed_seconds=seconds,
        ledger_seconds=mine,
        billed_usd=sum((line.usd for line in lines), Decimal(0)) if lines else None,
        ledger_usd=ours,
        why=why,
    )


def _extra(line: BillLine) -> BillFinding:
    what = line.resource or line.sku or line.text or "a line without a name"
    return BillFinding(
        kind="extra",
        lines=(line.line,),
        attempt_id=None,
        what=what,
        billed_seconds=line.seconds,
        ledger_seconds=None,
        billed_usd=line.usd,
        ledger_usd=None,
        why="no attempt of this run has its job, its machine or its time",
    )


def _sum_seconds(lines: Sequence[BillLine]) -> Decimal | None:
    known = [line.seconds for line in lines if line.seconds is not None]
    return sum(known, Decimal(0)) if known else None


def _comparable(seconds: Decimal | None, item: Accounted) -> Decimal:
    """The attempt's time in the bill's units: accelerators, machines, or the job as one; whichever is nearest."""
    attempt = item.attempt
    duration = Decimal(attempt.duration_milliseconds).scaleb(-3)
    if seconds is None:
        return duration * attempt.count
    machines = len(expand_nodes(attempt.nodes)) or 1
    return min((duration * factor for factor in (attempt.count, machines, 1)), key=lambda it: abs(it - seconds))


def _granule(lines: Sequence[BillLine], seconds: Decimal, mine: Decimal, item: Accounted) -> int | None:
    """The multiple that explains a longer time; each unit of the attempt is rounded up by itself."""
    duration = Decimal(item.attempt.duration_milliseconds).scaleb(-3)
    units = max(1, round(mine / duration)) if duration else len(lines)
    for granule in GRANULES_SECONDS:
        if abs(Decimal(math.ceil(duration / granule) * granule * units) - seconds) < SAME_SECONDS and seconds > mine:
            return granule
    return None


def _same_price(billed: Decimal, seconds: Decimal, ours: Decimal, mine: Decimal) -> bool:
    if not seconds or not mine:
        return False
    there, here = billed / seconds, ours / mine
    rounding = CENT / 2 / seconds
    return abs(there - here) <= max(here * PRICE_SHARE, rounding)


def _per_hour(usd: Decimal, seconds: Decimal) -> str:
    return f"{(usd / seconds * 3600).quantize(Decimal('0.0001')):f}" if seconds else "?"


def _cents(usd: Decimal) -> Decimal:
    return usd.quantize(CENT, ROUND_HALF_UP)
