"""Identity and promises of an engine of another project that computes a stage."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError

HOSTED_FILE = "hosted.json"
SCHEMA = "charter.hosted/1"


@dataclass(frozen=True, kw_only=True)
class HostedFacts:
    """One engine, as it was last started for a stage."""

    engine: str
    version: str
    checked_version: str
    """That the mapping was read from and is checked against."""
    guarantee: str
    """`bit_exact`, `same_data_order` or `best_effort`: of a run that was killed and went on (`handover.rendered`)."""
    reason: str
    source: str
    notes: tuple[str, ...] = ()
    """What a reader of the results must know: rows that were left out, a version that was not checked."""
    conversion: Mapping[str, Any] = field(default_factory=dict)
    """How the engine's weights became a model directory, where that took a program of its own."""

    def words(self) -> str:
        """In one line, for records."""
        return f"computed by {self.engine} {self.version}; resume: {self.guarantee}"


def write_hosted_facts(directory: Path, facts: HostedFacts) -> None:
    """Put them beside the stage; nothing depends on them."""
    durable.write_hint(directory / HOSTED_FILE, {"schema": SCHEMA, **asdict(facts)})


def read_hosted_facts(directory: Path) -> HostedFacts | None:
    """The facts of a stage; None of one that the native engine computes, or where they cannot be read."""
    try:
        content = durable.read_json(directory / HOSTED_FILE)
        if content.pop("schema") != SCHEMA:
            return None
        return HostedFacts(**{**content, "notes": tuple(content["notes"])})
    except (DataError, TypeError, KeyError, AttributeError):
        return None
