"""The constitution: principles with a critique, a revision and a comparison instruction each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from charter.artifacts.draws import draw_seed
from charter.errors import DataError

SCHEMA = "charter.constitution/v1"
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
        point = draw_seed(seed, "principle", *parts) / _DRAW_RANGE * sum(item.weight for item in self.principles)
        for principle in self.principles:
            point -= principle.weight
            if point < 0:
                return principle
        return self.principles[-1]


def load_constitution(path: Path) -> Constitution:
    """Read and check a constitution; all that is wrong with it is said at once."""
    if not path.is_file():
        raise DataError(f"{path}: no such constitution; `charter init` writes an example")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or not isinstance(raw.get("principles"), list):
        raise DataError(f"{path}: expected `schema: {SCHEMA}` and a list `principles`")
    problems: list[str] = []
    principles = tuple(
        principle for index, item in enumerate(raw["principles"]) if (principle := _principle(index, item, problems))
    )
    repeated = sorted({item.id for item in principles if sum(other.id == item.id for other in principles) > 1})
    problems += [f"principle id {name!r} is used twice" for name in repeated]
    if not principles:
        problems.append("no principle")
    if problems:
        raise DataError(f"{path}: " + "; ".join(problems))
    return Constitution(
        name=str(raw.get("name", path.stem)), version=str(raw.get("version", "")), principles=principles
    )


def _principle(index: int, item: Any, problems: list[str]) -> Principle | None:
    found = item if isinstance(item, dict) else {}
    missing = [name for name in ("id", "critique", "revision", "compare") if not isinstance(found.get(name), str)]
    weight = found.get("weight", 1.0)
    if missing:
        problems.append(f"principle {index + 1} lacks {', '.join(missing)}")
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        problems.append(f"principle {found['id']!r}: weight {weight!r} is not a positive number")
        return None
    return Principle(
        id=found["id"],
        critique=found["critique"],
        revision=found["revision"],
        compare=found["compare"],
        weight=float(weight),
        tags=tuple(str(tag) for tag in found.get("tags", ())),
    )
