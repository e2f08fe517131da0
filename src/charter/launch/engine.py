"""What the pipeline asks of an engine: start a stage process, see how it ended, stop it."""

import signal
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
    processes: int = 1
    """Processes of the stage; they share its directory, and rank 0 publishes."""


class ProcessHandle(Protocol):
    """One started process."""

    @property
    def pid(self) -> int | None:
        """Its process id, None until it is known."""

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None while it runs."""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, as soon as it exists; nothing when it has ended."""


class StageHandle(Protocol):
    """The started processes of a stage, as one."""

    @property
    def pid(self) -> int | None:
        """Process id of rank 0, None until it is known."""

    @property
    def processes(self) -> int:
        """How many they are."""

    @property
    def failed_rank(self) -> int:
        """The process that failed first; 0 when none has."""

    def poll(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None while it runs.

        Of several processes: that of the one that failed first, which is why the others were ended.
        """

    def stop(self) -> None:
        """Ask all to stop at the next safe point."""

    def kill(self) -> None:
        """End all now; what was published stays."""

    def dump_stacks(self) -> None:
        """Let every process print into its log where it is."""


class Engine(Protocol):
    """Starts stage processes that die with the supervisor."""

    def start(self, request: StageStart) -> StageHandle:
        """Start one attempt."""

    def renew(self) -> None:
        """End whatever stands between the supervisor and its stages and does not answer; they end with it."""

    def close(self) -> None:
        """End everything that still runs."""
