"""Views of `charter artifacts import RUN`: the run that was found, its attempts, its row of measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from charter.run.imports.importing import Imported
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
    from charter.units import format_seconds, format_usd

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
