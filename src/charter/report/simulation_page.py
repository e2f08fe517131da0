"""One self-contained HTML page of a simulation: figures, where the time goes, and two charts drawn as SVG."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from charter.report.markup import Markup, document, esc, join, section, table
from charter.resilience.expected_time import ExpectedTime
from charter.resilience.scenario import IntervalPoint
from charter.resilience.simulate import SimulationOutcome
from charter.units import format_seconds

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 240, 12, 26
WORDS = {
    "useful": "useful",
    "save": "checkpoints",
    "lost": "lost work",
    "detection": "unnoticed",
    "restart": "restarts",
    "wait": "waiting for machines",
}


def simulation_page(
    *,
    title: str,
    notes: Iterable[str],
    found: SimulationOutcome,
    expected: ExpectedTime,
    points: Sequence[IntervalPoint],
    interval_seconds: float,
    seed: int,
) -> str:
    """The page: closed form beside simulation, buckets, wall times of all runs, useful share over the interval."""
    lines = "".join(f"<li>{esc(note)}</li>" for note in notes)
    chosen = f"a checkpoint every {format_seconds(interval_seconds)} of work; {found.runs:,} runs, seed {seed}"
    body = (
        Markup(f"<h1>{esc(title)}</h1><ul>{lines}<li>{esc(chosen)}</li></ul>"),
        section("How long it takes", _figures(found, expected)),
        section("Where the time goes", _buckets(found, expected)),
        section("Wall time", _histogram(found), note="Runs by wall time; the last bar holds the slowest percent."),
        section(
            "Interval between checkpoints",
            _sweep(points, interval_seconds),
            note="Useful share of the wall time: closed form as a line, simulation as dots, the chosen one filled.",
        ),
    )
    return document(title=f"{title} - Charter simulation", body=join(body), data="{}")


def _figures(found: SimulationOutcome, expected: ExpectedTime) -> Markup:
    rows = [
        (name, format_seconds(form), format_seconds(float(np.mean(seconds))), *map(format_seconds, levels.values()))
        for name, form, seconds in (
            ("wall time", expected.wall_seconds, found.wall_seconds),
            ("billed time", expected.billed_seconds, found.billed_seconds),
            ("lost work", expected.lost_seconds, found.lost_seconds),
        )
        for levels in [found.quantiles(seconds)]
    ]
    counts = found.interruptions.astype(np.float64)
    levels = [f"{value:,.0f}" for value in found.quantiles(counts).values()]
    rows.append(("interruptions", f"{expected.interruptions:,.1f}", f"{np.mean(counts):,.1f}", *levels))
    rows.append(("useful share (ETTR)", f"{expected.useful_share:.1%}", f"{found.ettr:.1%}", "", "", ""))
    return table(("", "closed form", "simulated", "p50", "p90", "p99"), rows, numeric=range(1, 6))


def _buckets(found: SimulationOutcome, expected: ExpectedTime) -> Markup:
    rows = [
        (
            WORDS[name],
            format_seconds(getattr(expected, f"{name}_seconds")),
            format_seconds(seconds),
            f"{seconds / max(found.mean_wall_seconds, 1e-12):.1%}",
        )
        for name, seconds in found.buckets().items()
    ]
    return table(("", "closed form", "simulated", "share"), rows, numeric=(1, 2, 3))


def _histogram(found: SimulationOutcome) -> Markup:
    bins = found.histogram(bins=36)
    most = max(count for _, _, count in bins)
    step = (WIDTH - 2 * LEFT) / len(bins)
    bars = [
        f'<rect x="{LEFT + index * step:.1f}" y="{_height(count / most):.1f}" width="{max(1.0, step - 1.5):.1f}" '
        f'height="{HEIGHT - BOTTOM - _height(count / most):.1f}" fill="var(--accent)">'
        f"<title>{esc(format_seconds(start))} to {esc(format_seconds(end))}: {count:,} runs</title></rect>"
        for index, (start, end, count) in enumerate(bins)
    ]
    return _svg("Histogram of wall times", [*bars, *_ends(format_seconds(bins[0][0]), format_seconds(bins[-1][0]))])


def _sweep(points: Sequence[IntervalPoint], chosen: float) -> Markup:
    if len(points) < 2:
        return Markup("")
    low, high = (math.log(points[index].interval_seconds) for index in (0, -1))

    def x(seconds: float) -> float:
        return LEFT + (math.log(seconds) - low) / (high - low) * (WIDTH - 2 * LEFT)

    path = " ".join(f"{x(point.interval_seconds):.1f},{_height(point.closed_form):.1f}" for point in points)
    line = f'<polyline points="{path}" fill="none" stroke="var(--soft)" stroke-width="1.5"/>'
    dots = [
        f'<circle cx="{x(point.interval_seconds):.1f}" cy="{_height(point.ettr):.1f}" r="4.5" stroke="var(--accent)" '
        f'fill="{"var(--accent)" if math.isclose(point.interval_seconds, chosen) else "var(--card)"}">'
        f"<title>{esc(format_seconds(point.interval_seconds))}: {point.ettr:.1%}</title></circle>"
        for point in points
        if point.ettr is not None
    ]
    ends = _ends(*(format_seconds(points[index].interval_seconds) for index in (0, -1)))
    return _svg("Useful share over the interval between checkpoints", [line, *dots, *ends])


def _height(share: float) -> float:
    return 8 + (1 - share) * (HEIGHT - BOTTOM - 8)


def _ends(left: str, right: str) -> tuple[str, str]:
    where = f'y="{HEIGHT - 8}" fill="var(--soft)" font-size="12"'
    return (
        f'<text x="{LEFT}" {where}>{esc(left)}</text>',
        f'<text x="{WIDTH - LEFT}" {where} text-anchor="end">{esc(right)}</text>',
    )


def _svg(label: str, parts: Iterable[str]) -> Markup:
    frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(label)}" style="width:100%;max-width:720px"'
    return Markup(f"<svg {frame}>{''.join(parts)}</svg>")
