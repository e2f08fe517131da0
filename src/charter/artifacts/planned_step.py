"""Prediction of a stage's step by the planner, beside the stage, for whoever measures it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from charter.artifacts import durable
from charter.errors import loads_json

PLANNED_FILE = "planned.json"
SCHEMA = "charter.planned_step/1"


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of one stage on this machine: optimizer step, rollout, or batch of records."""

    seconds_per_step: float
    """Working time: without checkpoints, waits and restarts."""
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    """generate, score, update; their sum is `seconds_per_step`."""
    peak_bytes: float
    """Tensors of one process at the fullest moment; without the process itself and the allocator's slack."""
    bytes_by_part: Mapping[str, float] = field(default_factory=dict)
    """parameters, gradients, optimizer, activations, logits, buffers, kv_cache; their sum is `peak_bytes`."""
    flops_per_step: float
    """Model operations, 6 N and 2 N per token: attention scores are left out."""


def write_planned_step(directory: Path, planned: PlannedStep) -> None:
    """Put it beside a stage that has none yet; nothing depends on it, so it is not flushed to disk."""
    if not (directory / PLANNED_FILE).exists():
        directory.mkdir(parents=True, exist_ok=True)
        durable.write_hint(directory / PLANNED_FILE, {"schema": SCHEMA, **asdict(planned)})


def read_planned_step(directory: Path) -> PlannedStep | None:
    """Read the planned step; None where there is none, or where it cannot be read."""
    try:
        content = loads_json((directory / PLANNED_FILE).read_text(encoding="utf-8"))
        return PlannedStep(**content) if content.pop("schema") == SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
