"""Slurm's lists of nodes: `n[1-3,7],login`."""

import re
from collections.abc import Iterator

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")
NOBODY = ("", "(null)", "None assigned", "Unknown", "N/A")


def expand_hosts(text: str) -> tuple[str, ...]:
    """The nodes of a list; `(null)` and the like are none.

    Source: `man scontrol`, "show hostlist": leading zeros are kept.

    >>> expand_hosts("n[1-2,08-10],login")
    ('n1', 'n2', 'n08', 'n09', 'n10', 'login')
    >>> expand_hosts("r[0-1]n[5-6]-ib")
    ('r0n5-ib', 'r0n6-ib', 'r1n5-ib', 'r1n6-ib')
    >>> expand_hosts("None assigned")
    ()
    """
    return () if text.strip() in NOBODY else tuple(host for part in _parts(text.strip()) for host in _expand(part))


def _parts(text: str) -> Iterator[str]:
    """Split at commas that stand in no bracket."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    for item in inside.split(","):
        for number in _numbers(item):
            for tail in _expand(after):
                yield f"{before}{number}{tail}"


def _numbers(item: str) -> Iterator[str]:
    """The numbers of `7` or `08-10`, as wide as the first is written.

    >>> list(_numbers("08-10"))
    ['08', '09', '10']
    """
    found = _RANGE.match(item)
    if found is None:
        yield item
        return
    first, last = found[1], found[2] or found[1]
    yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
