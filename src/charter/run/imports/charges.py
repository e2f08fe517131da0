"""A foreign run as attempts of the ledger: who told its time, what it ran on, at which price. Pure."""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from charter.catalog.accelerators import parse_request
from charter.engines import handover_engines
from charter.errors import Problem, SpecError, UsageError
from charter.ledger.attempt import Outcome
from charter.ledger.imported import ImportedAttempt, note_of
from charter.run.imports.logs import FoundAttempt, FoundRun, seconds_per_step
from charter.spec.stage_base import Stage
from charter.units import MICRO_USD_PER_USD
from charter.validation.rows.measurement import COLUMNS, Measurement, parse
from charter.validation.score import quantity_of
from charter.validation.validate import safe_cases

KEY_LENGTH = 20
MARKETS = ("on_demand", "spot", "reserved", "owned")


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines of the run, as its owner says: logs do not tell."""

    accelerators: str | None = None
    """`H100:8`, of one node."""
    nodes: int = 1
    usd_per_hour: float | None = None
    """Of one accelerator, or of a node without any."""
    started_at: float | None = None
    """Unix seconds; where the log has no clock."""
    hours: float | None = None
    """On the wall, of the whole run; where the log does not tell."""
    infra: str = "imported"
    market: str = "on_demand"

    def check(self) -> None:
        """UsageError for a name that nobody knows."""
        if self.market not in MARKETS:
            raise UsageError(f"--market {self.market!r} is none of {', '.join(MARKETS)}")
        if self.accelerators is not None:
            parse_request(self.accelerators)

    @property
    def accelerator(self) -> tuple[str, int]:
        """Name and how many in all; processors count by nodes."""
        name, count = parse_request(self.accelerators or "cpu")
        return name, self.nodes if name == "cpu" else count * self.nodes


@dataclass(frozen=True, kw_only=True)
class Belongs:
    """Stage and run that the attempts are put under."""

    run: str
    stage: str
    kind: str
    fingerprint: str
    owner: str | None
    tags: str
    imported_at: float
    """Unix seconds of this import."""


def imported_attempts(
    run: FoundRun, machines: Machines, belongs: Belongs, *, another: bool = False
) -> tuple[ImportedAttempt, ...]:
    """The attempts of a run; raises with every option that is missing at once.

    `another` says that it is not the run that has the same first step in the ledger.
    """
    problems = list(_problems(run, machines))
    if problems:
        raise SpecError(problems)
    seconds = _seconds(run, machines)
    starts = _starts(run, machines, seconds)
    identity = run.content if another else run.identity
    attempts = []
    for number, attempt in enumerate(run.attempts):
        attempts.append(
            _attempt(
                run,
                attempt,
                machines,
                belongs,
                key=f"{identity[:KEY_LENGTH]}:{number}",
                seconds=seconds[number],
                started_at=starts[number],
                last=number == len(run.attempts) - 1,
            )
        )
    return tuple(attempts)


def _problems(run: FoundRun, machines: Machines) -> Iterator[Problem]:
    what = f"{run.source} ({run.format})"
    if machines.accelerators is None:
        hint = "give --accelerators H100:8 (or cpu) and --nodes"
        yield Problem(message=f"{what} does not say what it ran on", hint=hint)
    if machines.started_at is None and any(attempt.started_at is None for attempt in run.attempts):
        yield Problem(message=f"{what} has no clock", hint="give --started-at 2026-07-01T09:00")
    unknown = [attempt for attempt in run.attempts if attempt.seconds is None]
    if unknown and machines.hours is None:
        spans = ", ".join(f"{item.first_step} to {item.last_step}" for item in unknown)
        hint = "give --hours, the time on the wall of the whole run"
        yield Problem(message=f"{what} does not say how long its steps {spans} took", hint=hint)
    logged_seconds = sum(attempt.seconds or 0.0 for attempt in run.attempts)
    if machines.hours is not None and unknown and machines.hours * 3600 < logged_seconds:
        message = f"--hours {machines.hours:g} is less than the {logged_seconds / 3600:.3f} hours that {what} tells of"
        yield Problem(message=message, hint="give the time of the whole run, all its processes together")


def _seconds(run: FoundRun, machines: Machines) -> list[float]:
    """Of each process; hours that were given go to those whose time is not known, by their steps."""
    logged = [attempt.seconds for attempt in run.attempts]
    if machines.hours is None:
        return [seconds or 0.0 for seconds in logged]
    if None not in logged:
        total = sum(seconds or 0.0 for seconds in logged)
        return [machines.hours * 3600 * (seconds or 0.0) / total if total else 0.0 for seconds in logged]
    left = machines.hours * 3600 - sum(seconds or 0.0 for seconds in logged)
    steps = [_steps(item) if item.seconds is None else 0 for item in run.attempts]
    shared = [left * count / max(1, sum(steps)) for count in steps]
    return [share if seconds is None else seconds for seconds, share in zip(logged, shared, strict=True)]


def _steps(attempt: FoundAttempt) -> int:
    return max(1, attempt.last_step - attempt.first_step)


def _starts(run: FoundRun, machines: Machines, seconds: list[float]) -> list[float]:
    """By the log's clock; without one, one process after the other from the start that was given."""
    starts, next_start = [], machines.started_at or 0.0
    for attempt, spent in zip(run.attempts, seconds, strict=True):
        started = attempt.started_at if attempt.started_at is not None and not machines.started_at else next_start
        starts.append(started)
        next_start = started + spent
    return starts


