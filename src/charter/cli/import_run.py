"""`charter artifacts import`: a run that somebody else started, read into ledger, curves and measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, console, open_project, plain_table, print_json
from charter.errors import UsageError
from charter.run.imports.logs import formats
from charter.units import format_count, format_moment, format_seconds, format_usd

if TYPE_CHECKING:
    from charter.run.imports.charges import Machines
    from charter.run.imports.importing import Imported, PastImport, TakenBack
    from charter.run.imports.logs import FoundRun
    from charter.spec.project import Project
    from charter.validation.rows.measurement import Measurement


SCHEMA = "charter.import/1"


def import_json(done: "Imported", row: "Measurement | None") -> dict[str, Any]:
    """An import as one JSON object."""
    from dataclasses import asdict

    run = done.found
    return {
        "schema": SCHEMA,
        "import": done.import_id,
        "format": run.format,
        "source": run.source,
        "content_sha256": run.content,
        "identity": run.identity,
        "done": run.is_done,
        "last_step": run.last_step,
        "target_step": run.target_step,
        "notes": list(run.notes),
        "processes": [
            {
                "first_step": item.first_step,
                "last_step": item.last_step,
                "seconds": item.seconds,
                "started_at": item.started_at,
                "tokens": item.tokens,
            }
            for item in run.attempts
        ],
        "attempts": [asdict(item) for item in done.attempts],
        "changes": list(done.changes),
        "usd": done.usd,
        "curves": None if done.curves is None else str(done.curves),
        "measurement": None if row is None else {k: v for k, v in asdict(row).items() if v not in (None, "", ())},
    }


def print_import(
    done: "Imported", row: "Measurement | None", measurements: Path | None, *, stage: str | None, dry_run: bool
) -> None:
    """An import for people."""
    run = done.found
    target = "" if run.target_step is None else f" of {run.target_step:,}"
    typer.echo(f"{run.source}: {run.format}, step {run.last_step:,}{target}, {_counted(run.attempts)}")
    for note in run.notes:
        typer.echo(f"  {note}")
    _print_attempts(done, stage=stage, dry_run=dry_run)
    if row is not None:
        verb = "would be a row of" if dry_run else "is a row of"
        typer.echo(f"{row.value:g} s a step ({row.notes}) {verb} {measurements}: {row.id}")
    if not done.attempts and row is None:
        typer.echo("Nothing was written: --as STAGE counts it in a project, --measurements FILE.csv keeps its pace.")


def _print_attempts(done: "Imported", *, stage: str | None, dry_run: bool) -> None:
    for number, item in enumerate(done.attempts):
        change = done.changes[number] if done.changes else "would be added"
        seconds = item.duration_milliseconds / 1000
        typer.echo(
            f"  steps {item.first_step:,} to {item.last_step:,}: {format_seconds(seconds)} on {item.count} x "
            f"{item.accelerator}, {item.outcome}; {change}"
        )
    if done.attempts:
        where = f"would count as stage {stage}" if dry_run else f"counts as stage {stage}"
        undone = "" if dry_run else f" It is import {done.import_id}, which --take-back removes."
        cost = format_usd(done.usd) if done.usd is not None else "unpriced (--usd-per-hour)"
        typer.echo(f"It {where}, {cost}.{undone}")


def _counted(attempts: Any) -> str:
    return "one process" if len(attempts) == 1 else f"{len(attempts)} processes (it was resumed)"


RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A trainer_state.json or its directory, the log of an engine, an mlruns directory; or an MLflow run id.",
        show_default=False,
    ),
]
AsOption = Annotated[str | None, typer.Option("--as", metavar="STAGE", help="Stage of the project that it counts as.")]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help=f"What wrote it: auto, {', '.join(formats())}.")
]
UriOption = Annotated[str | None, typer.Option("--tracking-uri", help="MLflow server or database that holds RUN.")]
AcceleratorsOption = Annotated[
    str | None, typer.Option("--accelerators", metavar="H100:8", help="What one node had; cpu for none.")
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="How many nodes.")]
PriceOption = Annotated[
    float | None, typer.Option("--usd-per-hour", min=0, help="Price of one accelerator; of a node for cpu.")
]
MarketOption = Annotated[str, typer.Option("--market", help="on_demand, spot, reserved or owned.")]
InfraOption = Annotated[str, typer.Option("--infra", help="Where it ran: aws, gcp, on_prem, ...")]
StartOption = Annotated[
    str | None, typer.Option("--started-at", metavar="2026-07-01T09:00", help="Where the log has no clock; UTC.")
]
HoursOption = Annotated[
    float | None, typer.Option("--hours", min=0, help="Hours of the whole run, where the log does not say.")
]
TargetOption = Annotated[
    int | None, typer.Option("--target-step", min=1, help="Step at which it is done, where the log does not say.")
]
RowsOption = Annotated[
    Path | None,
    typer.Option(
        "--measurements", metavar="FILE.csv", help="Add the run's row to a file for `charter validate calibrate`."
    ),
]
FactOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fact", metavar="COLUMN=VALUE", help="A cell of the row (docs/reference/measurements.md); repeatable."
    ),
]
AnotherOption = Annotated[
    bool,
    typer.Option("--another", help="Import it as another run than the one in the ledger with the same first step."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be written or removed; change nothing.")]
ListOption = Annotated[bool, typer.Option("--list", help="Show what was imported into the project.")]
TakeBackOption = Annotated[
    str | None, typer.Option("--take-back", metavar="ID", help="Remove an import of --list, with all that it wrote.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Take back without asking.")]


def moment_of(text: str | None) -> float | None:
    """Unix seconds of a time in ISO form; UTC where it names no zone."""
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--started-at {text!r} is not a time; write 2026-07-01T09:00, or +02:00 after it") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def facts_of(options: list[str] | None) -> dict[str, str]:
    """Cells of a row by their columns."""
    wrong = [text for text in options or () if "=" not in text]
    if wrong:
        raise UsageError(f"--fact {', '.join(wrong)}: write COLUMN=VALUE, such as --fact seq=4096")
    return {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in options or ())}


def import_run(
    run: RunArgument = None,
    stage: AsOption = None,
    directory: DirOption = Path("."),
    format: FormatOption = "auto",
    tracking_uri: UriOption = None,
    accelerators: AcceleratorsOption = None,
    nodes: NodesOption = 1,
    usd_per_hour: PriceOption = None,
    market: MarketOption = "on_demand",
    infra: InfraOption = "imported",
    started_at: StartOption = None,
    hours: HoursOption = None,
    target_step: TargetOption = None,
    measurements: RowsOption = None,
    fact: FactOption = None,
    another: AnotherOption = False,
    list_: ListOption = False,
    take_back: TakeBackOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Read a finished run of another engine into the ledger (--as) and into measurements (--measurements).

    Without either, what was found is shown. Importing the same run again counts nothing twice; --take-back removes it.
    """
    from charter.run.imports.charges import Machines

    _refuse_mixed(run, list_=list_, take_back=take_back)
    if run is None:
        past_imports_asked(directory, set_, take_back, yes=yes, dry_run=dry_run, as_json=json_)
        return
    machines = Machines(
        accelerators=accelerators,
        nodes=nodes,
        usd_per_hour=usd_per_hour,
        started_at=moment_of(started_at),
        hours=hours,
        infra=infra,
        market=market,
    )
    machines.check()
    logged_run = _found(run, format=format, tracking_uri=tracking_uri, target_step=target_step)
    project = None if stage is None else open_project(directory, set_)
    done, row = _import(
        logged_run, machines, project, stage or "", measurements, facts=fact, another=another, dry_run=dry_run
    )
    if json_:
        print_json(import_json(done, row))
    else:
        print_import(done, row, measurements, stage=stage, dry_run=dry_run)


