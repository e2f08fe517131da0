"""Options that the commands of `charter scale` share, and how their texts are read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from charter.estimate.scaling.fitted import FittedLaw

LawOption = Annotated[
    str,
    typer.Option("--law", help="File of `charter scale fit`, or besiroglu2024, hoffmann2022, kaplan2020."),
]
UniqueOption = Annotated[
    str | None,
    typer.Option("--unique-tokens", help="Tokens that there are; more are repeats (Muennighoff et al. 2023)."),
]


def law_of(text: str) -> "FittedLaw":
    """A law by its file or by its published name."""
    from charter.estimate.scaling.fitted import published

    path = Path(text)
    if not path.is_file():
        return published(text)
    from charter.estimate.scaling.law_file import read_law

    return read_law(path.read_text(encoding="utf-8"), text)


def count_of(text: str, option: str) -> float:
    """A count above zero from `8e9`, `8B` or `2.5T`.

    >>> count_of("8e9", "-N"), count_of("1.5T", "-D")
    (8000000000.0, 1500000000000.0)
    """
    from charter.errors import UsageError
    from charter.units import parse_count

    try:
        value = float(text.replace("_", ""))
    except ValueError:
        try:
            value = float(parse_count(text))
        except ValueError:
            value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{option} {text}: give a number above zero, like 8e9, 8B or 1.4T")
    return value
