"""Figures that belong on a curve: how often a model is right where it is so sure, what was gained at which KL. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from charter.report.markup import chart, join
from charter.report.read import RunFiles
from charter.report.results import all_results

HEIGHT = 260
"""Pixels of one curve."""
_SHOWN = ("low", "high", "n", "label")


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Style of the points of one sort."""

    title: str
    x: str
    y: str
    diagonal: bool = False
    """Whether x and y are the same measure, so that points on the diagonal are right."""


RELIABILITY, REWARD, QUALITY = (
    _Kind(title="Reliability", x="how sure the model is", y="how often it is right", diagonal=True),
    _Kind(title="Reward over training", x="KL, nats per answer", y="reward"),
    _Kind(title="Quality over training", x="KL, nats per answer", y="share won"),
)


def is_point(figure: Mapping[str, Any]) -> bool:
    """Return True if a figure is a point of a curve, and not a row of its own in charts."""
    return figure.get("at") is not None


def measured_curves(run: RunFiles) -> list[dict[str, Any]]:
    """Every curve that evaluation stages measured, with its points in the order of their places."""
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    kinds: dict[tuple[str, str], _Kind] = {}
    for stage, results in all_results(run):
        for figure in results.get("figures", []):
            if is_point(figure) and figure.get("value") is not None:
                group, kind = _curve_of(str(figure.get("key") or ""))
                curve = (stage, f"{kind.title}: {group}")
                kinds[curve] = kind
                point = {"x": figure["at"], "y": figure["value"]}
                points.setdefault(curve, []).append(point | {name: figure.get(name) for name in _SHOWN})
    return training_curves(run) + [
        {
            "title": curve[1],
            "x": kinds[curve].x,
            "y": kinds[curve].y,
            "diagonal": kinds[curve].diagonal,
            "points": sorted(marks, key=lambda point: float(point["x"])),
        }
        for curve, marks in points.items()
    ]


MOST_POINTS = 60
"""Of a curve over training; more lie on each other."""


def training_curves(run: RunFiles) -> list[dict[str, Any]]:
    """Reward and gold over KL, or over rollouts where no KL is measured, of stages that have a gold."""
    panels = []
    for name, stage in run.stages.items():
        gold = ((stage.job or {}).get("spec") or {}).get("gold")
        rows = [point for point in stage.metrics if gold and f"reward_{gold}_mean" in point.values]
        has_kl = all("kl" in point.values for point in rows)
        for title, metric in (("reward", "reward_mean"), (f"gold {gold}", f"reward_{gold}_mean")):
            points = [
                {
                    "x": point.values["kl"] if has_kl else point.step,
                    "y": point.values[metric],
                    "low": point.values[metric],
                    "high": point.values[metric],
                    "n": int(point.values.get("episodes", 0)),
                    "label": f"rollout {point.step}",
                }
                for point in rows[:: max(1, -(-len(rows) // MOST_POINTS))]
                if metric in point.values
            ]
            if points:
                x = "KL, nats per answer" if has_kl else "rollout"
                points.sort(key=lambda point: float(point["x"]))
                panels.append({"title": f"{name}: {title}", "x": x, "y": title, "diagonal": False, "points": points})
    return panels


def measured_charts(panels: list[dict[str, Any]]) -> str:
    """Places for the curves."""
    titles = [str(panel["title"]) for panel in panels]
    return join(
        chart("measured", label=f"{title}, with 95 % intervals", height=HEIGHT, caption=title, index=index)
        for index, title in enumerate(titles)
    )


def _curve_of(key: str) -> tuple[str, _Kind]:
    """The curve that a point belongs to, by its key.

    >>> _curve_of("pm_calibration.also.pm2.bin.80")[0], _curve_of("goodhart.step_4.quality")[1].title
    ('also.pm2', 'Quality over training')
    """
    parts = key.split(".")
    if "bin" in parts:
        return ".".join(parts[1 : parts.index("bin")]), RELIABILITY
    return parts[0], QUALITY if parts[-1] == "quality" else REWARD
