"""The constitution's text beside how often each principle was used. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charter.feedback.constitution import Constitution


@dataclass(frozen=True, kw_only=True)
class PrincipleLine:
    """One principle: its wordings, and its use by stage."""

    id: str
    tags: tuple[str, ...]
    critique: str
    revision: str
    compare: str
    weight: float
    wanted_share: float | None
    """Of the weights of all principles; None of one that the constitution does not have (any more)."""
    used: tuple[int, ...]
    """Records by stage, in the order of the stages."""
    share: float | None
    """Of all uses; None without any."""


@dataclass(frozen=True, kw_only=True)
class ConstitutionView:
    """A constitution and its use."""

    name: str
    version: str
    stages: tuple[str, ...]
    """Stages that have said which principles they used."""
    lines: tuple[PrincipleLine, ...]
    uses: int
    unused: tuple[str, ...]


def constitution_view(found: Constitution, uses: Mapping[str, Mapping[str, int]]) -> ConstitutionView:
    """`uses`: by stage, how many records were made under each principle."""
    stages = tuple(uses)
    counts = {item.id: _used(item.id, uses) for item in found.principles}
    strangers = [name for stage in uses.values() for name in stage if name not in counts]
    counts |= {name: _used(name, uses) for name in strangers}
    total, weights = sum(map(sum, counts.values())), sum(item.weight for item in found.principles)
    by_id = {item.id: item for item in found.principles}
    lines = []
    for name, used in counts.items():
        item = by_id.get(name)
        lines.append(
            PrincipleLine(
                id=name,
                tags=item.tags if item else (),
                critique=item.critique if item else "",
                revision=item.revision if item else "",
                compare=item.compare if item else "",
                weight=item.weight if item else 0.0,
                wanted_share=item.weight / weights if item else None,
                used=used,
                share=sum(used) / total if total else None,
            )
        )
    return ConstitutionView(
        name=found.name,
        version=found.version,
        stages=stages,
        lines=tuple(lines),
        uses=total,
        unused=tuple(name for name, used in counts.items() if total and not sum(used)),
    )


def _used(name: str, uses: Mapping[str, Mapping[str, int]]) -> tuple[int, ...]:
    return tuple(stage.get(name, 0) for stage in uses.values())


def uses_of_summary(summary: Mapping[str, object]) -> dict[str, int]:
    """Return the number of uses of each principle, as a label stage's `summary.json` counts them.

    >>> uses_of_summary({"principle/privacy": 6, "ties": 0})
    {'privacy': 6}
    """
    prefix = "principle/"
    return {
        name.removeprefix(prefix): int(count)
        for name, count in summary.items()
        if name.startswith(prefix) and isinstance(count, int | float)
    }


def uses_of_counts(principles: Sequence[Mapping[str, object]]) -> dict[str, int]:
    """The same from the counted records of a stage."""
    return {str(item["name"]): int(str(item["rows"])) for item in principles}
