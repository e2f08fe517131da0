"""How tables are printed: wide enough to read in a file or a pipe, as wide as the terminal otherwise."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 120


def console(pipe_width: int = PIPE_WIDTH, *, markup: bool = False) -> "Console":
    """A console on stdout; `pipe_width` columns where there is no terminal to ask, nor COLUMNS."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=markup, markup=markup, width=None if known else pipe_width)


def plain_table(*columns: tuple[str, str]) -> "Table":
    """A table without borders; a column is its heading and `left`, `right` or `wrap`.

    On a narrow terminal texts and headings are folded; nothing is cut.
    """
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, kind in columns:
        table.add_column(heading, justify="right" if kind == "right" else "left", overflow="fold")
    return table


def short_confidence(text: str) -> str:
    """A confidence in a word or two; the longest texts stay in the JSON.

    >>> short_confidence("M"), short_confidence("seen (sum)"), short_confidence("from memory, verify")
    ('from memory', 'seen', 'from memory')
    """
    if text in ("S", "M", "L"):
        return {"S": "seen", "M": "from memory", "L": "low"}[text]
    return "from memory" if "memory" in text else text.split(" (")[0].split(",")[0]
