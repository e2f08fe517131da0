"""Did you mean ...? The nearest of the words that would have worked."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint with the nearest known word, or with all of them when none is near.

    >>> did_you_mean("learning_rte", ["learning_rate", "epochs"])
    "did you mean 'learning_rate'?"
    >>> did_you_mean("xyz", ["b", "a"])
    'known: b, a'
    """
    words = list(dict.fromkeys(known))
    near = nearest(word, words)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(words)}" if words else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, ignoring case; None when nothing is like it.

    >>> nearest("PPO", ["ppo", "pm"]), nearest("sfts", ["sft"]), nearest("x", ["abc"])
    ('ppo', 'sft', None)
    """
    by_folded = {_fold(candidate): candidate for candidate in known}
    matches = difflib.get_close_matches(_fold(word), by_folded, n=1, cutoff=0.6)
    if matches:
        return by_folded[matches[0]]
    inside = [folded for folded in by_folded if len(_fold(word)) > 2 and _fold(word) in folded]
    return by_folded[min(inside, key=len)] if inside else None


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")
