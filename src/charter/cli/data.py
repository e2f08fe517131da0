"""`charter data`: look at data sets, and bring them into a format that stages read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, command_group, open_project, print_json
from charter.errors import DataError, MissingExtraError, UsageError, how_to_install, loads_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from charter.spec.project import DataSpec


def data_version(
    path: Annotated[Path, typer.Argument(help="A file, a directory, or a pointer NAME.dvc.", show_default=False)],
    write: Annotated[bool, typer.Option("--write", help="Write the pointer PATH.dvc beside it, for DVC.")] = False,
    json_: JsonOption = False,
) -> None:
    """Hash a file or a directory; for a pointer, say whether what it names is beside it (exit code 8 if not)."""
    from charter.artifacts.data_versions import POINTER, pointer_damage, version_of, write_pointer

    if path.suffix == POINTER and path.is_file():
        if (wrong := pointer_damage(path)) is not None:
            raise DataError(wrong)
        if json_:
            print_json({"schema": "charter.data_version/1", "pointer": str(path), "matches": True})
        else:
            typer.echo(f"{path}: what it names is here, as recorded")
        return
    version = version_of(path)
    pointer = write_pointer(path) if write else None
    if json_:
        figures = {"sha256": version.sha256, "bytes": version.bytes, "files": len(version.files)}
        print_json({"schema": "charter.data_version/1", "path": str(path), **figures})
        return
    typer.echo(f"{version.sha256}  {path}  ({len(version.files)} files, {version.bytes} bytes)")
    if pointer is not None:
        typer.echo(f"wrote {pointer}")


def data_dvc(directory: DirOption = Path("."), json_: JsonOption = False, set_: SetOption = None) -> None:
    """Write dvc.yaml and dvc.lock, so that DVC knows the stages of the project and what the finished ones made."""
    from charter.run.dvc_project import write_dvc

    written = write_dvc(*open_project(directory, set_))
    if json_:
        print_json({"schema": "charter.dvc/1", "stages": list(written.stages), "locked": list(written.locked)})
        return
    typer.echo(f"wrote dvc.yaml ({len(written.stages)} stages) and dvc.lock ({len(written.locked)} finished)")


DataFormat = Literal["auto", "jsonl", "parquet", "hf", "webdataset"]
data_app = command_group("Check, measure and convert data sets.")
PathArgument = Annotated[Path, typer.Argument(help="A data set: a file, a directory or a pattern.", show_default=False)]
FormatOption = Annotated[DataFormat, typer.Option("--format", help="How to read it, as `format` in charter.yaml.")]


data_app.command("version")(data_version)
data_app.command("dvc")(data_dvc)


@data_app.command("check")
def check(
    path: Annotated[
        Path | None,
        typer.Argument(help="A file, a directory or a pattern; those of charter.yaml if left out.", show_default=False),
    ] = None,
    format: FormatOption = "auto",
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Read every row as a stage would: bad rows with their lines, blank texts, duplicates; exit code 8 for bad ones."""
    from charter.report.data_stats import check_data, check_lines

    chosen = _data_of(directory) if path is None else [(path, _spec(path, format))]
    reports = [check_data(place, spec) for place, spec in chosen]
    if json_:
        print_json(reports[0].to_json() if path else {"data": [report.to_json() for report in reports]})
    else:
        print("\n".join(line for report in reports for line in check_lines(report)))
    for report in reports:
        if not report.is_sound:
            raise DataError(f"{report.bad.count + report.blank.count} rows of {report.path} cannot be used")


def _data_of(directory: Path) -> "list[tuple[Path, DataSpec]]":
    """The data sets of a project that are there, each as its stages read it; a UsageError names those that are not."""
    from charter.data.formats import is_there

    project, root = open_project(directory)
    absent = [spec.path for spec in project.data.values() if not is_there(root / spec.path)]
    if absent or not project.data:
        raise UsageError(f"{root}: {f'there is no {absent[0]}' if absent else 'charter.yaml names no data'}")
    return [(root / spec.path, spec) for spec in project.data.values()]


