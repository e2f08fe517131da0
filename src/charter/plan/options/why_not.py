"""The one reason why an option was not taken, in a sentence."""

from charter.physics.terms import Term
from charter.plan.options.option import Option
from charter.plan.physics.fit import Peak
from charter.units import GIB, format_seconds, format_usd

PARTS_NAMED = 4


def does_not_fit(peak: Peak, capacity_bytes: float) -> str:
    """`needs 96.2 GiB of 74.4 usable: optimizer 48.2, parameters 24.1, ...; largest: policy: optimizer 48.2`."""
    parts = sorted(peak.by_part().items(), key=lambda item: -item[1])[:PARTS_NAMED]
    named = ", ".join(f"{name.replace('_', ' ')} {value / GIB:.1f}" for name, value in parts)
    largest = largest_term(peak)
    tensor = f"largest: {largest.name} {largest.value / GIB:.1f}"
    return f"needs {peak.total_bytes / GIB:.1f} GiB of {capacity_bytes / GIB:.1f} usable: {named}; {tensor}"


def largest_term(peak: Peak) -> Term:
    """The biggest single term: what overflows."""
    return max(peak.terms, key=lambda term: term.value)


NEARLY = 0.95
"""The least share of a cost that is nearly that cost, as the objective `cheapest` takes it."""


def loses_to(option: Option, chosen: Option) -> str:
    """Dearer, or slower, with both figures: the medians that the table prints, not means, which spot waits raise."""
    mine, best = option.usd, chosen.usd
    times = f"{format_seconds(option.seconds.p50)}, chosen {format_seconds(chosen.seconds.p50)}"
    if mine is None or best is None:
        return f"slower: {times}"
    prices = f"{format_usd(mine.p50)}, chosen {format_usd(best.p50)}"
    if mine.p50 > best.p50:
        return f"dearer: {prices} (time {times})"
    tied = "slower for nearly the same money" if mine.p50 >= NEARLY * best.p50 else "slower"
    return f"{tied}: {times} (cost {prices})"
