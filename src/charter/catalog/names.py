"""Did-you-mean for catalog names."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """`; did you mean A, B?` for a name that is nearly a known one, else nothing.

    >>> closest("H10O", ["H100", "A100"])
    '; did you mean H100?'
    """
    spelled = {item.casefold(): item for item in known}
    near = get_close_matches(name.casefold(), list(spelled), n=limit, cutoff=0.6)
    return f"; did you mean {', '.join(spelled[item] for item in near)}?" if near else ""
