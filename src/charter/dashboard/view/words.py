"""Words for figures and states on a page. Pure."""

STATE_WORDS = {
    "pending": "pending",
    "waiting": "waiting for approval",
    "running": "running",
    "interrupted": "interrupted",
    "failed": "failed",
    "done": "done",
    "killed": "killed",
    "hung": "hung",
}


def state_word(state: str) -> str:
    """A state as a reader says it."""
    return STATE_WORDS.get(state, state)


def percent(share: float | None, digits: int = 0) -> str:
    """A share in percent.

    >>> percent(0.256), percent(0.256, 1), percent(None)
    ('26 %', '25.6 %', '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def ago(moment: float, now: float) -> str:
    """Return the time since a moment, in its largest unit.

    >>> ago(100, 100), ago(40, 100), ago(0, 7300)
    ('just now', '60 s ago', '2 h ago')
    """
    seconds = now - moment
    if seconds < 2:
        return "just now"
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds / 86400:.0f} d ago"


def short_seconds(seconds: float) -> str:
    """A duration in one unit, for narrow places.

    >>> short_seconds(4.2), short_seconds(75), short_seconds(5400), short_seconds(400000)
    ('4.2 s', '75 s', '1.5 h', '4.6 d')
    """
    for limit, unit, name in ((9.95, 1, "s"), (120, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}" if name == "h" or limit < 10 else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.1f} d"
