"""Reading and writing calls inside a transaction. Imports SQLAlchemy: import it lazily.

Statements are text, because a call passes here at least three times and composing a statement costs more than
carrying it out. Both databases take the same text but for the mark of a value.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, select

from charter.ledger.call import Call, CallSums, CallTotals, NewCall, RouteTotals, Settlement, row_check
from charter.ledger.database import Database, damaged
from charter.ledger.schema import call_answers, call_intents, call_scopes, call_settlements

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
    """The scope of a stage; made at the first opening."""
    for _ in range(2):
        for scope in scopes(connection, run=run, stage=stage):
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


def read_calls(connection: Connection, database: Database, scope: int, *, where: str = "") -> Iterator[Call]:
    """The calls of a stage by id, every row checked; `where` narrows them down (a condition on i and s)."""
    statement = f"{CALLS}{database.mark}{' AND ' + where if where else ''} ORDER BY i.call_id"
    for row in connection.execution_options(stream_results=True).exec_driver_sql(statement, (scope,)):
        intent, settlement = row[:7], row[8:16]
        if row_check(tuple(intent)) != row[7]:
            raise damaged(database.name, f"call {str(intent[0])[:40]} does not match its check")
        if settlement[0] is None:
            yield _call(intent)
            continue
        outcome, at, prompt, cached, completion, micro_usd, note, revision = settlement
        if row_check((intent[0], revision, outcome, at, prompt, cached, completion, micro_usd, note)) != row[16]:
            raise damaged(database.name, f"the settlement of call {str(intent[0])[:40]} does not match its check")
        yield _call(intent, settlement)


def _call(intent: Any, settlement: Any = (None, None, 0, 0, 0, None, "", -1)) -> Call:
    call_id, key, model, endpoint, attempt, at, most_micro_usd = intent
    outcome, settled_at, prompt_tokens, cached_tokens, completion_tokens, micro_usd, note, revision = settlement
    return Call(
        call_id=call_id,
        key=key,
        model=model,
        endpoint=endpoint,
        attempt=attempt,
        at=at,
        most_micro_usd=most_micro_usd,
        outcome=outcome,
        settled_at=settled_at,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
        micro_usd=micro_usd,
        note=note,
        revision=revision,
    )


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
    requests, answered, refused, unknown, unpriced, prompt, cached, completion, settled, most = map(int, values)
    return CallSums(
        requests=requests,
        answered=answered,
        refused=refused,
        unknown=unknown,
        unpriced=unpriced,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        settled_micro_usd=settled,
        unknown_micro_usd=most,
    )


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
