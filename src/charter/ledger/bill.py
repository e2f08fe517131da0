"""A provider's bill against the ledger, line by line: what is equal, what differs and why. Pure.

Times are compared to the second and money to the cent, which is what bills are written in.
"""

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from charter.errors import DataError, UsageError, loads_json
from charter.ledger.account import Accounted
from charter.ledger.attempt import Attempt, expand_nodes
from charter.units import THOUSANDS

JOB_TAGS = ("x_JobId", "job_id", "JobID", "job", "slurm_job_id", "charter_job")
ATTEMPT_TAGS = ("x_AttemptId",)
SLACK_SECONDS = 120.0
"""Providers count from when a machine starts to when it is gone; the ledger counts the job in between."""


class Matcher:
    """The attempts of a ledger, ready to be found."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._by_id = {str(attempt.attempt_id): attempt for attempt in attempts}
        self._by_tags = {(it.run, it.stage, str(it.number)): it for it in attempts}
        self._by_job: dict[str, list[Attempt]] = {}
        self._by_machine: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.job_id:
                self._by_job.setdefault(attempt.job_id, []).append(attempt)
            for name in _machines(attempt):
                self._by_machine.setdefault(name, []).append(attempt)

    def attempt_of(self, line: "BillLine") -> int | None:
        """The attempt that a line is for; None when there is none, or several would do as well."""
        for tag in ATTEMPT_TAGS:
            if (match := self._by_id.get(line.tags.get(tag, ""))) is not None:
                return match.attempt_id
        tags = line.tags
        own = (tags.get("run", ""), tags.get("stage", ""), tags.get("attempt", ""))
        if (match := self._by_tags.get(own)) is not None:
            return match.attempt_id
        names = [value for tag in JOB_TAGS if (value := tags.get(tag))]
        for name in (*names, line.resource):
            if name in self._by_job:
                return _nearest(self._by_job[name], line, any_time=True)
        return _nearest(self._by_machine.get(line.resource, ()), line, any_time=False)


def _machines(attempt: Attempt) -> tuple[str, ...]:
    return expand_nodes(attempt.nodes) or ((attempt.host,) if attempt.host else ())


def _nearest(attempts: Sequence[Attempt], line: "BillLine", *, any_time: bool) -> int | None:
    """The attempt that has most of the line's time; a job without a time is enough where it has one attempt."""
    if line.started_at is None or line.ended_at is None:
        return attempts[0].attempt_id if any_time and len(attempts) == 1 else None
    best, most = None, 0.0
    for attempt in attempts:
        end = attempt.started_at + attempt.duration_milliseconds / 1000
        shared = min(end, line.ended_at) - max(attempt.started_at, line.started_at)
        near = shared + SLACK_SECONDS
        if near > 0 and (best is None or shared > most):
            best, most = attempt.attempt_id, shared
    if best is None and any_time and len(attempts) == 1:
        return attempts[0].attempt_id
    return best


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
    """Comparison of some lines with one attempt."""

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
    findings = [_compared(item, by_attempt.get(item.attempt.attempt_id, [])) for item in accounted]
    return (*findings, *(_extra(line) for line in extra))


def sums_by_kind(findings: Iterable[BillFinding]) -> dict[Kind, tuple[int, Decimal]]:
    """Return for each kind the number of findings, and the sum of bill minus ledger."""
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
    # A credit takes back money and no time, whatever its period.
    charges = [line for line in lines if line.usd >= 0]
    charged = sum((line.usd for line in charges), Decimal(0))
    given_back = sum((line.usd for line in lines), Decimal(0)) - charged
    seconds = _sum_seconds(charges)
    mine = _comparable(seconds, item)
    kind, why = _verdict(charges, seconds, mine, charged, ours, item)
    if given_back and kind != "unpriced":
        credits_ = f"credits and refunds of {-given_back:f} USD"
        kind, why = "amount", f"{credits_}; without them: {why or MEANINGS[kind]}"
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
    durations = [line.seconds for line in lines if line.seconds is not None]
    return sum(durations, Decimal(0)) if durations else None


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


Format = str
SECONDS_OF_UNITS = {"second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "hour": 3600, "hr": 3600, "h": 3600,
                    "day": 86_400}  # fmt: skip
