"""Keeping bills and how they stood, inside a transaction; nothing is ever overwritten. Imports SQLAlchemy lazily."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, insert, select

from charter.ledger.bill import Bill, BillFinding
from charter.ledger.call import row_check
from charter.ledger.database import damaged
from charter.ledger.schema import bill_findings, bill_lines, bills


@dataclass(frozen=True, kw_only=True)
class StoredBill:
    """A bill that is in the ledger."""

    bill_id: int
    name: str
    format: str
    sha256: str
    imported_at: float
    lines: int
    billed_usd: Decimal


def add_bill(connection: Connection, bill: Bill, findings: Sequence[BillFinding], *, run: str, at: float) -> bool:
    """Keep a bill with its findings; False when the same file is there already."""
    if connection.scalar(select(bills.c.bill_id).where(bills.c.sha256 == bill.sha256)) is not None:
        return False
    values = {
        "sha256": bill.sha256,
        "name": bill.name,
        "format": bill.format,
        "imported_at": at,
        "lines": len(bill.lines),
        "currency": bill.currency,
        "billed_usd": f"{bill.usd:f}",
    }
    inserted = connection.execute(
        insert(bills).values(**values, row_check=row_check(tuple(values.values())))
    ).inserted_primary_key
    assert inserted is not None
    number = int(inserted[0])
    lines = [_checked({"bill_id": number, "line": line.line, "content": _line_text(line)}) for line in bill.lines]
    connection.execute(insert(bill_lines), lines)
    new_findings = [
        _checked(
            {"bill_id": number, "number": index, "run": run, "kind": item.kind, "content": json.dumps(item.to_json())}
        )
        for index, item in enumerate(findings)
    ]
    if new_findings:
        connection.execute(insert(bill_findings), new_findings)
    return True


def read_bills(connection: Connection) -> tuple[StoredBill, ...]:
    """The bills in the order they were read."""
    stored_bills = []
    for row in connection.execute(select(bills).order_by(bills.c.bill_id)).mappings():
        names = ("sha256", "name", "format", "imported_at", "lines", "currency", "billed_usd")
        if row["row_check"] != row_check(tuple(row[name] for name in names)):
            where = connection.engine.url.render_as_string()
            raise damaged(where, f"the bill {row['name']!a} does not match its check")
        stored_bills.append(
            StoredBill(
                bill_id=row["bill_id"],
                name=row["name"],
                format=row["format"],
                sha256=row["sha256"],
                imported_at=row["imported_at"],
                lines=row["lines"],
                billed_usd=Decimal(row["billed_usd"]),
            )
        )
    return tuple(stored_bills)


def billed_of_attempts(connection: Connection, *, run: str) -> dict[int, tuple[str, Decimal]]:
    """By attempt: the bill that has it last, and what it says it costs."""
    names = {bill.bill_id: bill.name for bill in read_bills(connection)}
    wanted = select(bill_findings).where(bill_findings.c.run == run)
    by_attempt: dict[int, tuple[str, Decimal]] = {}
    for row in connection.execute(wanted.order_by(bill_findings.c.bill_id, bill_findings.c.number)).mappings():
        values = {name: row[name] for name in ("bill_id", "number", "run", "kind", "content")}
        if row["row_check"] != row_check(tuple(values.values())):
            raise damaged(connection.engine.url.render_as_string(), "a finding of a bill does not match its check")
        content: dict[str, Any] = json.loads(row["content"])
        if content["attempt_id"] is not None and content["billed_usd"] is not None:
            by_attempt[content["attempt_id"]] = (names[row["bill_id"]], Decimal(content["billed_usd"]))
    return by_attempt


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "row_check": row_check(tuple(values.values()))}


def _line_text(line: Any) -> str:
    return json.dumps(
        {
            "started_at": line.started_at,
            "ended_at": line.ended_at,
            "seconds": None if line.seconds is None else f"{line.seconds:f}",
            "unit_price_usd": None if line.unit_price_usd is None else f"{line.unit_price_usd:f}",
            "usd": f"{line.usd:f}",
            "resource": line.resource,
            "sku": line.sku,
            "text": line.text,
            "tags": dict(line.tags),
        },
        sort_keys=True,
    )
