"""Write the generated part of docs/reference/cli.md: the help of every command, as it is printed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from charter.cli.main import COMMANDS, app, load
from generated import write_part

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
WIDTH = 100


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with the words that call it: `("cost", "report")`."""
    for verb in sorted(COMMANDS):
        command = load(verb)
        yield tuple(verb.split()), command
        below = {name for name in getattr(command, "commands", ()) if f"{verb} {name}" not in COMMANDS}
        for name in sorted(below):
            yield (*verb.split(), name), command.commands[name]


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
