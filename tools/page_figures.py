"""Run the plans and catalogue pages that the documentation shows, and print which of their lines are no longer printed.

    .venv/bin/python tools/page_figures.py docs/guides/questions.md ...

A command is a line of a console block, `$ charter plan ...` or `$ charter catalog ...`, a backslash at its end goes on
in the next line. The lines below it are parts of what it prints: any `...` stands for what was left out, and blanks do
not count. What rests on files or on the machine of the reader is not run, nor what follows it in its block.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ_ONLY = ("charter plan ", "charter catalog ")
"""Commands that write nothing: others are not run."""
WIDTH = "400"
"""Columns of the terminal: no cell of a table is broken."""


def is_of_a_reader(command: str) -> bool:
    """Return True if a command reads files that the repository does not have, or measures the machine.

    >>> is_of_a_reader("charter plan scale fit runs.csv"), is_of_a_reader("charter plan docs/examples/tulu.yaml")
    (True, False)
    """
    words = shlex.split(command)
    files = [word for word in words if word.endswith((".csv", ".json", ".yaml"))]
    places = [place for option, place in pairwise(words) if option == "-C"]
    return bool({"--probe", "import"} & set(words)) or any(not (ROOT / word).exists() for word in (*files, *places))


def shown_commands(page: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each command of a page with the lines that it is said to print.

    >>> list(shown_commands("```console\\n$ charter plan -t cai-8b  # here\\nppo 2 h\\n```"))
    [('charter plan -t cai-8b', ('ppo 2 h',))]
    """
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        joined = re.sub(r"\s*\\\n\s*", " ", block)
        for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            command = command.partition("#")[0].strip()
            if not command.startswith(READ_ONLY) or is_of_a_reader(command):
                break
            yield command, tuple(line for line in lines if line.strip())


def missing(lines: tuple[str, ...], printed: str) -> list[str]:
    """Lines of which some part was not printed.

    >>> missing(("ppo  2 h ... $5", "total 3 h"), "ppo 2 h 8 x H100 $5")
    ['total 3 h']
    """
    text = " ".join(printed.split())
    return [
        line for line in lines if any(" ".join(part.split()) not in text for part in line.split("...") if part.strip())
    ]


def printed_by(command: str, home: str) -> str:
    """Everything that a command prints."""
    environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "HOME": home}
    words = [str(Path(sys.executable).parent / "charter"), *shlex.split(command)[1:]]
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


def main(pages: list[str]) -> int:
    """Print the stale lines of each page; 1 where there are any."""
    stale = 0
    with tempfile.TemporaryDirectory() as home:
        for page in pages:
            for command, lines in shown_commands(Path(page).read_text(encoding="utf-8")):
                old = missing(lines, printed_by(command, home)) if lines else []
                stale += len(old)
                if old:
                    print(f"{page}: $ {command}", *old, sep="\n  ")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
