"""Parts of the cards of models and of data sets: tables and the licence."""

from collections.abc import Sequence

UNKNOWN_LICENCE = "unknown"


def licence_text(licence: str) -> str:
    """Return the words of a card on the licence that was given."""
    if licence != UNKNOWN_LICENCE:
        return f"{licence}, as given to `charter artifacts export`.\n"
    return "Not known. It follows from the licences of the models and data above; give it with `--license`.\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell_text(cell) for cell in line) + " |\n" for line in lines)


def cell_text(value: object) -> str:
    """A value inside a table cell: nothing in it can end the cell or the line."""
    return str(value).replace("|", "\\|").replace("\n", " ").replace("\r", " ").replace("<", "&lt;")
