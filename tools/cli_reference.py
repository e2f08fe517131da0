"""Write the generated part of docs/reference/cli.md: the help of every command, as it is printed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from charter.cli.main import app
from generated import write_part

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
WIDTH = 100


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group below the root with the words that call it: `("cost", "report")`."""
    group = group or typer.main.get_command(app)
    for name, command in sorted(getattr(group, "commands", {}).items()):
        if not command.hidden:
            yield (*path, name), command
            yield from commands(command, (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    """What `charter PATH --help` prints."""
    arguments = {"args": [*path, "--help"], "prog_name": "charter", "color": False}
    result = CliRunner().invoke(app, **arguments, terminal_width=WIDTH, max_content_width=WIDTH)  # type: ignore[arg-type]
    if result.exit_code != 0:
        raise RuntimeError(f"charter {' '.join(path)} --help failed: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


def reference() -> str:
    """One section for each command."""
    sections = [f"## charter {' '.join(path)}\n\n```text\n{help_of(path)}\n```\n" for path, _ in commands()]
    return "\n".join(["", f"```text\n{help_of(())}\n```\n", *sections])


if __name__ == "__main__":
    write_part(PAGE, reference())