def _attempt(
    run: FoundRun,
    attempt: FoundAttempt,
    machines: Machines,
    belongs: Belongs,
    *,
    key: str,
    seconds: float,
    started_at: float,
    last: bool,
) -> ImportedAttempt:
    name, count = machines.accelerator
    price = None if machines.usd_per_hour is None else round(machines.usd_per_hour * MICRO_USD_PER_USD)
    return ImportedAttempt(
        key=key,
        content=run.content,
        run=belongs.run,
        stage=belongs.stage,
        kind=belongs.kind,
        fingerprint=belongs.fingerprint,
        accelerator=name,
        count=count,
        infra=machines.infra,
        market=machines.market,
        started_at=started_at,
        duration_milliseconds=round(seconds * 1000),
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        outcome=(Outcome.DONE if run.is_done else Outcome.INTERRUPTED) if last else Outcome.KILLED,
        tokens=attempt.tokens,
        price_micro_usd_per_hour=price,
        price_source=None if price is None else "--usd-per-hour of charter artifacts import",
        note=note_of(run.source, run.format, at=belongs.imported_at),
        owner=belongs.owner,
        tags=belongs.tags,
    )


PREFIX = "IMP"
KINDS = {"pretrain": "pretrain", "sft": "sft", "preference_model": "rm", "ppo": "ppo"}
"""Kind of a stage -> kind of a row; others have no rows."""
NEEDED = ("kind", "framework", "gpu", "gpus")
NEEDED_OF_BATCHES = ("seq", "gbs")
"""Of every kind but reinforcement learning, whose rows count answers."""
HINTS = {
    "kind": "--as STAGE, or --fact kind=sft",
    "framework": "--fact framework='HF Trainer'",
    "gpu": "--accelerators H100:8",
    "gpus": "--accelerators H100:8 and --nodes",
    "seq": "--as STAGE, or --fact seq=4096",
    "gbs": "--as STAGE, or --fact gbs=64",
}
MODEL_HINT = "--as STAGE, or --fact model=Llama-3.1-8B (or --fact params_b=, hidden=, layers=, ...)"


def measured_row(run: FoundRun, facts: Mapping[str, str], given: Mapping[str, str]) -> Measurement:
    """The row of a run; `given` beats what the log knows, which beats `facts` of stage and machines.

    Raises with every fact that is missing, and with what the reader of such files would refuse.
    """
    problems = [*_unknown(given)]
    titles = {"transformers": "HF Trainer", **{engine.name: engine.title for engine in handover_engines()}}
    cells = {"framework": titles.get(run.format, ""), **facts, **run.facts, **given}
    cells |= {"id": given.get("id", f"{PREFIX}-{run.identity[:10]}"), "metric": "step_time_s", "unit": "s"}
    cells.setdefault("source", run.source)
    measured = seconds_per_step(run)
    if measured is not None:
        cells["value"] = given.get("value", f"{measured[0]:.6g}")
        cells.setdefault("notes", measured[1])
    elif "value" not in given:
        hint = "give --hours (see --help), or --fact value=SECONDS of one step"
        problems.append(Problem(message=f"{run.source} does not say how long a step took", hint=hint))
    problems += [
        Problem(message=f"a row of measurements needs the column {name!r}, which nobody has told", hint=HINTS[name])
        for name in (*NEEDED, *(() if cells.get("kind") == "ppo" else NEEDED_OF_BATCHES))
        if not cells.get(name)
    ]
    if not cells.get("model") and not cells.get("params_b") and not (cells.get("hidden") and cells.get("layers")):
        problems.append(Problem(message="nobody has told which model was trained", hint=MODEL_HINT))
    if problems:
        raise SpecError(problems)
    (row,) = parse([cells], "--fact")
    return _predictable(row)


