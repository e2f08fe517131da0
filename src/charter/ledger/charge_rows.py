"""Rows of calls, of charges besides attempts (for calls, for what is stored, others) and of bills, in a transaction.

Imports SQLAlchemy: import it lazily. Statements on calls are text, because a call passes here at least three times and
composing a statement costs more than carrying it out. Both databases take the same text but for the mark of a value.
Bills are kept as they stood: nothing of them is ever overwritten.
"""

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from decimal import Decimal
from functools import cache
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, delete, func, insert, select

from charter.ledger.account import MILLISECONDS_PER_SECOND, Totals, by_day, day_of
from charter.ledger.attempt import NO_TAGS
from charter.ledger.bill import Bill, BillFinding
from charter.ledger.call import SUMMED, Call, CallSums, CallTotals, NewCall, RouteTotals, Settlement, row_check
from charter.ledger.database import Database, damaged
from charter.ledger.focus import ApiUsage, refuse_fewer, usage_charge
from charter.ledger.schema import (
    bill_findings,
    bill_lines,
    bills,
    call_answers,
    call_intents,
    call_scopes,
    call_settlements,
    other_charges,
    stored_samples,
    usage_charges,
)
from charter.ledger.stored import DAY, OtherCharge, StoredSample, by_place, days_of
from charter.ledger.sum_rows import Spend, add_spend, added, negative, spend_of_calls
from charter.ledger.sums import APPLICATION_ID

CALL_FIELDS = tuple(field.name for field in fields(Call))
"""Those of what was intended, then those of its settlement, as `CALLS` reads them."""
KEYS_AT_ONCE = 500
"""SQLite before 3.32 takes at most 999 values in a statement (sqlite.org/limits.html, 9)."""
LAST_SETTLEMENT = """
    LEFT JOIN call_settlements s ON s.scope_id = i.scope_id AND s.call_id = i.call_id AND s.revision = (
        SELECT max(t.revision) FROM call_settlements t WHERE t.scope_id = i.scope_id AND t.call_id = i.call_id)
"""
CALLS = f"""
    SELECT i.call_id, i.key, i.model, i.endpoint, i.attempt, i.at, i.most_micro_usd, i.row_check,
           s.outcome, s.at, s.prompt_tokens, s.cached_tokens, s.completion_tokens, s.micro_usd, s.note, s.revision,
           s.row_check
    FROM call_intents i {LAST_SETTLEMENT} WHERE i.scope_id = """
