"""Ctrl-C, SIGTERM and a notice file as requests that the supervisor reads when it is ready for them."""

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

NOTICE_FILE = "preempt-notice"
"""In the run directory: whoever learns that the machine will be taken away creates it; the run stops as on SIGTERM."""


class StopSignals:
    """Counts requests to stop while the context is open; the handlers of before come back after it."""

    def __init__(self, notice: Path | None = None, *, is_started_again: Callable[[], bool] = lambda: False) -> None:
        """`is_started_again`: whether whoever sends SIGTERM will start this process again, to go on where it was."""
        self._notice, self._is_started_again = notice, is_started_again
        self.interrupts = 0
        self.terminations = 0
        self._is_meant: bool | None = None
        self._before: dict[int, Any] = {}

    @property
    def wanted(self) -> bool:
        """Whether anybody has asked to stop."""
        return bool(self.interrupts or self._terminated or self.noticed)

    @property
    def _terminated(self) -> bool:
        """Whether SIGTERM is meant for the run: judged once, and not in the handler.

        Who takes a machine away sends several, and gives other answers while it does.
        """
        if self.terminations and self._is_meant is None:
            self._is_meant = not self._is_started_again()
        return bool(self._is_meant)

    @property
    def noticed(self) -> bool:
        """Whether somebody has left a notice that this machine will be taken away."""
        return self._notice is not None and self._notice.exists()

    def forget_notice(self) -> None:
        """Remove a notice that an earlier run was meant by."""
        if self._notice is not None:
            self._notice.unlink(missing_ok=True)

    @property
    def impatient(self) -> bool:
        """Whether Ctrl-C came twice: do not wait for a checkpoint."""
        return self.interrupts > 1

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._seen)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _seen(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.interrupts += 1
        else:
            self.terminations += 1
