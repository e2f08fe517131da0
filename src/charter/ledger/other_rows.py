"""Reading and writing charges of other kinds inside a transaction. Imports SQLAlchemy: import it lazily."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, fields

from sqlalchemy import Connection, insert, select

from charter.ledger.account import day_of
from charter.ledger.call import row_check
from charter.ledger.database import damaged
from charter.ledger.schema import other_charges as table
from charter.ledger.stored import OtherCharge
from charter.ledger.sum_rows import Spend, add_spend, added

FIELDS = tuple(field.name for field in fields(OtherCharge))


def write_other(connection: Connection, charges: Sequence[OtherCharge]) -> None:
    """Add charges."""
    if charges:
        connection.execute(insert(table), [{**asdict(item), "row_check": row_check(astuple(item))} for item in charges])
        add_spend(connection, added(*(spend_of_other(item) for item in charges)))


def read_other(connection: Connection, *, run: str | None = None) -> tuple[OtherCharge, ...]:
    """The charges in the order they were added."""
    wanted = select(table).order_by(table.c.charge_id)
    if run is not None:
        wanted = wanted.where(table.c.run == run)
    charges = []
    for row in connection.execute(wanted).mappings():
        item = OtherCharge(**{name: row[name] for name in FIELDS})
        if row_check(astuple(item)) != row["row_check"]:
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"the charge for {item.resource!a} does not match its check")
        charges.append(item)
    return tuple(charges)


def spend_of_other(item: OtherCharge) -> Spend:
    """Return the spend of a charge, on the day of its end."""
    day = day_of(item.ended_at)
    key = (item.run, item.stage, "", item.owner or "", item.tags, "", item.provider, item.category.lower(), "", day)
    return {key: {"other_micro_usd": item.micro_usd or 0}}
