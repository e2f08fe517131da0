"""New prompts in the manner of given ones: what the model is asked, and what is taken from its reply."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from charter.spec.dataset import Turn

ASKED = "Here are {count} messages that people sent to an assistant, one on each line."
ASKED_FOR = "Write message {next}: a new one in the same manner, about something else. Write nothing but the message."

_NUMBER = re.compile(r"\s*\d{1,6}\s*[.):]\s*")
_NEXT_ENTRY = re.compile(r"\n\s*\d{1,6}\s*[.):]\s")
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d", "\u00ab": "\u00bb"}


@dataclass(frozen=True)
class Unusable:
    """Why a reply holds no new prompt."""

    reason: str


def asked_turns(shown: Sequence[str]) -> tuple[Turn, ...]:
    """The question for one more prompt after those shown, each on a line of its own."""
    lines = "\n".join(f"{number}. {' '.join(text.split())}" for number, text in enumerate(shown, start=1))
    head, end = ASKED.format(count=len(shown)), ASKED_FOR.format(next=len(shown) + 1)
    return (Turn("user", f"{head}\n\n{lines}\n\n{end}"),)


def opening(shown: Sequence[str]) -> str:
    """How the reply is begun, where that is possible: the number of the next entry."""
    return f"{len(shown) + 1}."


def comparable(text: str) -> str:
    """A prompt as it is compared with others: without case, spacing and punctuation at the ends.

    >>> comparable("  How ARE  you?") == comparable("how are you")
    True
    """
    return " ".join(text.split()).strip(" .!?\"'").casefold()


def new_prompt(text: str, known: Container[str], *, is_finished: bool) -> str | Unusable:
    """The prompt that a reply holds: its first entry, without number and quotes.

    >>> new_prompt("3. How do kites fly?\\n4. Why is tea hot?", (), is_finished=False)
    'How do kites fly?'
    >>> new_prompt('"Why is tea hot?"', {"why is tea hot"}, is_finished=True)
    Unusable(reason='a given prompt')
    """
    rest = _NUMBER.sub("", text, count=1) if _NUMBER.match(text) else text
    entry, *more = _NEXT_ENTRY.split(rest, maxsplit=1)
    entry = entry.strip()
    if len(entry) > 1 and _QUOTES.get(entry[0]) == entry[-1]:
        entry = entry[1:-1].strip()
    if not entry:
        return Unusable("empty")
    if not is_finished and not more:
        return Unusable("cut off")
    if "\n\n" in entry:
        return Unusable("more than a message")
    return Unusable("a given prompt") if comparable(entry) in known else entry
