"""How tables are printed: wide enough to read in a file or a pipe, as wide as the terminal otherwise."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 120


def console() -> "Console":
    """A console on stdout; 120 columns where there is no terminal to ask."""
    from rich.console import Console

    found = Console(highlight=False, markup=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(highlight=False, markup=False, width=PIPE_WIDTH)
    return found


def plain_table(*columns: tuple[str, str]) -> "Table":
    """A table without borders; a column is its heading and `left`, `right` or `wrap`."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, kind in columns:
        table.add_column(heading, justify="right" if kind == "right" else "left", no_wrap=kind != "wrap")
    return table


def short_confidence(text: str) -> str:
    """A confidence in a word or two; the longest texts stay in the JSON.

    >>> short_confidence("M"), short_confidence("seen (sum)"), short_confidence("from memory, verify")
    ('from memory', 'seen', 'from memory')
    """
    if text in ("S", "M", "L"):
        return {"S": "seen", "M": "from memory", "L": "low"}[text]
    return "from memory" if "memory" in text else text.split(" (")[0].split(",")[0]
