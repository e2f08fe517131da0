"""Lists of machines as engines write them, taken apart. Pure."""

from collections.abc import Iterator

MOST_NODES = 1_000_000
"""In one range; more is a slip of the pen."""


def expand_nodes(nodes: str | None) -> tuple[str, ...]:
    """The machines of a list as engines write it.

    >>> expand_nodes("node[1-3,07],gpu5")
    ('node1', 'node2', 'node3', 'node07', 'gpu5')
    """
    return tuple(_expanded(nodes or ""))


def _expanded(text: str) -> Iterator[str]:
    depth, word = 0, ""
    for sign in f"{text},":
        if sign == "," and depth == 0:
            if word.strip():
                yield from _one(word.strip())
            word = ""
            continue
        depth += (sign == "[") - (sign == "]")
        word += sign


def _one(word: str) -> Iterator[str]:
    head, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    for part in rest.partition("]")[0].split(","):
        first, dash, last = part.partition("-")
        if not dash or not (first.isdecimal() and last.isdecimal()):
            yield f"{head}{part}"
            continue
        if int(last) - int(first) > MOST_NODES:
            yield word
            return
        for number in range(int(first), int(last) + 1):
            yield f"{head}{number:0{len(first)}d}"
