"""Output of a renderer: files, a command, the mapping, and what can be relied on when it is resumed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from charter.engines.common.mapping import MappedField

Guarantee = Literal["bit_exact", "same_data_order", "best_effort"]
"""Of a run that was killed and resumed by the engine's own checkpoints. `bit_exact`: the weights of an undisturbed
run. `same_data_order`: every row is seen once and in order, numbers may differ. `best_effort`: nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Guarantee of a run of this engine that is killed and goes on from its own checkpoint."""

    guarantee: Guarantee
    reason: str
    """In words: what is restored and what is not."""
    source: str
    """Where that was read or measured."""


@dataclass(frozen=True, kw_only=True)
class RenderedRun:
    """One stage as an engine's configuration."""

    files: Mapping[str, str]
    """Path below the work directory -> text."""
    command: tuple[str, ...]
    """What a node runs, in the work directory. `python` stands for the engine's interpreter. Of several nodes each runs
    it with `NODE_RANK`, `MASTER_ADDR` and `MASTER_PORT` set, written `${NODE_RANK}` here."""
    mapping: tuple[MappedField, ...]
    resume: Resume
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()
    """What somebody who starts it by hand has to know."""
