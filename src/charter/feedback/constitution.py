"""The constitution: principles with a critique, a revision and a comparison instruction each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.errors import DataError, SpecError
from charter.spec.yaml_source import kind_of, read_document

SCHEMA = "charter.constitution/v1"
WORDINGS = ("critique", "revision", "compare")
"""What a principle says to a model, one text each."""
_DRAW_RANGE = 2**63


@dataclass(frozen=True, kw_only=True)
class Principle:
    """One principle of a constitution."""

    id: str
    critique: str
    revision: str
    compare: str
    weight: float = 1.0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Constitution:
    """A named list of principles."""

    name: str
    version: str
    principles: tuple[Principle, ...]

    def draw(self, seed: int, *parts: str | int) -> Principle:
        """The principle for one purpose: a weighted draw that depends on the seed and the parts alone."""
        return _drawn(self.principles, draw_seed(seed, "principle", *parts))

    def draw_many(self, count: int, seed: int, *parts: str | int) -> tuple[Principle, ...]:
        """Several principles for one purpose, none of them twice: each is drawn by weight among those still left.

        The first one is what `draw` gives, so that asking for more adds to what there was. It needs that many.
        """
        if not 1 <= count <= len(self.principles):
            raise DataError(
                f"{count} different principles were asked for, the constitution {self.name!r} has "
                f"{len(self.principles)}; ask for 1 to {len(self.principles)} per pair, or write more principles"
            )
        left, drawn = list(self.principles), [self.draw(seed, *parts)]
        left.remove(drawn[0])
        for turn in range(1, count):
            drawn.append(_drawn(left, draw_seed(seed, "another principle", turn, *parts)))
            left.remove(drawn[-1])
        return tuple(drawn)


def load_constitution(path: Path) -> Constitution:
    """Read and check a constitution; all that is wrong with it is said at once."""
    return constitution_of(read_constitution_file(path), origin=str(path), name=path.stem)


def constitution_of(raw: Mapping[str, Any], *, origin: str, name: str = "") -> Constitution:
    """The constitution that the values of a file make; `name` stands in for one that the file does not give."""
    problems: list[str] = []
    principles = tuple(
        principle for index, item in enumerate(raw["principles"]) if (principle := _principle(index, item, problems))
    )
    repeated = sorted({item.id for item in principles if sum(other.id == item.id for other in principles) > 1})
    problems += [f"principle id {name!r} is used twice" for name in repeated]
    if not principles:
        problems.append("no principle")
    if problems:
        raise DataError(f"{origin}: " + "; ".join(problems))
    return Constitution(name=str(raw.get("name", name)), version=str(raw.get("version", "")), principles=principles)


def read_constitution_file(path: Path) -> Mapping[str, Any]:
    """The values of a constitution file, with a list `principles` of whatever it holds; for `load` and for lint.

    Read as strictly as `charter.yaml`: a key given twice, a tag, an alias that unfolds without end are refused.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such constitution; `charter init` writes an example")
    try:
        raw = read_document(path).value
    except SpecError as error:
        raise DataError(f"{path}: not valid YAML: {error}") from None
    if raw.get("schema") != SCHEMA or not isinstance(raw.get("principles"), list):
        raise DataError(f"{path}: expected `schema: {SCHEMA}` and a list `principles`")
    return raw


def _drawn(principles: Sequence[Principle], number: int) -> Principle:
    """The principle at a 63-bit number, taken as a point on the line of all weights."""
    point = number / _DRAW_RANGE * sum(item.weight for item in principles)
    for principle in principles:
        point -= principle.weight
        if point < 0:
            return principle
    return principles[-1]


def _principle(index: int, item: Any, problems: list[str]) -> Principle | None:
    found = item if isinstance(item, dict) else {}
    missing = [name for name in ("id", *WORDINGS) if not isinstance(found.get(name), str)]
    if missing:
        problems.append(f"principle {index + 1} lacks {', '.join(missing)}")
        return None
    weight, tags = found.get("weight", 1.0), found.get("tags", [])
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        problems.append(f"principle {found['id']!r}: weight is {kind_of(weight)}, not a positive number")
        return None
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        problems.append(f"principle {found['id']!r}: tags must be a list of words, like [honesty, harm]")
        return None
    return Principle(
        id=found["id"],
        critique=found["critique"],
        revision=found["revision"],
        compare=found["compare"],
        weight=float(weight),
        tags=tuple(tags),
    )
