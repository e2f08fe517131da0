"""`charter data version | dvc`: which version of a data set this is, and the files by which DVC knows it."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, open_project, print_json


def data_version(
    path: Annotated[Path, typer.Argument(help="A file, a directory, or a pointer NAME.dvc.", show_default=False)],
    write: Annotated[bool, typer.Option("--write", help="Write the pointer PATH.dvc beside it, for DVC.")] = False,
    json_: JsonOption = False,
) -> None:
    """Hash a file or a directory; of a pointer say whether what it names is beside it (exit code 8 if not)."""
    from charter.artifacts.data_version import version_of
    from charter.artifacts.dvc_files import POINTER, pointer_damage, write_pointer
    from charter.errors import DataError

    if path.suffix == POINTER and path.is_file():
        if (wrong := pointer_damage(path)) is not None:
            raise DataError(wrong)
        if json_:
            print_json({"schema": "charter.data_version/1", "pointer": str(path), "matches": True})
        else:
            typer.echo(f"{path}: what it names is here, as recorded")
        return
    found = version_of(path)
    pointer = write_pointer(path) if write else None
    if json_:
        told = {"sha256": found.sha256, "bytes": found.bytes, "files": len(found.files)}
        print_json({"schema": "charter.data_version/1", "path": str(path), **told})
        return
    typer.echo(f"{found.sha256}  {path}  ({len(found.files)} files, {found.bytes} bytes)")
    if pointer is not None:
        typer.echo(f"wrote {pointer}")


def data_dvc(directory: DirOption = Path("."), json_: JsonOption = False, set_: SetOption = None) -> None:
    """Write dvc.yaml and dvc.lock, so that DVC knows the stages of the project and what the finished ones made."""
    from charter.pipeline.dvc_project import write_dvc

    written = write_dvc(*open_project(directory, set_))
    if json_:
        print_json({"schema": "charter.dvc/1", "stages": list(written.stages), "locked": list(written.locked)})
        return
    typer.echo(f"wrote dvc.yaml ({len(written.stages)} stages) and dvc.lock ({len(written.locked)} finished)")
