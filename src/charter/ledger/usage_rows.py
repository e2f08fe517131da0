"""Reading and writing what calls cost inside a transaction. Imports SQLAlchemy: import it lazily."""

from collections.abc import Sequence
from dataclasses import astuple, fields

from sqlalchemy import Connection, RowMapping, delete, insert, select

from charter.ledger.account import day_of
from charter.ledger.attempt import NO_TAGS
from charter.ledger.call import CallSums, RouteTotals, row_check
from charter.ledger.database import damaged
from charter.ledger.focus import ApiUsage, refuse_fewer, usage_charge
from charter.ledger.schema import usage_charges as table
from charter.ledger.sum_rows import add_spend, added, spend_of_calls

SUM_COLUMNS = {
    field.name: "x_" + "".join(part.capitalize() for part in field.name.split("_")) for field in fields(CallSums)
}


def write_usage(connection: Connection, usage: Sequence[ApiUsage]) -> None:
    """Put newer totals in the place of older ones; a store that has fewer calls than it had is damaged.

    What has come to them since counts on the day of the last call.
    """
    for item in usage:
        key = dict(
            x_Run=item.run,
            x_StageId=item.stage,
            x_Fingerprint=item.fingerprint,
            x_StoreId=item.store_id,
            x_Endpoint=item.route.endpoint,
            x_Model=item.route.model,
        )
        same = [table.c[name] == value for name, value in key.items()]
        row = connection.execute(select(table).where(*same).with_for_update()).mappings().one_or_none()
        stored_usage = None if row is None else _usage(connection, row)
        if stored_usage == item:
            continue
        refuse_fewer(None if stored_usage is None else stored_usage.route.sums.requests, item)
        day = day_of(item.route.last_at)
        off = spend_of_calls(stored_usage, day=day, sign=-1) if stored_usage is not None else {}
        add_spend(connection, added(off, spend_of_calls(item, day=day)))
        connection.execute(delete(table).where(*same))
        connection.execute(insert(table).values({**usage_charge(item), "row_check": _check_of(item)}))


def read_usage(connection: Connection, *, run: str | None) -> tuple[ApiUsage, ...]:
    """Read the cost of calls, stages and servers in the order of their first call."""
    wanted = select(table).order_by(table.c.x_FirstAt, table.c.x_StageId, table.c.x_Endpoint, table.c.x_Model)
    if run is not None:
        wanted = wanted.where(table.c.x_Run == run)
    return tuple(_usage(connection, row) for row in connection.execute(wanted).mappings())


def _usage(connection: Connection, row: RowMapping) -> ApiUsage:
    usage = ApiUsage(
        run=row["x_Run"],
        stage=row["x_StageId"],
        fingerprint=row["x_Fingerprint"],
        store_id=row["x_StoreId"],
        route=RouteTotals(
            endpoint=row["x_Endpoint"],
            model=row["x_Model"],
            first_at=row["x_FirstAt"],
            last_at=row["x_LastAt"],
            sums=CallSums(**{name: row[column] for name, column in SUM_COLUMNS.items()}),
        ),
        owner=row["x_Owner"],
        tags=row["x_OwnTags"] or NO_TAGS,
    )
    if _check_of(usage) != row["row_check"]:
        name = connection.engine.url.render_as_string()
        raise damaged(name, f"the cost of calls of stage {usage.stage!a} does not match its check")
    return usage


def _check_of(item: ApiUsage) -> int:
    billed_to = (item.owner, item.tags) if item.owner is not None or item.tags != NO_TAGS else ()
    return row_check((item.run, item.stage, item.fingerprint, item.store_id, *astuple(item.route), *billed_to))