FOCUS = {
    "cost": ("BilledCost",), "start": ("ChargePeriodStart",), "end": ("ChargePeriodEnd",),
    "quantity": ("PricingQuantity", "ConsumedQuantity"), "unit": ("PricingUnit", "ConsumedUnit"),
    "price": ("ContractedUnitPrice", "ListUnitPrice"), "resource": ("ResourceName", "ResourceId"), "sku": ("SkuId",),
    "text": ("ChargeDescription",), "tags": ("Tags",), "currency": ("BillingCurrency",),
}  # fmt: skip
CUR = {
    "cost": ("lineItem/UnblendedCost", "line_item_unblended_cost"),
    "start": ("lineItem/UsageStartDate", "line_item_usage_start_date"),
    "end": ("lineItem/UsageEndDate", "line_item_usage_end_date"),
    "quantity": ("lineItem/UsageAmount", "line_item_usage_amount"),
    "unit": ("pricing/unit", "pricing_unit"),
    "price": ("lineItem/UnblendedRate", "line_item_unblended_rate"),
    "resource": ("lineItem/ResourceId", "line_item_resource_id"),
    "sku": ("lineItem/UsageType", "line_item_usage_type"),
    "text": ("lineItem/LineItemDescription", "line_item_line_item_description"),
    "currency": ("lineItem/CurrencyCode", "line_item_currency_code"),
}
"""Names of the legacy report, and of CUR 2.0 (AWS Data Exports, table CUR2.0)."""
SIMPLE = {
    "cost": ("cost_usd", "cost", "amount", "usd", "total"),
    "start": ("start", "started_at", "start_time"),
    "end": ("end", "ended_at", "end_time"),
    "quantity": ("quantity", "hours", "seconds", "gpu_hours"),
    "unit": ("unit",),
    "price": ("price", "unit_price", "rate"),
    "resource": ("resource", "instance", "machine", "node", "job", "job_id"),
    "sku": ("sku", "type", "instance_type"),
    "text": ("description",),
    "currency": ("currency",),
}
TAG_PREFIXES = ("resourceTags/user:", "resource_tags_user_", "tag:", "tag_")


MOST = Decimal(10**12)
OWN_TAGS = ("run", "stage", "attempt", "job_id", "JobID")


@dataclass(frozen=True, kw_only=True)
class Bill:
    """A bill that was read."""

    name: str
    format: Format
    sha256: str
    lines: tuple[BillLine, ...]

    @property
    def usd(self) -> Decimal:
        """All its lines."""
        return sum((line.usd for line in self.lines), Decimal(0))


def read_bill(path: Path) -> Bill:
    """Read a bill; UsageError or DataError name the line that cannot be read and what it should hold."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give the provider's bill as CSV")
    content = path.read_bytes()
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""))
    try:
        header = next(reader, [])
        format_, columns = _format(path, [name for name in header if name])
        lines = tuple(_lines(path, ((reader.line_num, row) for row in reader), _Columns.of(header, columns)))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); export the bill as CSV") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV that can be read ({error}); export the bill as CSV") from None
    if not lines:
        raise DataError(f"{path} has a header and no line under it")
    return Bill(name=path.name, format=format_, sha256=hashlib.sha256(content).hexdigest(), lines=lines)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Columns of a bill, found once for all its lines."""

    names: Mapping[str, str]
    """As the bill writes them, by part."""
    parts: tuple[tuple[str, int], ...]
    tags: tuple[tuple[str, int], ...]
    """Columns that are tags, with the tag's name; the later counts."""
    own_tags: tuple[tuple[str, int], ...]
    """Columns that are tags where nothing else has that tag."""
    count: int

    @classmethod
    def of(cls, header: Sequence[str], names: Mapping[str, str]) -> "_Columns":
        """Find the columns of a header."""
        places = {name: place for place, name in enumerate(header) if name}
        tags = [(name, place) for name, place in places.items() if name.startswith("x_")]
        for prefix in TAG_PREFIXES:
            tags += [(it.removeprefix(prefix), place) for it, place in places.items() if it.startswith(prefix)]
        return cls(
            names=names,
            parts=tuple((part, places[name]) for part, name in names.items()),
            tags=tuple(tags),
            own_tags=tuple((name, places[name]) for name in OWN_TAGS if name in places),
            count=len(header),
        )


def _format(path: Path, header: Sequence[str]) -> tuple[Format, dict[str, str]]:
    lowered = {name.lower(): name for name in header}
    for name, layout in (("FOCUS", FOCUS), ("AWS CUR", CUR), ("CSV", SIMPLE)):
        columns = {part: lowered[alias.lower()] for part, aliases in layout.items() for alias in reversed(aliases)
                 if alias.lower() in lowered}  # fmt: skip
        if "cost" in columns and ("start" in columns or name == "CSV") and ("resource" in columns or name != "CSV"):
            return name, columns
    raise DataError(
        f"{path} is no bill that Charter can read: its columns are {', '.join(header[:12])}\n"
        "  it reads FOCUS (BilledCost, ChargePeriodStart, ...), AWS Cost and Usage Reports, and CSV with cost_usd, "
        "resource (a machine or a job), and start, end, hours or seconds, price where there are any"
    )


