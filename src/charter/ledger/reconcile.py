"""Our calls against the provider's log: what differs, and the settlements that make the bill equal to the log. Pure."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from charter.errors import DataError, UsageError, loads_json
from charter.ledger.call import Call, Settlement

REQUEST_ID = ("request_id", "x_request_id", "x-request-id", "call_id")
USD, MICRO_USD = ("cost_usd", "usd", "cost"), ("micro_usd", "cost_micro_usd")
PROMPT = ("prompt_tokens", "input_tokens")
CACHED = ("cached_tokens", "cached_input_tokens", "cache_read_input_tokens")
COMPLETION = ("completion_tokens", "output_tokens")
"""Names that columns go by, in the words of the OpenAI and Anthropic usage exports and our own; the first counts."""
MICRO = Decimal(1_000_000)
MOST_DIGITS = 12
MOST = 10**MOST_DIGITS
"""No call has so many tokens, or costs so much in any unit here; a slip of the pen does."""
Price = Callable[[str, int, int, int], Decimal | None]
"""Micro-USD of a call: its id here, prompt, cached and completion tokens; None where no price is known."""


@dataclass(frozen=True, kw_only=True)
class BilledRow:
    """One request as the provider bills it."""

    request_id: str
    micro_usd: Decimal | None
    """Exact, with fractions; None where the log has tokens only."""
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


def read_provider_log(path: Path) -> tuple[BilledRow, ...]:
    """The rows of a log; a DataError names the line that cannot be read and what it should hold."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give the provider's log as CSV or JSON lines")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            is_json = next((line for line in file if line.strip()), "").lstrip().startswith("{")
            file.seek(0)
            rows = _json_rows(path, file) if is_json else _csv_rows(file)
            return tuple(_billed(path, line, row) for line, row in rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); export the log as CSV or JSON lines") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV that can be read ({error}); export the log as CSV or JSON lines") from None


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, "_LogRow"]]:
    for line, part in enumerate(lines, 1):
        if not part.strip():
            continue
        try:
            row = loads_json(part, parse_float=Decimal, parse_constant=_refuse_constant)
        except ValueError as error:
            raise DataError(f"{path}:{line}: is not JSON ({error}); every line is one object") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{line}: is not a JSON object; every line is one")
        yield line, _LogRow(_positions(tuple(row)), list(row.values()))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no amount")


def _csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, "_LogRow"]]:
    reader = csv.reader(lines)
    positions = _positions(tuple(next(reader, ())))
    for cells in reader:
        if cells:
            yield reader.line_num, _LogRow(positions, cells)


@lru_cache(maxsize=64)
def _positions(names: tuple[str, ...]) -> "_Positions":
    """Return where a row has its fields: several places where it goes by several names, the first counts."""
    lowered = [name.strip().lower() for name in names]
    places = {name: place for place, name in enumerate(lowered)}
    fields = (REQUEST_ID, MICRO_USD, USD, PROMPT, CACHED, COMPLETION)
    return _Positions(lowered, tuple(tuple(places[name] for name in field if name in places) for field in fields))


class _Positions(NamedTuple):
    """Columns of a log, found once for all rows that have them."""

    names: Sequence[str]
    of_fields: tuple[tuple[int, ...], ...]


class _LogRow(NamedTuple):
    """One row of a log."""

    positions: _Positions
    cells: Sequence[Any]

    def fields(self) -> Iterator[Any]:
        """Yield the values of the fields; None where a row has none."""
        cells, count = self.cells, len(self.cells)
        for places in self.positions.of_fields:
            yield next((cells[it] for it in places if it < count and cells[it] not in (None, "")), None)

    def names(self) -> str:
        """Return the columns that have a value, for a message."""
        pairs = zip(self.positions.names, self.cells, strict=False)
        return ", ".join(name for name, value in pairs if value not in (None, "")) or "nothing"


def _billed(path: Path, line: int, row: _LogRow) -> BilledRow:
    request_id, micro_usd, usd, *counts = row.fields()
    if request_id is None:
        raise DataError(
            f"{path}:{line}: has no request id; found {row.names()}, wanted one of "
            f"{', '.join(REQUEST_ID)} (Charter sends it as X-Request-Id)"
        )
    money = _amount(path, line, micro_usd) if micro_usd is not None else None
    if money is None and usd is not None:
        money = _amount(path, line, usd) * MICRO
    prompt, cached, completion = (_tokens(path, line, count) for count in counts)
    if money is None and (prompt is None or completion is None):
        raise DataError(
            f"{path}:{line}: has neither a cost ({', '.join((*USD, *MICRO_USD))}) nor tokens in and out "
            f"({PROMPT[0]}, {COMPLETION[0]})"
        )
    return BilledRow(
        request_id=str(request_id),
        micro_usd=money,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
    )


def _amount(path: Path, line: int, value: Any) -> Decimal:
    try:
        amount = Decimal(str(value).strip().removeprefix("$"))
    except InvalidOperation:
        raise DataError(f"{path}:{line}: {str(value)[:40]!r} is no amount of money") from None
    if not amount.is_finite() or not 0 <= amount < MOST:
        raise DataError(f"{path}:{line}: {str(value)[:40]!r} is no amount of money that a call can cost")
    return amount


