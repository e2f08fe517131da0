"""Other engines on the accelerators of each stage, with time and money, as lines of text."""

from collections.abc import Iterator

from charter.plan.plan import Plan
from charter.spec.stage import NATIVE
from charter.units import GIB, format_seconds, format_usd

WORTH_SAYING = 0.9
"""Share of the native engine's work time, from which on another engine is named: estimates differ by as much."""


def engine_lines(plan: Plan) -> Iterator[str]:
    """A block per stage that was asked about (`--any-engine`); nothing otherwise."""
    for stage in plan.stages:
        if not stage.other_engines:
            continue
        option = stage.option
        work = format_seconds(option.overhead.useful_seconds)
        yield f"{stage.name}: {option.engine} {option.layout_label}, {work} of work on {option.label}"
        for other in stage.other_engines:
            yield (
                f"  {other.engine}: {other.layout}, {format_seconds(other.seconds)} ({other.ratio - 1:+.0%}), "
                f"{other.peak_bytes / GIB:.1f} GiB"
            )


def engine_line(plan: Plan) -> str:
    """Return one line on what the quickest other engine of each native stage would save; empty where nothing is."""
    saved, names = 0.0, []
    for stage in plan.stages:
        quickest = next(iter(stage.other_engines), None)
        if stage.option.engine != NATIVE or quickest is None or quickest.ratio > WORTH_SAYING:
            continue
        share = 1 - quickest.ratio
        saved += share * (stage.compute_usd.p50 / 1e6 if stage.compute_usd is not None else 0.0)
        names.append(f"{quickest.engine} for {stage.name} -{share:.0%}")
    if not names:
        return ""
    total = "" if plan.usd is None else f" of {format_usd(plan.usd.p50 / 1e6)}"
    money = f"would save about {format_usd(saved)}{total}: " if saved else ""
    return (
        f"Other engines {money}{', '.join(names)} of the work, on the same accelerators, without resuming to the bit; "
        "--any-engine shows them, `charter artifacts export` hands a stage over; with `exact: record` and `engines:` "
        "the plan chooses."
    )
