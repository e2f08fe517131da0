"""A judge question that knows its parts, so that a long one is shortened where it hurts least."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.errors import DataError

WORDING, EXAMPLE, CONVERSATION, ANSWER = "wording", "example", "conversation", "answer"


@dataclass(frozen=True)
class Part:
    """A piece of a question, and what it is.

    Wording stays whole, an example is whole or left out, conversation and answers may be cut.
    """

    text: str
    role: str = WORDING


class Question(str):
    """A question as text, with the parts it was put together from."""

    parts: tuple[Part, ...]
    read_from: int | None
    """The part from whose first token on the choice is read; None: only after the last token."""

    @property
    def lead_in(self) -> str:
        """How the answer begins, where an assistant is asked: the last part."""
        return self.parts[-1].text

    @property
    def body(self) -> str:
        """What comes before the lead-in."""
        return "".join(part.text for part in self.parts[:-1])

    def __new__(cls, *parts: Part, read_from: int | None = None) -> "Question":
        """The text of all parts in a row."""
        question = super().__new__(cls, "".join(part.text for part in parts))
        question.parts = parts
        question.read_from = read_from
        return question


def shortened(lengths: Sequence[int], roles: Sequence[str], *, max_tokens: int) -> list[int]:
    """How many tokens of each part to keep so that the sum fits.

    Examples go first, the first of them before the others; then the conversation gives way. If the answers alone are
    too long, the longest ones are cut to one common length, so that neither answer is favoured.

    >>> shortened([5, 100, 10, 20], [WORDING, CONVERSATION, ANSWER, ANSWER], max_tokens=65)
    [5, 30, 10, 20]
    >>> shortened([5, 100, 10, 20], [WORDING, CONVERSATION, ANSWER, ANSWER], max_tokens=27)
    [5, 0, 10, 12]
    >>> shortened([30, 30, 5, 40], [EXAMPLE, EXAMPLE, WORDING, CONVERSATION], max_tokens=80)
    [0, 30, 5, 40]
    """
    examples = _examples(lengths, roles, max_tokens=max_tokens)
    fixed = sum(length for length, role in zip(lengths, roles, strict=True) if role == WORDING)
    free = max_tokens - fixed - sum(examples)
    if free < 1:
        raise DataError(
            f"a judge question may have {max_tokens} tokens, and its wording alone takes {max_tokens - free}; "
            "use a judge with a longer context or a shorter principle"
        )
    answers = _levelled([n for n, role in zip(lengths, roles, strict=True) if role == ANSWER], total=free)
    conversations = [n for n, role in zip(lengths, roles, strict=True) if role == CONVERSATION]
    others = {
        EXAMPLE: iter(examples),
        ANSWER: iter(answers),
        CONVERSATION: iter(_levelled(conversations, total=free - sum(answers))),
    }
    return [n if role == WORDING else next(others[role]) for n, role in zip(lengths, roles, strict=True)]


def _examples(lengths: Sequence[int], roles: Sequence[str], *, max_tokens: int) -> list[int]:
    """The lengths of the examples, 0 for those that there is no room for beside the whole question."""
    room = max_tokens - sum(length for length, role in zip(lengths, roles, strict=True) if role != EXAMPLE)
    kept = [length for length, role in zip(lengths, roles, strict=True) if role == EXAMPLE]
    for place in range(len(kept)):
        if sum(kept) > max(room, 0):
            kept[place] = 0
    return kept


def _levelled(lengths: Sequence[int], *, total: int) -> list[int]:
    """Lengths cut to one level so that their sum is at most `total`; short ones stay as they are."""
    kept = list(lengths)
    left = total
    for rank, index in enumerate(sorted(range(len(lengths)), key=lambda i: lengths[i])):
        kept[index] = min(lengths[index], left // (len(lengths) - rank))
        left -= kept[index]
    return kept
