"""One self-contained HTML page each: a fitted scaling law, its curve with its band and the runs; and a simulation."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from charter.physics.scaling.study import CurvePoint, Study, constants_of, curve
from charter.report.markup import Markup, document, esc, join, section, still_document, table
from charter.resilience.expected_time import ExpectedTime
from charter.resilience.scenario import IntervalPoint
from charter.resilience.simulate import SimulationOutcome
from charter.units import format_seconds

CURVE_WIDTH, CURVE_HEIGHT, CURVE_LEFT, RIGHT, TOP, CURVE_BOTTOM = 860.0, 400.0, 60.0, 16.0, 16.0, 44.0
"""Of the drawing and its margins, in the units of its view box."""
STYLE = (
    "svg{width:100%;height:auto}.band{fill:#4a7fd6;opacity:.22}.law{fill:none;stroke:#4a7fd6;stroke-width:2}"
    ".run{fill:#e08a2c;fill-opacity:.75}.axis{stroke:currentColor;opacity:.35}.end{stroke:currentColor;"
    "stroke-dasharray:4 4;opacity:.6}svg text{fill:currentColor;font:12px system-ui,sans-serif}"
)


def scaling_html(found: Study, *, source: str) -> str:
    """The page of a study; nothing is loaded and no script runs."""
    law = found.fitted.law
    caption = f"{source}; form {law.form}; a run lies {found.fitted.noise:.2%} from the law (standard deviation)."
    key = "Line: the law's best size; band: p10 to p90; points: runs. Right of the dashed line nothing was fitted."
    body = join(
        (
            f"<h1>Scaling law</h1><p>{esc(caption)}</p>",
            section("Best loss by compute", _drawing(found), note=key),
            section("Constants", _constants(found)),
            section("The largest runs, predicted from the smaller ones", _held_back(found)),
        )
    )
    return still_document(title=f"Scaling law: {source}", body=body, style=STYLE)


def _drawing(found: Study) -> str:
    points = curve(found, per_decade=8)
    runs = [(run.compute_flops, run.loss) for run in found.runs]
    across = [item.compute_flops for item in points]
    heights = [value for item in points for value in (item.loss.p10, item.loss.p90)] + [loss for _, loss in runs]
    x_low, x_high = math.log10(min(across)), math.log10(max(across))
    y_low, y_high = min(heights), max(heights)

    def x(compute: float) -> float:
        return CURVE_LEFT + (math.log10(compute) - x_low) / (x_high - x_low) * (CURVE_WIDTH - CURVE_LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (y_high - loss) / max(y_high - y_low, 1e-9) * (CURVE_HEIGHT - TOP - CURVE_BOTTOM)

    def path(pairs: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x(compute):.1f},{y(loss):.1f}" for compute, loss in pairs)

    band = [(item.compute_flops, item.loss.p10) for item in points]
    band += [(item.compute_flops, item.loss.p90) for item in reversed(points)]
    end = x(found.fitted.fitted_on.compute_flops[1])
    marks = "".join(
        f'<circle class="run" cx="{x(run.compute_flops):.1f}" cy="{y(run.loss):.1f}" r="4"><title>'
        f"{run.num_parameters:.3g} parameters, {run.num_tokens:.3g} tokens: {run.loss:.3f}</title></circle>"
        for run in found.runs
    )
    return (
        f'<svg viewBox="0 0 {CURVE_WIDTH:.0f} {CURVE_HEIGHT:.0f}" role="img" aria-label="Loss by compute">'
        f"{_axes(points, x_low, x_high, y_low, y_high)}"
        f'<polygon class="band" points="{path(band)}"/>'
        f'<polyline class="law" points="{path([(item.compute_flops, item.loss.p50) for item in points])}"/>'
        f'<line class="end" x1="{end:.1f}" x2="{end:.1f}" y1="{TOP}" y2="{CURVE_HEIGHT - CURVE_BOTTOM}"/>{marks}</svg>'
    )


def _axes(points: Sequence[CurvePoint], x_low: float, x_high: float, y_low: float, y_high: float) -> str:
    drawn = []
    for decade in range(math.ceil(x_low - 1e-9), math.floor(x_high + 1e-9) + 1):
        at = CURVE_LEFT + (decade - x_low) / (x_high - x_low) * (CURVE_WIDTH - CURVE_LEFT - RIGHT)
        drawn.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{CURVE_HEIGHT - CURVE_BOTTOM}"/>')
        drawn.append(
            f'<text x="{at:.1f}" y="{CURVE_HEIGHT - CURVE_BOTTOM + 18}" text-anchor="middle">1e{decade}</text>'
        )
    for index in range(5):
        loss = y_low + (y_high - y_low) * index / 4
        at = TOP + (y_high - loss) / max(y_high - y_low, 1e-9) * (CURVE_HEIGHT - TOP - CURVE_BOTTOM)
        drawn.append(f'<line class="axis" x1="{CURVE_LEFT}" x2="{CURVE_WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(f'<text x="{CURVE_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
    drawn.append(f'<text x="{CURVE_WIDTH / 2}" y="{CURVE_HEIGHT - 6}" text-anchor="middle">operations (6 N D)</text>')
    return "".join(drawn)


def _constants(found: Study) -> Markup:
    rows = []
    for name in constants_of(found.fitted.law.form):
        band = found.fitted.band(lambda law, name=name: float(getattr(law, name)))  # type: ignore[misc]
        rows.append((name.replace("_", " "), *(f"{value:.4g}" for value in (band.p50, band.p10, band.p90))))
    return table(("constant", "value", "p10", "p90"), rows, numeric=(1, 2, 3))


def _held_back(found: Study) -> Markup:
    if not found.held_back:
        return Markup("<p>Too few runs to hold any back.</p>")
    rows = [
        (
            f"{item.run.num_parameters:.3g}",
            f"{item.run.num_tokens:.3g}",
            f"{item.extrapolation:.1f}",
            f"{item.run.loss:.3f}",
            f"{item.predicted:.3f} ({item.p10:.3f} - {item.p90:.3f})",
            f"{item.error:+.2%}",
        )
        for item in found.held_back
    ]
    heading = ("parameters", "tokens", "times the compute", "measured", "predicted (p10 - p90)", "error")
    return table(heading, rows, numeric=range(len(heading)))


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
        section("How long it takes", table(("", *FIGURES), figure_rows(found, expected), numeric=range(1, 6))),
        section("Where the time goes", _buckets(found, expected)),
        section("Wall time", _histogram(found), note="Runs by wall time; the last bar holds the slowest percent."),
        section(
            "Interval between checkpoints",
            _sweep(points, interval_seconds),
            note="Useful share of the wall time: closed form as a line, simulation as dots, the chosen one filled.",
        ),
    )
    return document(title=f"{title} - Charter simulation", body=join(body), data="{}")


FIGURES = ("closed form", "simulated", "p50", "p90", "p99")


def figure_rows(found: SimulationOutcome, expected: ExpectedTime) -> list[tuple[str, ...]]:
    """Names and cells of `FIGURES`: times, interruptions and useful shares, as the page and the terminal show them."""
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
    of_billed = expected.useful_seconds / expected.billed_seconds if expected.billed_seconds > 0 else 1.0
    rows.append(("of billed time", f"{of_billed:.1%}", f"{found.ettr_billed:.1%}", "", "", ""))
    return rows


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