UNKNOWN = "(s.outcome IS NULL OR s.outcome = 'unknown')"
FREE = "(s.outcome = 'refused' OR s.outcome = 'void')"
PAID = "(s.outcome = 'answered' OR s.outcome = 'billed')"
TOTALS = f"""
    SELECT i.endpoint, i.model, min(i.at), max(coalesce(s.at, i.at)), count(*),
           sum(CASE WHEN {PAID} THEN 1 ELSE 0 END), sum(CASE WHEN {FREE} THEN 1 ELSE 0 END),
           sum(CASE WHEN {UNKNOWN} THEN 1 ELSE 0 END),
           sum(CASE WHEN {UNKNOWN} AND i.most_micro_usd IS NULL OR {PAID} AND s.micro_usd IS NULL THEN 1 ELSE 0 END),
           coalesce(sum(s.prompt_tokens), 0), coalesce(sum(s.cached_tokens), 0),
           coalesce(sum(s.completion_tokens), 0),
           coalesce(sum(CASE WHEN {UNKNOWN} THEN 0 ELSE s.micro_usd END), 0),
           coalesce(sum(CASE WHEN {UNKNOWN} THEN i.most_micro_usd ELSE 0 END), 0)
    FROM call_intents i {LAST_SETTLEMENT} WHERE i.scope_id = """


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Scope of calls: the run, the stage and the store that they belong to."""

    number: int
    run: str
    stage: str
    fingerprint: str
    store_id: str
    """Drawn when the store was made: tells it from another of the same stage, kept elsewhere or earlier."""


def scope_of(connection: Connection, database: Database, *, run: str, stage: str, fingerprint: str) -> Scope:
    """The scope of a stage, made at the first opening; a file belongs to one project, whatever that was called then."""
    for _ in range(2):
        for scope in scopes(connection, run=None if database.is_file else run, stage=stage):
            if scope.fingerprint == fingerprint:
                return scope
        values = (run, stage, fingerprint, uuid.uuid4().hex)
        connection.exec_driver_sql(_insertion(call_scopes, database.mark, leave_out="scope_id"), values)
    raise AssertionError("a row that was just written is there")


def scopes(connection: Connection, *, run: str | None, stage: str | None = None) -> tuple[Scope, ...]:
    """The scopes: all, those of a run, or those of one of its stages."""
    wanted = select(call_scopes).order_by(call_scopes.c.scope_id)
    if run is not None:
        wanted = wanted.where(call_scopes.c.run == run)
    if stage is not None:
        wanted = wanted.where(call_scopes.c.stage == stage)
    return tuple(
        Scope(number=row.scope_id, run=row.run, stage=row.stage, fingerprint=row.fingerprint, store_id=row.store_id)
        for row in connection.execute(wanted)
    )


def add_intents(connection: Connection, database: Database, scope: int, calls: Sequence[NewCall]) -> None:
    """Write calls that are about to be sent; one that is there already stays as it is."""
    rows = []
    for call in calls:
        intent = (call.call_id, call.key, call.model, call.endpoint, call.attempt, call.at, call.most_micro_usd)
        rows.append((scope, *intent, row_check(intent)))
    connection.exec_driver_sql(_insertion(call_intents, database.mark), rows)


def add_settlements(
    connection: Connection,
    database: Database,
    scope: int,
    settlements: Sequence[Settlement],
    *,
    keys: Mapping[str, str],
    revisions: Mapping[str, int] | None = None,
) -> None:
    """Write how calls went, and the answers of questions that have none; what is there already stays as it is."""
    rows, answers = [], []
    for item in settlements:
        revision = (revisions or {}).get(item.call_id, 0)
        money = (item.prompt_tokens, item.cached_tokens, item.completion_tokens, item.micro_usd)
        settlement = (item.call_id, revision, item.outcome, item.at, *money, item.note)
        rows.append((scope, *settlement, row_check(settlement)))
        if item.answer is not None:
            key = keys[item.call_id]
            answers.append((scope, key, item.call_id, item.answer, answer_hash(key, item.answer)))
    connection.exec_driver_sql(_insertion(call_settlements, database.mark), rows)
    if answers:
        connection.exec_driver_sql(_insertion(call_answers, database.mark), answers)


def answer_hash(key: str, answer: str) -> str:
    """SHA-256 over question and answer: an answer found under another question is damaged too."""
    return hashlib.sha256(f"{key}\n{answer}".encode("utf-8", "surrogateescape")).hexdigest()


def read_answers(
    connection: Connection, database: Database, scope: int, keys: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """The stored answers of some questions, and the questions whose stored answer is damaged."""
    by_key: dict[str, str] = {}
    broken: list[str] = []
    for key, answer, sha256 in _by_chunks(
        connection, database, "SELECT key, answer, sha256 FROM call_answers", scope, "key", keys
    ):
        if isinstance(answer, str) and answer_hash(key, answer) == sha256:
            by_key[key] = answer
        else:
            broken.append(key)
    return by_key, broken


def drop_answers(connection: Connection, database: Database, scope: int, keys: Sequence[str]) -> None:
    """Forget stored answers; what they cost stays."""
    mark = database.mark
    statement = f"DELETE FROM call_answers WHERE scope_id = {mark} AND key = {mark}"
    connection.exec_driver_sql(statement, [(scope, key) for key in keys])


def drop_answers_since(connection: Connection, database: Database, scope: int, since: float, *, model: str) -> int:
    """Forget the answers of a served model whose calls were settled since a time; how many there were."""
    mark = database.mark
    statement = f"""
        DELETE FROM call_answers WHERE scope_id = {mark} AND call_id IN (
            SELECT s.call_id FROM call_settlements s
            JOIN call_intents i ON i.scope_id = s.scope_id AND i.call_id = s.call_id
            WHERE s.scope_id = {mark} AND s.at >= {mark} AND i.model = {mark})"""
    return connection.exec_driver_sql(statement, (scope, scope, since, model)).rowcount


def keys_of(connection: Connection, database: Database, scope: int, call_ids: Sequence[str]) -> dict[str, str]:
    """The questions of some calls."""
    statement = "SELECT call_id, key FROM call_intents"
    return {call_id: key for call_id, key in _by_chunks(connection, database, statement, scope, "call_id", call_ids)}


def read_calls(connection: Connection, database: Database, scope: int) -> Iterator[Call]:
    """The calls of a stage by id, every row checked."""
    statement = f"{CALLS}{database.mark} ORDER BY i.call_id"
    for row in connection.execution_options(stream_results=True).exec_driver_sql(statement, (scope,)):
        intent, settlement = row[:7], row[8:16]
        if row_check(tuple(intent)) != row[7]:
            raise damaged(database.name, f"call {str(intent[0])[:40]} does not match its check")
        if settlement[0] is None:
            yield Call(**dict(zip(CALL_FIELDS, intent, strict=False)))
            continue
        outcome, at, prompt, cached, completion, micro_usd, note, revision = settlement
        if row_check((intent[0], revision, outcome, at, prompt, cached, completion, micro_usd, note)) != row[16]:
            raise damaged(database.name, f"the settlement of call {str(intent[0])[:40]} does not match its check")
        yield Call(**dict(zip(CALL_FIELDS, (*intent, *settlement), strict=True)))


def read_totals(connection: Connection, database: Database, scope: int) -> CallTotals:
    """The sums by server and model, added up by the database; its rows are not checked one by one."""
    statement = f"{TOTALS}{database.mark} GROUP BY i.endpoint, i.model ORDER BY i.endpoint, i.model"
    rows = connection.exec_driver_sql(statement, (scope,))
    return CallTotals(
        routes=tuple(
            RouteTotals(endpoint=row[0], model=row[1], first_at=row[2], last_at=row[3], sums=_sums(row[4:]))
            for row in rows
        )
    )


def _sums(values: Sequence[Any]) -> CallSums:
    # PostgreSQL adds 64-bit numbers up to a decimal.
    return CallSums(**dict(zip(SUMMED, map(int, values), strict=True)))


def refuse_lost_calls(connection: Connection, database: Database, scope: int) -> None:
    """DataError when there are settlements or answers of calls that are not there."""
    for table in (call_settlements, call_answers):
        statement = (
            f"SELECT count(*) FROM {table.name} s WHERE s.scope_id = {database.mark} AND NOT EXISTS "
            "(SELECT 1 FROM call_intents i WHERE i.scope_id = s.scope_id AND i.call_id = s.call_id)"
        )
        if lost := int(connection.exec_driver_sql(statement, (scope,)).scalar_one()):
            raise damaged(database.name, f"{lost} rows of {table.name} belong to no call")


def _by_chunks(
    connection: Connection, database: Database, statement: str, scope: int, column: str, wanted: Sequence[str]
) -> Iterator[Any]:
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        part = tuple(wanted[start : start + KEYS_AT_ONCE])
        marks = ", ".join([database.mark] * len(part))
        text = f"{statement} WHERE scope_id = {database.mark} AND {column} IN ({marks})"
        yield from connection.exec_driver_sql(text, (scope, *part))


@cache
def _insertion(table: Table, mark: str, leave_out: str = "") -> str:
    names = [column.name for column in table.columns if column.name != leave_out]
    marks = ", ".join([mark] * len(names))
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks}) ON CONFLICT DO NOTHING"


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
        same = [usage_charges.c[name] == value for name, value in key.items()]
        row = connection.execute(select(usage_charges).where(*same).with_for_update()).mappings().one_or_none()
        stored_usage = None if row is None else _usage(connection, row)
        if stored_usage == item:
            continue
        refuse_fewer(None if stored_usage is None else stored_usage.route.sums.requests, item)
        day = day_of(item.route.last_at)
        off = spend_of_calls(stored_usage, day=day, sign=-1) if stored_usage is not None else {}
        add_spend(connection, added(off, spend_of_calls(item, day=day)))
        connection.execute(delete(usage_charges).where(*same))
        connection.execute(insert(usage_charges).values({**usage_charge(item), "row_check": _check_of(item)}))


def read_usage(connection: Connection, *, run: str | None) -> tuple[ApiUsage, ...]:
    """Read the cost of calls, stages and servers in the order of their first call."""
    wanted = select(usage_charges).order_by(
        usage_charges.c.x_FirstAt, usage_charges.c.x_StageId, usage_charges.c.x_Endpoint, usage_charges.c.x_Model
    )
    if run is not None:
        wanted = wanted.where(usage_charges.c.x_Run == run)
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


SAMPLE_FIELDS = tuple(field.name for field in fields(StoredSample))


def write_stored(connection: Connection, samples: Sequence[StoredSample]) -> None:
    """Add the samples that are not there yet; the sums follow. Doing it twice changes nothing.

    Only what is near in time is read, so the time this takes does not grow with the number of samples.
    """
    for (run, place), new in by_place(samples).items():
        _lock(connection, run, place)
        neighbours = _near(connection, run, place, at=new[0].at_milliseconds)
        missing = {*new} - {*neighbours}
        if missing:
            rows = [{"sample_id": sample.sample_id, **asdict(sample)} for sample in missing]
            connection.execute(insert(stored_samples), rows)
            off = negative(spend_of_stored(neighbours))
            add_spend(connection, added(off, spend_of_stored([*neighbours, *missing])))


def _near(connection: Connection, run: str, place: str, *, at: int) -> tuple[StoredSample, ...]:
    """The samples of a place whose days a sample at `at`, or a later one, can change.

    That is from the day of the sample before it on, and the one before that day, which says what was held then.
    """
    since = _last_before(connection, run, place, at)
    if since is not None:
        day = since // DAY * DAY
        before = _last_before(connection, run, place, day)
        since = day if before is None else before
    return read_stored(connection, run=run, place=place, since=since)


def _last_before(connection: Connection, run: str, place: str, at: int) -> int | None:
    of_place = (stored_samples.c.run == run, stored_samples.c.place == place, stored_samples.c.at_milliseconds < at)
    at_milliseconds = connection.execute(
        select(func.max(stored_samples.c.at_milliseconds)).where(*of_place)
    ).scalar_one()
    return None if at_milliseconds is None else int(at_milliseconds)


def read_stored(
    connection: Connection, *, run: str | None = None, place: str | None = None, since: int | None = None
) -> tuple[StoredSample, ...]:
    """Samples, in no order."""
    wanted = select(stored_samples)
    for column, value in ((stored_samples.c.run, run), (stored_samples.c.place, place)):
        if value is not None:
            wanted = wanted.where(column == value)
    if since is not None:
        wanted = wanted.where(stored_samples.c.at_milliseconds >= since)
    samples = []
    for row in connection.execute(wanted).mappings():
        sample = StoredSample(**{name: row[name] for name in SAMPLE_FIELDS})
        if sample.sample_id != row["sample_id"]:
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"a sample of what {sample.place!a} holds does not match its check")
        samples.append(sample)
    return tuple(samples)


def spend_of_stored(samples: Iterable[StoredSample]) -> Spend:
    """Return the spend of stored bytes by day, from the first sample of a place to its last."""
    parts: list[Spend] = []
    for series in by_place(samples).values():
        for item in days_of(series):
            it, day = item.terms, day_of(item.start_milliseconds // MILLISECONDS_PER_SECOND)
            key = (it.run, "", "", it.owner, it.tags, "", it.provider, "storage", "", day)
            parts.append({key: {"other_micro_usd": item.micro_usd}})
    return added(*parts)


def _lock(connection: Connection, run: str, place: str) -> None:
    """Two writers of one place go one after the other: both would see the sums without what the other adds.

    A file has one writer at a time anyway.
    """
    if connection.dialect.name != "sqlite":
        number = zlib.crc32(f"{run}\0{place}".encode("utf-8", "backslashreplace"))
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({APPLICATION_ID}, {number - 2**31})")


OTHER_FIELDS = tuple(field.name for field in fields(OtherCharge))


def write_other(connection: Connection, charges: Sequence[OtherCharge]) -> None:
    """Add charges."""
    if charges:
        connection.execute(
            insert(other_charges), [{**asdict(item), "row_check": row_check(astuple(item))} for item in charges]
        )
        add_spend(connection, added(*(spend_of_other(item) for item in charges)))


def read_other(connection: Connection, *, run: str | None = None) -> tuple[OtherCharge, ...]:
    """The charges in the order they were added."""
    wanted = select(other_charges).order_by(other_charges.c.charge_id)
    if run is not None:
        wanted = wanted.where(other_charges.c.run == run)
    charges = []
    for row in connection.execute(wanted).mappings():
        item = OtherCharge(**{name: row[name] for name in OTHER_FIELDS})
        if row_check(astuple(item)) != row["row_check"]:
            name = connection.engine.url.render_as_string()
            raise damaged(name, f"the charge for {item.resource!a} does not match its check")
        charges.append(item)
    return tuple(charges)


def spend_of_other(item: OtherCharge) -> Spend:
    """Return the spend of a charge, evenly over the UTC days that it is for."""
    where = (item.run, item.stage, "", item.owner or "", item.tags, "", item.provider, item.category.lower(), "")
    length = round((item.ended_at - item.started_at) * MILLISECONDS_PER_SECOND)
    days = by_day(Totals(micro_usd=item.micro_usd or 0), started_at=item.started_at, milliseconds=length)
    return {(*where, day): {"other_micro_usd": part.micro_usd} for day, part in days}


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
        "currency": "USD",  # a bill in another currency is refused while it is read
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
        values = {name: row[name] for name in ("bill_id", "name", "format", "sha256", "imported_at", "lines")}
        stored_bills.append(StoredBill(**values, billed_usd=Decimal(row["billed_usd"])))
    return tuple(stored_bills)


def billed_of_attempts(connection: Connection, *, run: str | None) -> dict[int, tuple[str, Decimal]]:
    """By attempt: the bill that has it last, and what it says it costs."""
    names = {bill.bill_id: bill.name for bill in read_bills(connection)}
    wanted = select(bill_findings)
    if run is not None:
        wanted = wanted.where(bill_findings.c.run == run)
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
