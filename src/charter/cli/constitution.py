"""`charter data constitution`: look at the principles, check them, take over published ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    command_group,
    console,
    open_project,
    plain_table,
    print_json,
    write_asked,
)
from charter.errors import DataError, SpecError, UsageError

if TYPE_CHECKING:
    from charter.feedback.constitution import Constitution

constitution_app = command_group("List, check and import the principles of a constitution.")
FileArgument = Annotated[
    Path | None, typer.Argument(help="A constitution; the project's unless given.", show_default=False)
]


@constitution_app.command("list")
def list_principles(
    file: FileArgument = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only principles with this tag; several: with any of them.")
    ] = None,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """The principles, with how often each is drawn."""
    from charter.feedback.constitution import load_constitution

    path = _path(file, directory)
    constitution = load_constitution(path)
    shown = [item for item in constitution.principles if not tag or set(tag) & set(item.tags)]
    if not shown:
        tags = ", ".join(sorted({name for item in constitution.principles for name in item.tags})) or "none"
        raise UsageError(f"no principle of {path} has the tag {' or '.join(tag or [])}; the tags are {tags}")
    total = sum(item.weight for item in constitution.principles)
    rows = [
        {
            "id": item.id,
            "tags": list(item.tags),
            "weight": item.weight,
            "drawn_share": item.weight / total,
            "critique": item.critique,
            "revision": item.revision,
            "compare": item.compare,
        }
        for item in shown
    ]
    if json_:
        print_json(
            {
                "schema": "charter.principles/1",
                "name": constitution.name,
                "version": constitution.version,
                "principles": rows,
            }
        )
    else:
        _print(constitution, rows)


@constitution_app.command("lint")
def lint_constitution(
    file: FileArgument = None,
    directory: DirOption = Path("."),
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 2 for warnings too.")] = False,
    json_: JsonOption = False,
) -> None:
    """List faults and doubts: repeated and nearly equal principles, weights, tags, placeholders; exit code 2."""
    from charter.feedback.constitution import lint, read_constitution_file

    path = _path(file, directory)
    try:
        raw = read_constitution_file(path)
    except DataError as error:
        raise SpecError(str(error)) from None
    problems = lint(raw)
    if json_:
        findings = [{"level": item.level, "where": item.where, "message": item.message} for item in problems]
        print_json({"schema": "charter.lint/1", "file": str(path), "findings": findings})
    else:
        for item in problems:
            print(item)
    errors = sum(item.level == "error" for item in problems)
    summary = f"{errors} errors and {len(problems) - errors} warnings in {path}"
    if errors or (strict and problems):
        raise SpecError(summary)
    if not json_:
        print(f"{len(raw['principles'])} principles; {summary}")


@constitution_app.command("import")
def import_principles(
    sources: Annotated[list[Path], typer.Argument(help="JSON or CSV files in a published layout.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the constitution to.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the constitution; that of the first file unless given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write published principles as a constitution of this project; what a layout lacks is derived, and marked."""
    from charter.feedback.constitution import constitution_text, import_constitution, load_constitution

    if out.exists() and not force:
        raise UsageError(f"{out} is there already; give another --out, or --force to replace it")
    imported = import_constitution(sources)
    write_asked("--out", out, constitution_text(imported, name=name or sources[0].stem))
    loaded = load_constitution(out)
    derived = sum("derived" in item for item in imported.principles)
    for note in imported.notes:
        print(note)
    print(f"wrote {len(loaded.principles)} principles to {out}; `charter data constitution lint {out}` checks them")
    if derived:
        print(f"{derived} of them lacked a wording, which was made from another one and is marked `derived`: read it")


def _path(file: Path | None, directory: Path) -> Path:
    """The file that was given, or the one that the project names."""
    if file is not None:
        return file
    project, root = open_project(directory)
    if project.constitution is None:
        raise UsageError(f"the project in {root} names no constitution; give a file, or add `constitution: FILE`")
    return root / project.constitution


def _print(constitution: "Constitution", rows: list[dict[str, Any]]) -> None:
    table = plain_table(("Id", "left"), ("Drawn", "right"), ("Tags", "wrap"), ("Which answer is better", "wrap"))
    for row in rows:
        table.add_row(row["id"], f"{row['drawn_share']:.1%}", ", ".join(row["tags"]) or "-", row["compare"])
    version = f" {constitution.version}" if constitution.version else ""
    print(f"{constitution.name}{version}: {len(rows)} of {len(constitution.principles)} principles")
    console().print(table)