def _lines(path: Path, rows: Iterable[tuple[int, list[str]]], columns: _Columns) -> Iterator[BillLine]:
    names = columns.names
    for number, row in rows:
        if not row:
            continue
        where = f"{path}:{number}"
        if len(row) > columns.count:
            raise DataError(f"{where}: has more cells than the header")
        row += [""] * (columns.count - len(row))
        cells = {part: row[place].strip() for part, place in columns.parts}
        currency = cells.get("currency") or "USD"
        if currency.upper() != "USD":
            raise DataError(f"{where}: is in {currency}; the ledger is in USD, and no rate is assumed")
        quantity = _decimal(where, names["quantity"], cells["quantity"]) if cells.get("quantity") else None
        start, end = (_moment(where, cells.get(part, "")) for part in ("start", "end"))
        if start is not None and end is not None and end < start:
            raise DataError(f"{where}: ends before it starts; look at its {names['start']} and {names['end']}")
        yield BillLine(
            line=number,
            started_at=start,
            ended_at=end,
            seconds=_seconds(quantity, cells.get("unit", ""), names.get("quantity", ""), start, end),
            unit_price_usd=_decimal(where, names["price"], cells["price"]) if cells.get("price") else None,
            usd=_decimal(where, names["cost"], cells["cost"]),
            resource=_plain(cells.get("resource", "")),
            sku=cells.get("sku", ""),
            text=cells.get("text", ""),
            tags=_tags(where, row, columns, cells.get("tags", "")),
        )


def _decimal(where: str, column: str, text: str) -> Decimal:
    """Read an amount; a comma groups thousands, and one that may be a decimal comma is refused."""
    plain = text.replace("$", "")
    if "," in plain:
        if not THOUSANDS.fullmatch(plain):
            raise DataError(
                f"{where}: {column} {text!r} has a comma that groups no thousands; write 1,020.00 or 1020.00"
            )
        plain = plain.replace(",", "")
    try:
        value = Decimal(plain or "0")
    except InvalidOperation:
        raise DataError(f"{where}: {column} {text!r} is no number") from None
    if not value.is_finite():
        raise DataError(f"{where}: {column} {text!r} is no finite number")
    if not -MOST < value < MOST:  # abs() rounds to the context, and has no place for 1e4002072
        raise DataError(f"{where}: {column} {text[:40]!r} is more than any bill has")
    return value


def _moment(where: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return _unix_seconds(text)
    except ValueError:
        raise DataError(f"{where}: {text!r} is no moment; write 2026-07-01T00:00:00Z") from None


@lru_cache(maxsize=4096)
def _unix_seconds(text: str) -> float:
    """Read a moment; a bill has the same hours again and again."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(
    quantity: Decimal | None, unit: str, column: str, start: float | None, end: float | None
) -> Decimal | None:
    """Billed unit-seconds: the quantity in its unit, or the period where there is no quantity."""
    if quantity is None:
        return None if start is None or end is None else Decimal(round((end - start) * 1000)).scaleb(-3)
    name = (unit or column).lower().rpartition("_")[2].rpartition("-")[2].rpartition(" ")[2]
    factor = SECONDS_OF_UNITS.get(name) or SECONDS_OF_UNITS.get(name.removesuffix("s"))
    return None if factor is None else quantity * factor


def _tags(where: str, row: Sequence[str], columns: _Columns, text: str) -> dict[str, str]:
    tags = {name: value for name, place in columns.tags if (value := row[place])}
    if text:
        try:
            content = loads_json(text)
        except ValueError:
            raise DataError(f"{where}: Tags is no JSON object") from None
        if not isinstance(content, dict):
            raise DataError(f"{where}: Tags is no JSON object")
        tags |= {str(name): str(value) for name, value in content.items()}
    for name, place in columns.own_tags:
        if row[place]:
            tags.setdefault(name, row[place])
    return tags


def _plain(text: str) -> str:
    """Without what `charter cost export` puts before a text that a spreadsheet would run."""
    return text[1:] if text.startswith("'") and text[1:2] in ("=", "+", "-", "@") else text
