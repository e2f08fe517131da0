"""The pipeline graph in pixels: boxes and curves for a template to draw, along the page or down it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charter.dashboard.view.graph_layout import Point, layered


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large boxes are and how far they stand apart, in pixels."""

    width: float
    height: float
    gap_along: float
    """Between layers."""
    gap_across: float
    """Between rows of a layer."""
    down: bool
    """Layers one below the other, for a narrow screen."""
    letters: int
    """Of a name that fit into a box."""


WIDE = Size(width=144, height=66, gap_along=28, gap_across=16, down=False, letters=12)
NARROW = Size(width=106, height=46, gap_along=24, gap_across=8, down=True, letters=12)


@dataclass(frozen=True, kw_only=True)
class Box:
    """One node."""

    name: str
    shown: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What is drawn."""

    width: float
    height: float
    box: Size
    boxes: tuple[Box, ...]
    lines: tuple[tuple[str, str, str], ...]
    """From, to, and the path (the attribute `d` of SVG)."""


def graph_svg(inputs: Mapping[str, Sequence[str]], size: Size) -> Graph:
    """A pipeline's graph; `inputs` says what each stage reads."""
    found = layered(inputs)
    layer_step = (size.height if size.down else size.width) + size.gap_along
    row_step = (size.width if size.down else size.height) + size.gap_across

    def corner(point: Point) -> Point:
        along, across = point[0] * layer_step, point[1] * row_step
        return (across, along) if size.down else (along, across)

    boxes = tuple(
        Box(name=name, shown=_short(name, size.letters), x=round(corner(at)[0], 1), y=round(corner(at)[1], 1))
        for name, at in found.nodes.items()
    )
    lines = tuple((a, b, _path([corner(point) for point in points], size)) for a, b, points in found.edges)
    along = max(0.0, found.layers * layer_step - size.gap_along)
    across = max(0.0, found.rows * row_step - size.gap_across)
    width, height = (across, along) if size.down else (along, across)
    return Graph(width=round(width + 2, 1), height=round(height + 2, 1), box=size, boxes=boxes, lines=lines)


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _path(corners: Sequence[Point], size: Size) -> str:
    """A smooth line from the far side of the first box, through the middles between, to the near side of the last."""
    (x, y), middle_w, middle_h = corners[0], size.width / 2, size.height / 2
    here = (x + middle_w, y + size.height) if size.down else (x + size.width, y + middle_h)
    parts = [f"M{here[0]:.1f} {here[1]:.1f}"]
    for number, (x, y) in enumerate(corners[1:], start=1):
        last = number == len(corners) - 1
        entry = (x + middle_w, y) if size.down else (x, y + middle_h)
        parts.append(_bend(here, entry, size.down))
        here = entry
        if not last:
            here = (x + middle_w, y + size.height) if size.down else (x + size.width, y + middle_h)
            parts.append(f"L{here[0]:.1f} {here[1]:.1f}")
    return "".join(parts)


def _bend(a: Point, b: Point, down: bool) -> str:
    if down:
        middle = (a[1] + b[1]) / 2
        return f"C{a[0]:.1f} {middle:.1f} {b[0]:.1f} {middle:.1f} {b[0]:.1f} {b[1]:.1f}"
    middle = (a[0] + b[0]) / 2
    return f"C{middle:.1f} {a[1]:.1f} {middle:.1f} {b[1]:.1f} {b[0]:.1f} {b[1]:.1f}"
