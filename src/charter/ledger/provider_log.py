"""A provider's log of calls as it bills them: CSV or JSON lines, one row per billed request."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from charter.errors import DataError, UsageError

REQUEST_ID = ("request_id", "x_request_id", "x-request-id", "call_id")
USD, MICRO_USD = ("cost_usd", "usd", "cost"), ("micro_usd", "cost_micro_usd")
PROMPT = ("prompt_tokens", "input_tokens")
CACHED = ("cached_tokens", "cached_input_tokens", "cache_read_input_tokens")
COMPLETION = ("completion_tokens", "output_tokens")
"""Names that columns go by, in the words of the OpenAI and Anthropic usage exports and our own; the first counts."""
MICRO = Decimal(1_000_000)
MOST = 10**12
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
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); export the log as CSV or JSON lines") from None
    rows = _json_rows(path, text) if text.lstrip().startswith("{") else _csv_rows(text)
    return tuple(_billed(path, line, row) for line, row in rows)


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, part in enumerate(text.splitlines(), 1):
        if not part.strip():
            continue
        try:
            row = json.loads(part, parse_float=Decimal, parse_constant=_refuse_constant)
        except ValueError as error:
            raise DataError(f"{path}:{line}: is not JSON ({error}); every line is one object") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{line}: is not a JSON object; every line is one")
        yield line, row


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no amount")


def _csv_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        yield reader.line_num, {name: value for name, value in row.items() if name is not None}


def _billed(path: Path, line: int, row: Mapping[str, Any]) -> BilledRow:
    named = {str(name).strip().lower(): value for name, value in row.items() if value not in (None, "")}
    request_id = _first(named, REQUEST_ID)
    if request_id is None:
        raise DataError(
            f"{path}:{line}: has no request id; found {', '.join(named) or 'nothing'}, wanted one of "
            f"{', '.join(REQUEST_ID)} (Charter sends it as X-Request-Id)"
        )
    micro_usd, usd = _first(named, MICRO_USD), _first(named, USD)
    money = _amount(path, line, micro_usd) if micro_usd is not None else None
    if money is None and usd is not None:
        money = _amount(path, line, usd) * MICRO
    tokens = [_tokens(path, line, _first(named, names)) for names in (PROMPT, CACHED, COMPLETION)]
    if money is None and (tokens[0] is None or tokens[2] is None):
        raise DataError(
            f"{path}:{line}: has neither a cost ({', '.join((*USD, *MICRO_USD))}) nor tokens in and out "
            f"({PROMPT[0]}, {COMPLETION[0]})"
        )
    return BilledRow(
        request_id=str(request_id),
        micro_usd=money,
        prompt_tokens=tokens[0],
        cached_tokens=tokens[1],
        completion_tokens=tokens[2],
    )


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if name in row), None)


def _amount(path: Path, line: int, value: Any) -> Decimal:
    try:
        found = Decimal(str(value).strip().removeprefix("$"))
    except InvalidOperation:
        raise DataError(f"{path}:{line}: {str(value)[:40]!r} is no amount of money") from None
    if not found.is_finite() or not 0 <= found < MOST:
        raise DataError(f"{path}:{line}: {str(value)[:40]!r} is no amount of money that a call can cost")
    return found


def _tokens(path: Path, line: int, value: Any) -> int | None:
    if value is None:
        return None
    found = _amount(path, line, value)
    if found != int(found):
        raise DataError(f"{path}:{line}: {str(value)[:40]!r} is no number of tokens")
    return int(found)
