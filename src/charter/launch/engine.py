"""What the pipeline asks of an engine: start a stage process, see how it ended, stop it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StageStart:
    """One attempt to be started."""

    stage: str
    module: str
    stage_dir: Path
    attempt: int
    """1 for the first attempt of this supervisor."""
    environment: Mapping[str, str] = field(default_factory=dict)


class StageHandle(Protocol):
    """A started stage process."""

    @property
    def pid(self) -> int | None:
        """Its process id, None until it is known."""

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None while it runs."""

    def stop(self) -> None:
        """Ask it to stop at the next safe point."""

    def kill(self) -> None:
        """End it now; what it had published stays."""


class Engine(Protocol):
    """Starts stage processes that die with the supervisor."""

    def start(self, request: StageStart) -> StageHandle:
        """Start one attempt."""

    def close(self) -> None:
        """End everything that still runs."""
