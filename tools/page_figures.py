"""Run the commands of the documentation that read nothing but the repository, and compare what they print.

    .venv/bin/python tools/page_figures.py [--write] docs/guides/questions.md ...

A command is a line of a console block that begins with `$ charter`, or with `charter` where no line of the block
begins with `$`; a backslash at its end goes on in the next line. The lines below it are parts of what it prints: any
`...` stands for what was left out, and blanks do not count. A page has a folder of its own, with the examples, the
recipes and a project from a template under each of the names that pages give to the reader's. Commands that start work,
reach a network or read other files of the reader are not run, nor what follows them in their block. With `--write` the
figures of a line are taken from what is printed now, where the words around them are the same; the rest is left to you.
"""

import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from charter.cli.main import entry

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("docs/examples", "recipes")
PROJECTS = (".", "DIR", "my-project")
"""Projects of the reader: as the pages call them."""
TEMPLATE = "cai-8b"
LAUNCH = "\nlaunch: {kubernetes: {image: registry/image:1, volume_claim: runs, mount_path: /}}\n"
"""What their pages ask for before a job can be printed."""
PRINTING = (
    r"charter init --template",
    r"charter check \S+\.yaml",
    r"charter plan\b(?! --sweep| compare)",
    r"charter catalog\b",
    r"charter cost buy-or-rent\b",
    r"charter submit --on (slurm|kubernetes|ray)\b.* --print\b",
    r"charter submit\b.* --on slurm --print\b",
    r"charter artifacts export\b.* --engine\b",
)
"""Commands that print and write files, and do nothing else."""
NEVER = {"--probe", "import", "--optimizer", "--calibration"}
"""Words of commands that measure the machine or read other files of the reader."""
ANSWERS = {0, 3, 4}
"""Exit codes that answer a question: also that nothing fits, or that a plan is over its budget."""
WIDTH = "400"
"""Columns of the terminal: no cell of a table is broken."""


def workplace(folder: Path) -> Path:
    """Put into an empty folder what commands of a page may read."""
    for name in PROJECTS:
        printed(f"charter init --template {TEMPLATE} {name}", folder)
        with (folder / name / "charter.yaml").open("a", encoding="utf-8") as project:
            project.write(LAUNCH)
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    return folder


def is_run(command: str, folder: Path) -> bool:
    """Return True if a command only prints, from files that are in the folder.

    >>> [is_run(f"charter plan {words}", ROOT) for words in ("scale fit runs.csv", "docs/examples/tulu.yaml")]
    [False, True]
    """
    words = shlex.split(command)
    written = {after for option, after in pairwise(words) if option in {"--output", "-o", "--html", "--save"}}
    read = [word for word in words if word.endswith((".csv", ".json", ".yaml")) and word not in written]
    places = [place for option, place in pairwise(words) if option == "-C"]
    does_nothing_else = any(re.match(pattern, command) for pattern in PRINTING) and not NEVER & set(words)
    return does_nothing_else and all((folder / word).exists() for word in (*read, *places))


