"""Sets of indexes as the status of an Indexed Job writes them."""


def indexes(text: str) -> frozenset[int]:
    """Numbers and ranges with commas between.

    >>> sorted(indexes("0-2,5"))
    [0, 1, 2, 5]
    >>> sorted(indexes(""))
    []
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
