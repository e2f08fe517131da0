"""Where the time of a stage goes: every moment belongs to the innermost phase that is open."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

PHASES = ("generate", "score", "update", "save", "wait")
OTHER = "other"
"""Between phases."""


class HostMarks:
    """Moments by the clock of the processor."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.mark = clock

    def seconds(self, start: float, stop: float) -> float:
        """From one mark to the next."""
        return stop - start

    def settle(self) -> None:
        """Nothing is in flight."""


class CudaMarks:
    """Moments as events in the device's queue: work that was only launched counts where it runs, without a wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event behind everything that was launched so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """From one mark to the next, on the device's clock."""
        return float(start.elapsed_time(stop)) / 1000

    def settle(self) -> None:
        """Wait until the marks have been passed."""
        torch.cuda.synchronize(self._device)


class PhaseClock:
    """Seconds by phase since the last reading; it starts with the first phase, so loading is not in it."""

    def __init__(self, marks: HostMarks | CudaMarks) -> None:
        self._marks = marks
        self._open: list[str] = []
        self._owners: list[str] = []
        self._slices: list[object] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time until the block ends belongs to `name`, less that of phases inside it."""
        if name not in PHASES:
            raise ValueError(f"no phase is called {name!r}; they are {', '.join(PHASES)}")
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def read(self) -> dict[str, float]:
        """Seconds by phase since the last reading; phases without time are left out."""
        if not self._slices:
            return {}
        self._turn()
        self._marks.settle()
        found: dict[str, float] = {}
        for owner, start, stop in zip(self._owners[1:], self._slices[:-1], self._slices[1:], strict=True):
            found[owner] = found.get(owner, 0.0) + self._marks.seconds(start, stop)  # type: ignore[arg-type]
        self._slices, self._owners = self._slices[-1:], self._owners[-1:]
        return found

    def _turn(self) -> None:
        """The slice that ends now belongs to the phase that was open."""
        self._slices.append(self._marks.mark())
        self._owners.append(self._open[-1] if self._open else OTHER)