def shown_commands(page: str) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """Each console block of a page: its commands with the lines that they are said to print.

    >>> list(shown_commands("```console\\n$ charter plan -t cai-8b  # here\\nppo 2 h\\n```"))
    [[('charter plan -t cai-8b', ('ppo 2 h',))]]
    >>> list(shown_commands("```console\\ncharter plan    # a plan\\ncharter run\\n```"))
    [[('charter plan', ()), ('charter run', ())]]
    """
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        joined = re.sub(r"\s*\\\n\s*", " ", block)
        start = r"^\$ " if re.search(r"^\$ ", joined, flags=re.MULTILINE) else r"^(?=charter )"
        commands = []
        for part in re.split(start, joined, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            commands.append((command.partition("#")[0].strip(), tuple(line for line in lines if line.strip())))
        yield commands


def missing(lines: tuple[str, ...], text: str) -> list[str]:
    """Lines of which some part was not printed.

    >>> missing(("ppo  2 h ... $5", "total 3 h"), "ppo 2 h 8 x H100 $5")
    ['total 3 h']
    """
    text = " ".join(text.split())
    return [
        line for line in lines if any(" ".join(part.split()) not in text for part in line.split("...") if part.strip())
    ]


def shape(part: str) -> str:
    """Pattern of a part of a line with any figures, units of time and runs of blanks."""
    pieces = re.split(r"(\d[\d,_]*(?:\.\d+)?|(?<=\d )(?:days|h|min|s)\b|\s+)", part.strip())
    kinds = ((r"\d.*", r"\d[\d,_]*(?:\.\d+)?"), (r"days|h|min|s", "(?:days|h|min|s)"), (r"\s+", r"\s+"))
    return "".join(next((new for old, new in kinds if re.fullmatch(old, piece)), re.escape(piece)) for piece in pieces)


def refreshed(lines: tuple[str, ...], text: str) -> list[str]:
    """Lines of a page with the figures of the next like lines of a text; unchanged where none is like them.

    >>> refreshed(("  ppo 8 x H100 ... 1.2-3 h   $5", "eval"), "sft 1\\nppo 16 x H100 spot 50-61 min $7.10")
    ['  ppo 16 x H100 ... 50-61 min   $7.10', 'eval']
    """
    fresh, place = [], 0
    for line in lines:
        parts = line.split("...")
        like = re.compile(".*?".join(f"({shape(part)})" for part in parts)).search(text, place)
        if like is not None:
            place = like.end()
            line = "...".join(map(with_blanks_of, parts, like.groups()))
        fresh.append(line)
    return fresh


def with_blanks_of(old: str, new: str) -> str:
    """Words of a new part, with the blanks of an old one."""
    words = iter(new.split())
    return re.sub(r"\S+", lambda _: next(words), old)


def printed(command: str, folder: Path) -> tuple[str, int]:
    """Everything that a command prints when it runs in a folder, and its exit code."""
    text, code = io.StringIO(), 0
    surroundings = {"COLUMNS": WIDTH, "NO_COLOR": "1", "HOME": str(folder)}
    with (
        chdir(folder),
        patch.dict(os.environ, surroundings),
        patch.object(sys, "argv", shlex.split(command)),
        redirect_stdout(text),
        redirect_stderr(text),
    ):
        try:
            entry()
        except SystemExit as ended:
            code = int(ended.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
    return text.getvalue(), code


def stale(page: Path, write: bool = False) -> tuple[int, list[str]]:
    """The number of commands of a page that were run; those that failed or no longer print the lines below them."""
    count, wrong = 0, []
    with tempfile.TemporaryDirectory() as home:
        blocks = list(shown_commands(page.read_text(encoding="utf-8")))
        folder = workplace(Path(home)) if any(blocks) else Path(home)
        for block in blocks:
            for command, lines in block:
                if not is_run(command, folder):
                    break
                text, code = printed(command, folder)
                count += 1
                old = missing(lines, text)
                if old and write:
                    fresh = tuple(refreshed(lines, text))
                    page.write_text(with_lines(page.read_text(encoding="utf-8"), lines, fresh), encoding="utf-8")
                    old = missing(fresh, text)
                if code not in ANSWERS and not any(line.startswith("error[") for line in lines):
                    old.append(f"exit code {code}: {text.strip()[-400:]}")
                if old:
                    wrong.append("\n  ".join((f"{page}: $ {command}", *old)))
    return count, wrong


def with_lines(page: str, lines: tuple[str, ...], fresh: tuple[str, ...]) -> str:
    """A page with fresh lines in place of those that follow one another there, blank lines between them kept."""
    start = re.search(r"\n\s*".join(map(re.escape, lines)), page)
    if start is None:
        raise ValueError(f"not in the page: {lines}")
    return page[: start.start()] + "\n".join(fresh) + page[start.end() :]


def main(words: list[str]) -> int:
    """Print the stale lines of each page, those that `--write` could not mend; 1 where there are any."""
    write = "--write" in words
    wrong = [text for page in words if page != "--write" for text in stale(Path(page), write)[1]]
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
