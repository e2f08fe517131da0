"""Training curves of several runs in one panel: the same metric of the stages that answer each other. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.report.data import CURVES, thinned
from charter.report.run_compare.read import Side
from charter.tracking.jsonl import series


@dataclass(frozen=True, kw_only=True)
class CurveLine:
    """One metric of one stage of one run; long ones are means of equal numbers of steps."""

    side: int
    stage: str
    points: tuple[tuple[int, float], ...]
    mean_of: int


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """One metric of the stages that answer each other."""

    title: str
    metric: str
    lines: tuple[CurveLine, ...]

    @property
    def is_equal(self) -> bool:
        """Return True if several runs have the same curve: nothing to compare."""
        return len(self.lines) > 1 and len({line.points for line in self.lines}) == 1


def curve_panels(sides: Sequence[Side]) -> tuple[CurvePanel, ...]:
    """A panel per metric and group of stages; a metric that never changes is left out."""
    return tuple(_panels(sides))


def stage_groups(sides: Sequence[Side]) -> list[tuple[str | None, ...]]:
    """Stages that answer each other, one name per run: of the same name, else the only ones of a kind that are left.

    The order is that of the first run; a stage that no other run has an answer to stands alone.
    """
    kinds = [{stage.name: stage.kind for stage in side.view.stages} for side in sides]
    names = list(dict.fromkeys(name for table in kinds for name in table))
    shared = [name for name in names if sum(name in table for table in kinds) > 1]
    groups: dict[str, tuple[str | None, ...]] = {
        name: tuple(name if name in table else None for table in kinds) for name in shared
    }
    for name in names:
        kind = next(table[name] for table in kinds if name in table)
        left = [[other for other, of in table.items() if of == kind and other not in shared] for table in kinds]
        if name in shared or any(name in group for group in groups.values()):
            continue
        alone = all(len(unmatched) <= 1 for unmatched in left) and not any(
            kinds[0].get(other) == kind for other in shared if other in kinds[0]
        )
        groups[name] = (
            tuple(unmatched[0] if unmatched else None for unmatched in left)
            if alone
            else tuple(name if name in table else None for table in kinds)
        )
    order = {name: index for index, name in enumerate(names)}
    return [groups[name] for name in sorted(groups, key=lambda name: order[name])]


def _panels(sides: Sequence[Side]) -> Iterator[CurvePanel]:
    for group in stage_groups(sides):
        title = " / ".join(dict.fromkeys(name for name in group if name is not None))
        for metric in CURVES:
            lines = tuple(_lines(sides, group, metric))
            if lines:
                yield CurvePanel(title=title, metric=metric, lines=lines)


def _lines(sides: Sequence[Side], group: Sequence[str | None], metric: str) -> Iterator[CurveLine]:
    for index, (side, name) in enumerate(zip(sides, group, strict=True)):
        files = None if name is None else side.run.stages.get(name)
        points = [] if files is None else list(series(files.metrics, metric))
        if name is not None and len({value for _, value in points}) > 1:
            drawn: Mapping[str, Any] = thinned(points)
            yield CurveLine(
                side=index,
                stage=name,
                points=tuple((int(step), float(value)) for step, value in drawn["points"]),
                mean_of=int(drawn["mean_of"]),
            )
