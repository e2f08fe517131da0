"""The best plan whose finish, drawn at random, keeps a deadline.

The search adds p90s of stages, which is not the p90 of their sum: mostly more, where waits are independent. So its
limit is not the deadline: it is moved until the plan it gives keeps the deadline in the draws.
"""

from collections.abc import Callable
from dataclasses import dataclass

from charter.plan.choice.choose import Choice

TRIES = 6
"""Searches with a limit between one that is too tight and one that is too wide. Judgement: some tenths of a second."""
CLOSE = 0.005
"""Limits nearer than this share are not told apart: less than the estimate can tell."""


@dataclass(frozen=True, kw_only=True)
class InTime:
    """A choice, and the limit on the search's sum of p90s that gave it; None without a limit."""

    choice: Choice
    limit_seconds: float | None


def in_time(
    decide: Callable[[float | None], Choice | None],
    drawn_p90: Callable[[Choice], float],
    deadline: float | None,
    earliest: Callable[[], Choice],
) -> InTime | None:
    """Return the choice of `decide` under the widest limit with which `drawn_p90` keeps the deadline, or None.

    `decide(limit)` is the best choice whose sum of p90s keeps a limit; `earliest` the one with the least such sum.
    Where the best choice of all keeps the deadline, it is exact. Else the limit is found by bisection after a first
    guess in proportion, to 0.5 %: a plan with a larger sum of p90s and yet an earlier drawn p90 can be missed.
    """
    free = decide(None)
    if free is None or deadline is None:
        return None if free is None else InTime(choice=free, limit_seconds=None)
    end = drawn_p90(free)
    if end <= deadline:
        return InTime(choice=free, limit_seconds=free.seconds[1] * deadline / end)
    least = earliest()
    low, high = least.seconds[1], free.seconds[1]
    closest: InTime | None = None
    limit = deadline / end * high
    for _ in range(TRIES):
        if not low <= limit < high:
            limit = (low + high) / 2
        choice = decide(limit)
        if choice is not None and drawn_p90(choice) <= deadline:
            closest, low = InTime(choice=choice, limit_seconds=limit), limit
        elif choice is None:
            low = limit
        else:
            high = min(limit, choice.seconds[1])
        if high - low <= CLOSE * high:
            break
        limit = (low + high) / 2
    if closest is not None:
        return closest
    last = decide(least.seconds[1])
    return InTime(choice=last, limit_seconds=least.seconds[1]) if last and drawn_p90(last) <= deadline else None