def _refuse_mixed(run: str | None, *, list_: bool, take_back: str | None) -> None:
    """One thing at a time."""
    choices = {"RUN": run is not None, "--list": list_, "--take-back": take_back is not None}
    names = [name for name, given in choices.items() if given]
    if len(names) != 1:
        given_names = " and ".join(names) or "none of them"
        raise UsageError(f"give RUN, --list or --take-back ID; found {given_names}")


def _found(run: str, *, format: str, tracking_uri: str | None, target_step: int | None) -> "FoundRun":
    from dataclasses import replace

    from charter.run.imports.importing import read_run

    logged_run = read_run(run, format=None if format == "auto" else format, tracking_uri=tracking_uri)
    return logged_run if target_step is None else replace(logged_run, target_step=target_step)


def _import(
    run: "FoundRun",
    machines: "Machines",
    into: "tuple[Project, Path] | None",
    stage: str,
    measurements: Path | None,
    *,
    facts: list[str] | None,
    another: bool,
    dry_run: bool,
) -> "tuple[Imported, Measurement | None]":
    """Write what was found where it was asked for; nothing in a dry run."""
    import time

    from charter.run.imports.importing import Imported, import_into, row_of, write_rows, written_row

    given, row = facts_of(facts), None
    project, root = into or (None, Path("."))
    if measurements is not None:
        row = row_of(run, machines, given, project=project, root=root, stage=stage)
    rows = [] if measurements is None or row is None else [written_row(measurements, row)]
    done = Imported(found=run)
    if project is not None:
        done = import_into(
            project, root, run, stage=stage, machines=machines, another=another,
            now=time.time(), rows=rows, dry_run=dry_run,
        )  # fmt: skip
    if measurements is not None and row is not None and not dry_run:
        write_rows(measurements, [row])
    return done, row