def facts_of_stage(stage: Stage) -> dict[str, str]:
    """Return the facts of a run in the specification of its stage."""
    adapter = getattr(stage, "adapter", None)
    facts = {
        "kind": KINDS.get(stage.kind, ""),
        "seq": getattr(stage, "seq_len", ""),
        "gbs": getattr(stage, "global_batch", ""),
        "dtype": getattr(stage, "dtype", ""),
        "samples_per_step": getattr(stage, "rollout_batch", ""),
        "osl": getattr(stage, "max_new_tokens", ""),
        "adapter": "full" if adapter is None else "qlora" if adapter.base_bits == 4 else "lora",
        "lora_rank": "" if adapter is None else adapter.rank,
    }
    return {name: str(value) for name, value in facts.items() if value not in ("", None)}


def csv_text(rows: Sequence[Measurement], *, before: str = "") -> str:
    """A file of rows; those of `before` stay, and a row with the same id takes the place of the one there."""
    table = csv.DictReader(before.splitlines())
    earlier = {row["id"]: row for row in table}
    new = {row.id: _cells(row) for row in rows}
    merged = {**earlier, **new}
    names = dict.fromkeys((*(table.fieldnames or ()), *_used(new.values())))
    return _table(names, merged.values())


def without_row(before: str, row_id: str) -> str:
    """A file of rows without one of them; its columns stay."""
    table = csv.DictReader(before.splitlines())
    others = [row for row in table if row["id"] != row_id]
    return _table(table.fieldnames or (), others)


def row_hash(row: Measurement) -> str:
    """Return a hash that tells a row from one that was edited since."""
    return _hash_of(_cells(row))


def row_hashes(text: str) -> dict[str, str]:
    """The same of every row of a file, by its id; blank cells do not count."""
    rows = [row for row in csv.DictReader(text.splitlines()) if row.get("id")]
    return {row["id"]: _hash_of({name: cell for name, cell in row.items() if name and cell}) for row in rows}


def _hash_of(cells: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(cells), sort_keys=True).encode()).hexdigest()


def _table(names: Iterable[str], rows: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _used(rows: Iterable[Mapping[str, str]]) -> list[str]:
    filled = {name for row in rows for name in row}
    return [name for name in COLUMNS if name in filled]


def _cells(row: Measurement) -> dict[str, str]:
    """The cells that are not blank."""
    values = {name: getattr(row, name) for name in COLUMNS}
    return {name: _text(value) for name, value in values.items() if value not in (None, "") and value != _blank(name)}


def _blank(name: str) -> object:
    return 1.0 if name == "weight" else None


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unknown(given: Mapping[str, str]) -> Iterator[Problem]:
    for name in given:
        if name not in COLUMNS:
            hint = "the columns are those of docs/reference/measurements.md"
            yield Problem(message=f"--fact {name}: no such column", hint=hint)


def _predictable(row: Measurement) -> Measurement:
    """The row, when the planner can predict it; else `charter validate calibrate` would pass it over."""
    reasons = list(row.problems)
    if not reasons:
        quantity = quantity_of(row)
        if quantity is None:
            reasons = [f"nothing is predicted of kind {row.kind}, metric {row.metric}"]
        else:
            reasons = [reason for _, reason in safe_cases(quantity, [row])[1]]
    if reasons:
        raise SpecError([Problem(message=f"the planner cannot use this row: {reason}") for reason in reasons])
    return row