@data_app.command("stats")
def stats(path: PathArgument, format: FormatOption = "auto", json_: JsonOption = False) -> None:
    """Print counts, lengths and labels; for records of critique and label stages, also principles and agreement."""
    from charter.report.data_stats import data_stats, stats_json, stats_lines

    statistics = data_stats(path, _spec(path, format, on_bad_row="skip"))
    if json_:
        print_json(stats_json(statistics))
    else:
        print("\n".join(stats_lines(statistics)))


@data_app.command("convert")
def convert(
    path: PathArgument,
    out: Annotated[Path, typer.Argument(help="File to write: .jsonl or .parquet.", show_default=False)],
    format: FormatOption = "auto",
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Leave bad rows out and count them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a data set in TRL's formats: from HH-RLHF's text, NeMo-Aligner's JSONL, tar shards, Parquet or Arrow."""
    from charter.data.convert import Conversion

    if out.exists() and (not force or out.is_dir() or out.samefile(path)):
        hint = "give another name" if out.is_dir() or out.samefile(path) else "give another name, or --force"
        raise UsageError(f"{out} is there already; {hint}")
    conversion = Conversion(path, _spec(path, format, on_bad_row="skip" if skip_bad_rows else "fail"))
    _write(conversion.rows, out)
    written = conversion.made
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in written.kinds.items())
    print(f"wrote {written.rows:,} rows to {out}: {kinds}; {written.changed:,} were in another layout")
    for name, count in written.dropped.items():
        print(f"  the field {name!r} of {count:,} rows has no place in the new layout and was left out")
    for line in written.skipped.lines():
        print(line)


@data_app.command("tasks")
def tasks(
    taskset: Annotated[str, typer.Argument(help="Its id, or the path of a file.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="File to write: .jsonl.", show_default=False)],
    arguments: Annotated[
        str, typer.Option("--arguments", metavar="JSON", help="As the environment's `arguments` in charter.yaml.")
    ] = "{}",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="So many tasks at most.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write prompts for the tasks of a taskset of verifiers, whose code runs here, with your rights and network."""
    from importlib.util import find_spec

    from charter.inference.verifiers import rows_of

    if find_spec("verifiers") is None:
        raise MissingExtraError(f"tasksets are of the package verifiers: {how_to_install('verifiers')}")
    if out.exists() and (not force or out.is_dir()):
        raise UsageError(f"{out} is there already; give another name, or --force")
    try:
        rows = list(rows_of(taskset, loads_json(arguments.encode()), limit))
    except Exception as error:  # of the taskset's own code too
        raise UsageError(f"{taskset}: {error}") from error
    _write(lambda: rows, out)
    print(f"wrote {len(rows):,} tasks to {out}")


def _write(rows: "Callable[[], Iterable[Mapping[str, Any]]]", out: Path) -> None:
    """Write to a temporary file beside the target, which appears whole or not at all."""
    from charter.artifacts import durable
    from charter.data.convert import write_rows

    temporary = durable.temporary_beside(out)
    try:
        write_rows(rows, out, temporary)
        durable.move(temporary, out)
    except OSError as error:
        raise UsageError(f"{out}: {error.strerror}; give a file in a directory that exists") from None
    finally:
        temporary.unlink(missing_ok=True)


def _spec(path: Path, format: DataFormat, *, on_bad_row: Literal["fail", "skip"] = "fail") -> "DataSpec":
    """Return the specification of a data set that no charter.yaml describes."""
    from charter.data.formats import is_there
    from charter.spec.project import DataSpec

    if not is_there(path):
        raise UsageError(f"there is no data set {path}; give a file, a directory or a pattern")
    return DataSpec(path=str(path), format=format, on_bad_row=on_bad_row)
