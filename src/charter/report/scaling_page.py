"""A fitted scaling law as one self-contained HTML page: the curve with its band and the runs, and the tables."""

import math
from collections.abc import Sequence
from importlib.resources import files

from charter.physics.scaling.study import CurvePoint, Study, constants_of, curve
from charter.report.markup import Markup, esc, join, section, table

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860.0, 400.0, 60.0, 16.0, 16.0, 44.0
"""Of the drawing and its margins, in the units of its view box."""
STYLE = (
    "svg{width:100%;height:auto}.band{fill:#4a7fd6;opacity:.22}.law{fill:none;stroke:#4a7fd6;stroke-width:2}"
    ".run{fill:#e08a2c;fill-opacity:.75}.axis{stroke:currentColor;opacity:.35}.end{stroke:currentColor;"
    "stroke-dasharray:4 4;opacity:.6}svg text{fill:currentColor;font:12px system-ui,sans-serif}"
)


def scaling_html(found: Study, *, source: str) -> str:
    """The page of a study; nothing is loaded and no script runs."""
    css = files("charter.report.assets").joinpath("report.css").read_text(encoding="utf-8")
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
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Scaling law: {esc(source)}</title><style>{css}{STYLE}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


def _drawing(found: Study) -> str:
    points = curve(found, per_decade=8)
    runs = [(run.compute_flops, run.loss) for run in found.runs]
    across = [item.compute_flops for item in points]
    heights = [value for item in points for value in (item.loss.p10, item.loss.p90)] + [loss for _, loss in runs]
    x_low, x_high = math.log10(min(across)), math.log10(max(across))
    y_low, y_high = min(heights), max(heights)

    def x(compute: float) -> float:
        return LEFT + (math.log10(compute) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (y_high - loss) / max(y_high - y_low, 1e-9) * (HEIGHT - TOP - BOTTOM)

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
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="Loss by compute">'
        f"{_axes(points, x_low, x_high, y_low, y_high)}"
        f'<polygon class="band" points="{path(band)}"/>'
        f'<polyline class="law" points="{path([(item.compute_flops, item.loss.p50) for item in points])}"/>'
        f'<line class="end" x1="{end:.1f}" x2="{end:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>{marks}</svg>'
    )


def _axes(points: Sequence[CurvePoint], x_low: float, x_high: float, y_low: float, y_high: float) -> str:
    drawn = []
    for decade in range(math.ceil(x_low - 1e-9), math.floor(x_high + 1e-9) + 1):
        at = LEFT + (decade - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        drawn.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        drawn.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">1e{decade}</text>')
    for index in range(5):
        loss = y_low + (y_high - y_low) * index / 4
        at = TOP + (y_high - loss) / max(y_high - y_low, 1e-9) * (HEIGHT - TOP - BOTTOM)
        drawn.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
    drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">operations (6 N D)</text>')
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
