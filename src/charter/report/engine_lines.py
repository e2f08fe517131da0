"""What other engines could do on the accelerators of each stage, as lines of text."""

from collections.abc import Iterator

from charter.plan.plan import Plan
from charter.units import GIB, format_seconds


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
