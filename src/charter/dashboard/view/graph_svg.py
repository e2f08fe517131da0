"""The pipeline as a drawing: places for stages and edges, and their SVG. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 8
NUDGES = 12

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class GraphLayout:
    """Positions of nodes and edges, in units of one layer and one row."""

    nodes: Mapping[str, Point]
    """Layer, and row within it: rows of one layer are at least 1 apart."""
    edges: tuple[tuple[str, str, tuple[Point, ...]], ...]
    """From, to, and the points that it passes on its way through the layers between."""
    layers: int
    rows: float


def direct_edges(inputs: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """The edges that no longer way replaces, which say as much with fewer lines.

    >>> direct_edges({"a": [], "b": ["a"], "c": ["a", "b"]})
    [('a', 'b'), ('b', 'c')]
    """
    above: dict[str, set[str]] = {}
    edges = []
    for name, sources in inputs.items():
        stage_sources = [source for source in dict.fromkeys(sources) if source in inputs]
        above[name] = set(stage_sources).union(*(above.get(source, set()) for source in stage_sources))
        for source in stage_sources:
            if not any(source in above.get(other, set()) for other in stage_sources if other != source):
                edges.append((source, name))
    return edges


def layered(inputs: Mapping[str, Sequence[str]]) -> GraphLayout:
    """Nodes on the layer after their last input, ordered so that edges cross little.

    `inputs` says what each node reads, in an order in which inputs come before their readers.
    """
    edges = direct_edges(inputs)
    layer: dict[str, int] = {}
    for name in inputs:
        layer[name] = 1 + max((layer[a] for a, b in edges if b == name), default=-1)
    depth = max(layer.values(), default=-1) + 1
    columns: list[list[str]] = [[] for _ in range(depth)]
    for name in inputs:
        columns[layer[name]].append(name)
    chains = _chains(edges, layer, columns)
    before, after = _neighbours(chains)
    for sweep in range(SWEEPS):
        columns = _ordered(columns, before if sweep % 2 == 0 else after, forward=sweep % 2 == 0)
    rows = _rows(columns, before, after)
    lowest = min(rows.values(), default=0.0)
    at = {name: (float(index), rows[name] - lowest) for index, names in enumerate(columns) for name in names}
    return GraphLayout(
        nodes={name: at[name] for name in inputs},
        edges=tuple((chain[0], chain[-1], tuple(at[name] for name in chain)) for chain in chains),
        layers=depth,
        rows=max((row for _, row in at.values()), default=0.0) + 1,
    )


def _chains(edges: Sequence[tuple[str, str]], layer: Mapping[str, int], columns: list[list[str]]) -> list[list[str]]:
    """Each edge as a chain with one stand-in on every layer that it crosses."""
    chains = []
    for number, (source, target) in enumerate(edges):
        chain = [source]
        for between in range(layer[source] + 1, layer[target]):
            name = f"\x00{number}:{between}"
            columns[between].append(name)
            chain.append(name)
        chains.append([*chain, target])
    return chains


def _neighbours(chains: Sequence[Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            before.setdefault(b, []).append(a)
            after.setdefault(a, []).append(b)
    return before, after


def _ordered(columns: list[list[str]], towards: Mapping[str, Sequence[str]], *, forward: bool) -> list[list[str]]:
    """Every layer sorted by the mean place of its neighbours; nodes without any keep theirs."""
    place = {name: index for names in columns for index, name in enumerate(names)}
    ordered = [list(names) for names in columns]
    for index in range(len(ordered)) if forward else reversed(range(len(ordered))):
        names = ordered[index]

        def mean(name: str) -> float:
            near = towards.get(name, ())
            return sum(place[other] for other in near) / len(near) if near else float(place[name])

        names.sort(key=mean)
        place.update({name: position for position, name in enumerate(names)})
    return ordered


def _rows(
    columns: Sequence[Sequence[str]], before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Rows near the means of the neighbours', in order, at least 1 apart (stand-ins 0.5)."""
    rows = {name: index - (len(names) - 1) / 2 for names in columns for index, name in enumerate(names)}
    for nudge in range(NUDGES):
        for names in columns if nudge % 2 == 0 else reversed(columns):
            wanted = []
            for name in names:
                near = [*before.get(name, ()), *after.get(name, ())]
                wanted.append(sum(rows[other] for other in near) / len(near) if near else rows[name])
            for name, row in zip(names, _apart(names, wanted), strict=True):
                rows[name] = row
    return rows


def _apart(names: Sequence[str], wanted: Sequence[float]) -> list[float]:
    """The wanted rows pushed apart evenly to both sides."""
    down, up = list(wanted), list(wanted)
    for index in range(1, len(names)):
        gap = 0.5 if names[index].startswith("\x00") and names[index - 1].startswith("\x00") else 1.0
        down[index] = max(wanted[index], down[index - 1] + gap)
    for index in reversed(range(len(names) - 1)):
        gap = 0.5 if names[index].startswith("\x00") and names[index + 1].startswith("\x00") else 1.0
        up[index] = min(wanted[index], up[index + 1] - gap)
    middle = [(low + high) / 2 for low, high in zip(up, down, strict=True)]
    for index in range(1, len(names)):
        gap = 0.5 if names[index].startswith("\x00") and names[index - 1].startswith("\x00") else 1.0
        middle[index] = max(middle[index], middle[index - 1] + gap)
    return middle


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of boxes and of the gaps between them, in pixels."""

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
    """Drawing of a graph."""

    width: float
    height: float
    box: Size
    boxes: tuple[Box, ...]
    lines: tuple[tuple[str, str, str], ...]
    """From, to, and the path (the attribute `d` of SVG)."""


def graph_svg(inputs: Mapping[str, Sequence[str]], size: Size) -> Graph:
    """A pipeline's graph; `inputs` says what each stage reads."""
    graph = layered(inputs)
    layer_step = (size.height if size.down else size.width) + size.gap_along
    row_step = (size.width if size.down else size.height) + size.gap_across

    def corner(point: Point) -> Point:
        along, across = point[0] * layer_step, point[1] * row_step
        return (across, along) if size.down else (along, across)

    boxes = tuple(
        Box(name=name, shown=_short(name, size.letters), x=round(corner(at)[0], 1), y=round(corner(at)[1], 1))
        for name, at in graph.nodes.items()
    )
    lines = tuple((a, b, _path([corner(point) for point in points], size)) for a, b, points in graph.edges)
    along = max(0.0, graph.layers * layer_step - size.gap_along)
    across = max(0.0, graph.rows * row_step - size.gap_across)
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
