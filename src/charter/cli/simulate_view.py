"""How a simulation is shown: tables and bars on a terminal, one JSON object for machines."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from charter.cli.common import write_asked
from charter.cli.tables import console, plain_table
from charter.report.simulation_page import WORDS, simulation_page
from charter.resilience.outcome import BUCKETS, Outcome
from charter.units import SECONDS_PER_HOUR, format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from charter.cli.simulate_question import Asked
    from charter.resilience.expected_time import ExpectedTime
    from charter.resilience.scenario import SweepPoint

BAR = 40
BLOCKS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = BAR) -> str:
    """A horizontal bar of a share of the width, to an eighth of a character.

    >>> bar(0.5, 4), bar(0.3, 4)
    ('██', '█▎')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def answer_json(asked: "Asked", found: Outcome, points: "Sequence[SweepPoint]", *, seed: int) -> dict[str, object]:
    """Everything that is printed, in seconds; null for what has no number."""
    scenario = asked.scenario
    form = scenario.closed_form(asked.interval_seconds)
    job = scenario.interruptions
    return {
        "title": asked.title,
        "notes": list(asked.notes),
        "inputs": {
            "accelerators": asked.accelerators,
            "num_nodes": scenario.num_nodes,
            "useful_seconds": scenario.useful_seconds,
            "interval_seconds": asked.interval_seconds,
            "save_seconds": scenario.save_seconds,
            "persist_seconds": scenario.persist_seconds,
            "restart_seconds": scenario.restart_seconds,
            "detection_seconds": job.detection_seconds,
            "mean_between_interruptions_seconds": _finite(job.mean_between_failures_seconds),
            "seed": seed,
        },
        "closed_form": {
            "wall_seconds": _finite(form.wall_seconds),
            "billed_seconds": _finite(form.billed_seconds),
            "interruptions": _finite(form.interruptions),
            "ettr": form.useful_share,
            "buckets_seconds": {name: _finite(getattr(form, f"{name}_seconds")) for name in BUCKETS},
        },
        "simulation": found.to_json(),
        "usd": None if _usd(asked, found) is None else _usd(asked, found),
        "histogram": [{"from_seconds": a, "to_seconds": b, "runs": n} for a, b, n in found.histogram()],
        "sweep": [
            {"interval_seconds": p.interval_seconds, "ettr": p.ettr, "closed_form_ettr": p.closed_form} for p in points
        ],
    }


def write_page(asked: "Asked", found: Outcome, points: "Sequence[SweepPoint]", *, seed: int, path: Path) -> None:
    """The same as one HTML page."""
    page = simulation_page(
        title=asked.title,
        notes=asked.notes,
        found=found,
        expected=asked.scenario.closed_form(asked.interval_seconds),
        points=points,
        interval_seconds=asked.interval_seconds,
        seed=seed,
    )
    write_asked("--html", path, page)


def print_answer(asked: "Asked", found: Outcome, points: "Sequence[SweepPoint]", *, seed: int) -> None:
    """Tables and bars."""
    out = console()
    form = asked.scenario.closed_form(asked.interval_seconds)
    out.print(asked.title)
    for note in asked.notes:
        out.print(f"  {note}")
    save = f"save {format_seconds(asked.scenario.save_seconds)}"
    if asked.scenario.persist_seconds:
        save += f" of stall, durable {format_seconds(asked.scenario.persist_seconds)} later"
    out.print(f"  a checkpoint every {format_seconds(asked.interval_seconds)} of work, {save}")
    out.print(f"  {found.runs:,} runs, seed {seed}\n")
    _print_figures(out, asked, found, form)
    _print_buckets(out, found, form)
    _print_histogram(out, found)
    _print_sweep(out, points, asked.interval_seconds)


def _print_figures(out: "Console", asked: "Asked", found: Outcome, form: "ExpectedTime") -> None:
    table = plain_table(*((name, "left" if not name else "right") for name in ("", *COLUMNS)))
    for name, expected, seconds in (
        ("wall time", form.wall_seconds, found.wall_seconds),
        ("billed time", form.billed_seconds, found.billed_seconds),
        ("lost work", form.lost_seconds, found.lost_seconds),
    ):
        levels = [format_seconds(value) for value in found.quantiles(seconds).values()]
        table.add_row(name, format_seconds(expected), format_seconds(float(np.mean(seconds))), *levels)
    counts = found.interruptions.astype(np.float64)
    levels = [f"{value:,.0f}" for value in found.quantiles(counts).values()]
    table.add_row("interruptions", f"{form.interruptions:,.1f}", f"{np.mean(counts):,.1f}", *levels)
    table.add_row("useful share (ETTR)", f"{form.useful_share:.1%}", f"{found.ettr:.1%}", "", "", "")
    billed = form.billed_seconds
    share = form.useful_seconds / billed if billed > 0 else 1.0
    table.add_row("  of billed time", f"{share:.1%}", f"{found.ettr_billed:.1%}", "", "", "")
    money = _usd(asked, found)
    if money is not None:
        table.add_row("bill", "", format_usd(money["mean"]), *(format_usd(money[q]) for q in ("p50", "p90", "p99")))
    out.print(table)


FIGURES_WIDTH = 58
COLUMNS = ("closed form", "simulated", "p50", "p90", "p99")


def _bar_width(out: "Console") -> int:
    """What a terminal has left beside the columns of figures, at most `BAR`."""
    return max(8, min(BAR, out.width - FIGURES_WIDTH))


def _print_buckets(out: "Console", found: Outcome, form: "ExpectedTime") -> None:
    out.print("\nWhere the time goes")
    table = plain_table(
        ("", "left"), ("closed form", "right"), ("simulated", "right"), ("share", "right"), ("", "left")
    )
    for name, seconds in found.buckets().items():
        share = seconds / found.mean_wall_seconds if found.mean_wall_seconds else 0.0
        expected = format_seconds(getattr(form, f"{name}_seconds"))
        table.add_row(WORDS[name], expected, format_seconds(seconds), f"{share:.1%}", bar(share, _bar_width(out)))
    out.print(table)


def _print_histogram(out: "Console", found: Outcome) -> None:
    bins = found.histogram()
    if len(bins) == 1:
        return
    out.print("\nWall time, runs")
    most = max(count for _, _, count in bins)
    table = plain_table(("", "right"), ("", "right"), ("", "left"))
    for start, _, count in bins:
        table.add_row(format_seconds(start), f"{count:,}", bar(count / most, _bar_width(out)))
    out.print(table)


def _print_sweep(out: "Console", points: "Sequence[SweepPoint]", chosen: float) -> None:
    if len(points) < 2:
        return
    out.print("\nUseful share over the interval between checkpoints")
    best = max((point.ettr or 0.0 for point in points), default=0.0)
    table = plain_table(("interval", "right"), ("closed form", "right"), ("simulated", "right"), ("", "left"))
    for point in points:
        mark = " <- chosen" if math.isclose(point.interval_seconds, chosen) else ""
        shown = "no progress" if point.ettr is None else f"{point.ettr:.1%}"
        length = bar((point.ettr or 0.0) / best, _bar_width(out)) if best else ""
        table.add_row(format_seconds(point.interval_seconds), f"{point.closed_form:.1%}", shown, length + mark)
    out.print(table)


def _usd(asked: "Asked", found: Outcome) -> dict[str, float] | None:
    price = asked.usd_per_accelerator_hour
    if price is None:
        return None
    hourly = price * asked.accelerators / SECONDS_PER_HOUR
    levels = found.quantiles(found.billed_seconds)
    return {"mean": hourly * found.mean_billed_seconds} | {name: hourly * value for name, value in levels.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
