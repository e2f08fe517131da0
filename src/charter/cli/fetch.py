"""`charter artifacts fetch`: a model or a data set of a Hugging Face Hub, at one commit."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, JsonOption, print_json


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
    from charter.errors import UsageError
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