LIST_SCHEMA = "charter.imports/1"
TAKE_BACK_SCHEMA = "charter.import_taken_back/1"


def past_imports_asked(
    directory: Path, overrides: list[str] | None, take_back: str | None, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """List every import, or take one back."""
    from charter.run.imports.importing import past_imports

    project, root = open_project(directory, overrides)
    imports = past_imports(project, root)
    if take_back is None:
        _list(imports, as_json=as_json)
    else:
        _take_back(project, root, imports, take_back, yes=yes, dry_run=dry_run, as_json=as_json)


def _list(imports: "Sequence[PastImport]", *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": LIST_SCHEMA, "imports": [_import_json(item) for item in imports]})
    elif not imports:
        typer.echo("nothing was imported")
    else:
        _print_table(imports)


def _take_back(
    project: "Project",
    root: Path,
    imports: "Sequence[PastImport]",
    import_id: str,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what an import wrote, and remove it after a yes."""
    from charter.run.imports.importing import chosen, take_back, what_goes

    going = what_goes(chosen(imports, import_id), imports, root)
    if not as_json:
        _print_going(going)
    if not dry_run:
        _ask(yes=yes, as_json=as_json)
    removed = None if dry_run else take_back(project, root, going)
    if as_json:
        print_json(_going_json(going, removed))
    elif removed is not None:
        typer.echo(f"taken back: {removed} attempts left the ledger; the same run can be imported again")


def _ask(*, yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or not _is_terminal():
        raise UsageError("give --yes to take it back, or --dry-run to see what goes")
    typer.confirm("Take it back?", abort=True)


def _is_terminal() -> bool:
    import sys

    return sys.stdin.isatty()


def _print_table(imports: "Sequence[PastImport]") -> None:
    table = plain_table(
        ("Import", "left"), ("Stage", "left"), ("Source", "wrap"), ("Imported", "left"), ("Attempts", "right"),
        ("Steps", "right"), ("Time", "right"), ("Tokens", "right"), ("Cost", "right"),
    )  # fmt: skip
    for item in imports:
        stored = item.stored
        if stored is None:
            table.add_row(item.import_id, item.stage, "half taken back: --take-back finishes it", *([""] * 6))
            continue
        totals, usd = stored.totals, stored.usd
        table.add_row(
            item.import_id,
            item.stage,
            stored.source,
            _time(stored.imported_at),
            ", ".join(str(attempt.number) for attempt in stored.attempts),
            f"{stored.attempts[0].first_step:,} to {stored.attempts[-1].last_step:,}",
            format_seconds(totals.milliseconds / 1000),
            format_count(totals.tokens),
            "" if usd is None else format_usd(usd),
        )
    console().print(table)


def _print_going(going: "TakenBack") -> None:
    past, stored = going.past, going.past.stored
    typer.echo(f"import {past.import_id} of stage {past.stage}")
    if stored is not None:
        cost = "" if stored.usd is None else f", {format_usd(stored.usd)}"
        typer.echo(f"  read from {stored.source} ({stored.format or 'format not told'}), {_time(stored.imported_at)}")
        for item in stored.attempts:
            steps = f"steps {item.first_step:,} to {item.last_step:,}"
            typer.echo(f"  attempt {item.number} leaves the ledger: {steps}, {format_seconds(item.seconds)}")
        typer.echo(f"  together {format_seconds(stored.totals.milliseconds / 1000)}{cost}")
    for path in going.curves:
        typer.echo(f"  {path} is removed")
    for row in going.rows:
        typer.echo(f"  row {row.row_id} of {row.file} is removed")
    for sentence in going.stays:
        typer.echo(f"  {sentence}")


def _time(at: float | None) -> str:
    return "not told" if at is None else format_moment(at)


def _import_json(item: "PastImport") -> dict[str, Any]:
    stored = item.stored
    if stored is None:
        return {"import": item.import_id, "stage": item.stage, "in_ledger": False}
    totals = stored.totals
    return {
        "import": item.import_id,
        "stage": item.stage,
        "in_ledger": True,
        "source": stored.source,
        "format": stored.format,
        "imported_at": stored.imported_at,
        "attempts": [attempt.number for attempt in stored.attempts],
        "first_step": stored.attempts[0].first_step,
        "last_step": stored.attempts[-1].last_step,
        "seconds": totals.milliseconds / 1000,
        "tokens": totals.tokens,
        "usd": stored.usd,
        "has_receipt": item.receipt is not None,
    }


def _going_json(going: "TakenBack", removed: int | None) -> dict[str, Any]:
    return {
        "schema": TAKE_BACK_SCHEMA,
        **_import_json(going.past),
        "curves": [str(path) for path in going.curves],
        "measurements": [{"file": row.file, "id": row.row_id} for row in going.rows],
        "stays": list(going.stays),
        "removed_attempts": removed,
    }