def _tokens(path: Path, line: int, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < MOST_DIGITS:
        return int(value)
    amount = _amount(path, line, value)
    if amount != int(amount):
        raise DataError(f"{path}:{line}: {str(value)[:40]!r} is no number of tokens")
    return int(amount)


Kind = Literal[
    "agrees", "unknown_billed", "unknown_not_billed", "cost_differs", "billed_more_than_once", "refused_but_billed",
    "answered_not_billed", "not_ours",
]  # fmt: skip
MEANINGS: Mapping[Kind, str] = {
    "agrees": "the same here and there",
    "unknown_billed": "not settled here, billed there: now settled at the log's cost",
    "unknown_not_billed": "not settled here, not in the log: now void",
    "cost_differs": "billed there at another cost: the log's counts now",
    "billed_more_than_once": "several rows of the log have the same request id: their sum counts now",
    "refused_but_billed": "refused here, billed there: the log's cost counts now",
    "answered_not_billed": "answered here, not in the log: costs nothing now",
    "not_ours": "only in the log: not calls of this run, left out",
}


@dataclass(frozen=True, kw_only=True)
class CallDifference:
    """Number of calls that differ in one way, and the amount of the difference."""

    kind: Kind
    count: int
    settled_before_micro_usd: int
    unknown_before_micro_usd: int
    billed_micro_usd: Decimal
    """What the log has for them."""


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """Differences from a usage export, and the settlements that make the ledger agree."""

    differences: tuple[CallDifference, ...]
    corrections: tuple[tuple[Call, Settlement], ...]
    """Calls with the settlement that is to count from now on."""
    unpriced: int
    """Rows of the log that have tokens but no cost, where no price is known here either."""


@dataclass(kw_only=True)
class _Tally:
    """The sums of one kind while calls are compared."""

    count: int = 0
    settled: int = 0
    unknown: int = 0
    billed: Decimal = Decimal(0)

    def add(self, call: Call | None, billed: Decimal) -> None:
        """Count one call, or one row that is no call of ours."""
        self.count += 1
        self.billed += billed
        if call is not None and call.is_unknown:
            self.unknown += call.most_micro_usd or 0
        elif call is not None:
            self.settled += call.micro_usd or 0


def reconcile(calls: Iterable[Call], rows: Sequence[BilledRow], *, price: Price, at: float, source: str) -> Reconciled:
    """Compare all calls that the log should have with the log.

    Every call gets the log's cost in whole micro-USD, the fraction carried on to the next: so the sum over all
    calls is the log's sum, rounded once. Calls must come in the same order each time.
    """
    by_id: dict[str, list[BilledRow]] = {}
    for row in rows:
        by_id.setdefault(row.request_id, []).append(row)
    tallies = {kind: _Tally() for kind in MEANINGS}
    corrections: list[tuple[Call, Settlement]] = []
    exact, rounded, unpriced = Decimal(0), 0, 0
    for call in calls:
        billed = by_id.pop(call.call_id, [])
        costs = [_cost(row, call, price) for row in billed]
        priced = [cost for cost in costs if cost is not None]
        if len(priced) < len(costs):
            unpriced += 1
            continue
        cost = sum(priced, Decimal(0))
        exact += cost
        micro_usd = int(exact.to_integral_value(ROUND_HALF_EVEN)) - rounded
        rounded += micro_usd
        kind = _kind(call, billed, cost)
        tallies[kind].add(call, cost)
        if kind != "agrees" or (call.micro_usd or 0) != micro_usd:
            note = f"{kind}: {source}"
            corrections.append((call, _settlement(call, billed, micro_usd, at=at, note=note)))
    for rest in by_id.values():
        for row in rest:
            tallies["not_ours"].add(None, row.micro_usd or Decimal(0))
    return Reconciled(
        differences=tuple(_difference(kind, tally) for kind, tally in tallies.items() if tally.count),
        corrections=tuple(corrections),
        unpriced=unpriced,
    )


def _cost(row: BilledRow, call: Call, price: Price) -> Decimal | None:
    if row.micro_usd is not None:
        return row.micro_usd
    return price(call.endpoint, row.prompt_tokens or 0, row.cached_tokens or 0, row.completion_tokens or 0)


def _kind(call: Call, billed: Sequence[BilledRow], cost: Decimal) -> Kind:
    if call.is_unknown:
        return "unknown_billed" if billed else "unknown_not_billed"
    free = call.outcome in ("refused", "void")
    if not billed:
        return "agrees" if free or (call.outcome == "billed" and call.micro_usd == 0) else "answered_not_billed"
    if free:
        return "refused_but_billed"
    # Ours is rounded to a whole micro-USD: less than one apart, it is the same amount.
    if call.micro_usd is not None and abs(call.micro_usd - cost) < 1:
        return "agrees"
    return "billed_more_than_once" if len(billed) > 1 else "cost_differs"


def _settlement(call: Call, billed: Sequence[BilledRow], micro_usd: int, *, at: float, note: str) -> Settlement:
    def tokens(name: Literal["prompt_tokens", "cached_tokens", "completion_tokens"], counted: int) -> int:
        counts = [value for row in billed if (value := getattr(row, name)) is not None]
        return sum(counts) if counts else counted

    return Settlement(
        call_id=call.call_id,
        outcome="billed" if billed or call.outcome in ("answered", "billed") else "void",
        at=at,
        prompt_tokens=tokens("prompt_tokens", call.prompt_tokens),
        cached_tokens=tokens("cached_tokens", call.cached_tokens),
        completion_tokens=tokens("completion_tokens", call.completion_tokens),
        micro_usd=micro_usd,
        note=note,
    )


def _difference(kind: Kind, tally: _Tally) -> CallDifference:
    return CallDifference(
        kind=kind,
        count=tally.count,
        settled_before_micro_usd=tally.settled,
        unknown_before_micro_usd=tally.unknown,
        billed_micro_usd=tally.billed,
    )
