"""`charter artifacts export` and `fetch`: a stage's model, or its files for an engine; a model or data set of a hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, open_project, print_json
from charter.engines import handover_engines
from charter.errors import UsageError

if TYPE_CHECKING:
    from charter.report.handover import HandoverExport
    from charter.spec.project import Project


EXPORTS = "exports"
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Write the stage as this engine's configuration instead: "
        f"{', '.join(engine.name for engine in handover_engines())}. The stage need not have run.",
        show_default=False,
    ),
]
TargetArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Directory to write; it must not exist. With --engine it is exports/STAGE-ENGINE unless given.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Literal["model", "jsonl", "parquet", "hf", "webdataset"],
    typer.Option("--format", help="`model`; or, for a stage that makes records, its rows as a data set with a card."),
]
DataOption = Annotated[
    bool,
    typer.Option(
        "--data",
        help="With --engine: also write what the stage reads: its rows in that engine's form, and its models.",
    ),
]
PrintOption = Annotated[bool, typer.Option("--print", help="With --engine: print the files, write nothing.")]


def export(
    stage: Annotated[str, typer.Argument(help="Name of a stage.", show_default=False)],
    target: TargetArgument = None,
    directory: DirOption = Path("."),
    licence: Annotated[str, typer.Option("--license", help="Licence of the model, for its card.")] = "unknown",
    format: FormatOption = "model",
    engine: EngineOption = None,
    data: DataOption = False,
    print_: PrintOption = False,
    json_: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Write a finished stage's model or records for others, or a stage as another engine's configuration."""
    from charter.spec.suggest import did_you_mean

    project, root = open_project(directory, set_)
    if stage not in project.pipeline:
        raise UsageError(f"no stage is called {stage!r}; {did_you_mean(stage, project.pipeline)}")
    if engine is not None and format != "model":
        raise UsageError("--format is of records that a stage has made, --engine of a stage to run; give one of them")
    if engine is not None:
        if data and print_:
            raise UsageError("--data writes files, --print writes nothing; give one of them")
        beside = directory.parent if directory.is_file() else directory
        where = target or beside / EXPORTS / f"{stage}-{engine}"
        _export_handover(project, root, stage, engine, where, data=data, print_=print_, json_=json_)
        return
    if print_ or json_ or data:
        raise UsageError("--data, --print and --json go with --engine")
    if target is None:
        raise UsageError(f"give the directory to write: `charter artifacts export {stage} TARGET`, or --engine ENGINE")
    if format != "model":
        from charter.report.data_export import export_data

        exported = export_data(project, root, stage, target, format=format, licence=licence)
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(exported.kinds.items()))
        typer.echo(f"Wrote {stage} ({exported.fingerprint[:8]}) to {target}: {kinds} rows as {format}, README.md")
        return
    from charter.report.export import CARD, COST, export_stage

    record = export_stage(project, root, stage, target, licence=licence)
    typer.echo(f"Wrote {stage} ({record.fingerprint[:8]}) to {target}: model, {CARD}, {COST}")


def _export_handover(
    project: "Project",
    root: Path,
    stage: str,
    engine: str,
    where: Path,
    *,
    data: bool,
    print_: bool,
    json_: bool,
) -> None:
    from contextlib import ExitStack
    from datetime import UTC, datetime
    from tempfile import TemporaryDirectory

    from charter.artifacts.whole_dir import check_target
    from charter.launch.rendered import printed
    from charter.report.handover import export_handover, write_export

    if not print_:
        check_target(where)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix=".export-", dir=root))) if data else None
        handover = export_handover(project, root, stage, engine, today=datetime.now(UTC).date(), scratch=scratch)
        if not print_:
            write_export(handover, where)
    if json_:
        print_json({**handover.to_json(), "target": None if print_ else str(where)})
    elif print_:
        typer.echo(printed(handover.files), nl=False)
    else:
        _summary(handover, where)


def _summary(handover: "HandoverExport", where: Path) -> None:
    from charter.report.handover_pages import HOW_WORDS, resume_words

    typer.echo(f"Wrote {handover.handover.name} for {handover.engine.title} {handover.engine.version} to {where}")
    typer.echo(f"  {handover.planned.option.label}; {handover.planned.option.layout_label}")
    for how, number in handover.counts.items():
        typer.echo(f"  {number:>4} fields  {HOW_WORDS[how]}")
    typer.echo("     0 fields  dropped")
    if handover.inputs is not None:
        rows = ", ".join(f"{count:,} rows of {role}" for role, count in handover.inputs.rows.items())
        typer.echo(f"  with {rows} in the order in which they are read, and its models")
    typer.echo(f"  resume: {resume_words(handover.rendered.resume)}")


def fetch(
    name: Annotated[str, typer.Argument(help="OWNER/NAME, or OWNER/NAME@REVISION.", show_default=False)],
    data: Annotated[bool, typer.Option("--data", help="A data set instead of a model.")] = False,
    revision: Annotated[
        str, typer.Option("--revision", metavar="REV", help="Branch, tag or commit; pinned to the commit it is now.")
    ] = "",
    only: Annotated[
        str, typer.Option("--only", metavar="PATTERN", help="Of a data set: only files like `train/*.parquet`.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory; models/NAME or data/NAME if left out.")
    ] = None,
    directory: DirOption = Path("."),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched; write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch weights or rows from the Hub: safetensors, configuration, tokenizer, JSONL, Parquet; never code."""
    import os

    from charter.artifacts.hub import Hub
    from charter.units import format_bytes

    repository, _, written = name.partition("@")
    if written and revision and written != revision:
        raise UsageError(f"{name} names a revision, and --revision another; give one")
    if only and not data:
        raise UsageError("--only is of data sets; of a model all files that are read are fetched")
    hub = Hub(os.environ)
    pinned = hub.pin("datasets" if data else "models", repository, written or revision or "main", only=only)
    folder = Path("data" if data else "models") / repository.rpartition("/")[2]
    target = directory / (output or folder)
    is_new = False if dry_run else hub.fetch(pinned, target)
    place = output or folder
    rows = next((file.name for file in pinned.files if file.name.endswith((".jsonl", ".parquet"))), "")
    line = f"data: {{rows: {place / rows}}}" if data else f"models: {{base: {place}}}"
    if as_json:
        facts = {"repository": repository, "revision": pinned.revision, "directory": str(target), "fetched": is_new}
        print_json({**facts, "bytes": pinned.size_bytes, "files": [file.name for file in pinned.files]})
        return
    if dry_run:
        print(f"{repository} at {pinned.revision}: {format_bytes(pinned.size_bytes)}")
        for file in pinned.files:
            print(f"  {file.name}  {format_bytes(file.size_bytes)}")
        return
    did = "Fetched" if is_new else "Already there:"
    print(f"{did} {repository} at {pinned.revision}, {format_bytes(pinned.size_bytes)}, in {target}")
    print(f"In charter.yaml: {line}")
