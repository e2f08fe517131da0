"""Which start of a stage is the later one: the number of its submission, and of the engine's own restarts of that.

An engine may start a job again while the first start still lives somewhere (a lost node that was only cut off). Both
name their term; the later one takes the stage directory over, and the earlier one never takes it back.
"""

import os
from dataclasses import dataclass

TERM = "CHARTER_TERM"


@dataclass(frozen=True, order=True)
class Term:
    """One start of a job."""

    submission: int
    """Counted in the stage directory from 1."""
    restart: int
    """How often the engine had started it before; -1 for the submission itself, before any start."""

    def __str__(self) -> str:
        return f"{self.submission}.{self.restart}"


NO_TERM = Term(0, 0)
"""Of a directory that no engine has worked in."""


def read_term(text: object) -> Term:
    """The term that a text names; `NO_TERM` for anything else.

    >>> read_term("7.1") > read_term("7.0") > read_term(None)
    True
    """
    submission, _, restart = str(text).partition(".")
    try:
        return Term(int(submission), int(restart))
    except ValueError:
        return NO_TERM


def term_of_process() -> Term | None:
    """The term of the start that this process belongs to; None where no engine started it."""
    found = os.environ.get(TERM)
    return None if found is None else read_term(found)
