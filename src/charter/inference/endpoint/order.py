"""The order in which waiting requests are sent: neighbours share the longest prefix, which servers keep in a cache.

Sorted by text, requests with a common prefix are next to each other. New ones join the sweep under way if it has not
passed their place, else they wait for the next: like a lift, so that nobody waits for ever.
"""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from charter.inference.endpoint.call import CallRequest

Item = TypeVar("Item")
PREFIX_CHARACTERS = 1024
"""By which a server is chosen: instructions and examples in front, some 256 tokens; caches keep blocks of 16."""


def sort_text(request: CallRequest) -> str:
    """The text of a prompt from its beginning."""
    if not request.turns:
        return request.prompt
    return request.turns[0].content if len(request.turns) == 1 else "\0".join(turn.content for turn in request.turns)


@dataclass(order=True, slots=True)
class _Entry(Generic[Item]):
    text: str
    number: int
    item: Item = field(compare=False)


class AlphabetSweep(Generic[Item]):
    """Waiting requests, taken in sweeps through the alphabet."""

    def __init__(self) -> None:
        self._now: list[_Entry[Item]] = []
        self._next: list[_Entry[Item]] = []
        self._place = ""
        self._count = 0

    def __len__(self) -> int:
        return len(self._now) + len(self._next)

    def add(self, text: str, item: Item) -> None:
        """Let one wait."""
        self._count += 1
        heapq.heappush(self._now if text >= self._place else self._next, _Entry(text, self._count, item))

    def take(self) -> Item:
        """The next one; IndexError when none waits."""
        if not self._now:
            self._now, self._next = self._next, self._now
        entry = heapq.heappop(self._now)
        self._place = entry.text
        return entry.item
