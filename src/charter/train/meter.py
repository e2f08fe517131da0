"""What a running stage measures of itself: seconds by phase, tokens and operations per second, bytes.

Its figures depend on the clock, so they go to metrics.jsonl and never into outputs. docs/guides/metering.md says what
each of them means and where it stops being true.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn

from charter.artifacts.planned_step import read_planned_step
from charter.catalog import accelerators
from charter.errors import UsageError
from charter.train.allocated import LiveBytes, gradients_of, moments_of, storage_bytes, weights_of
from charter.train.operations import Operations
from charter.train.phase_clock import OTHER, PHASES, CudaMarks, HostMarks, PhaseClock

Work = Callable[[Mapping[str, int]], Operations]
"""Operations of one step from its counters."""


class Meter:
    """Phases, counters and bytes of one process of a stage; `metrics()` has what happened since it was last asked."""

    def __init__(
        self,
        stage_dir: Path,
        *,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
        peak_flops_per_second: float | None = None,
        processes: int = 1,
    ) -> None:
        self._planned = read_planned_step(stage_dir)
        self._device = device
        self._clock = PhaseClock(CudaMarks(device) if device.type == "cuda" else HostMarks(clock))
        self._peak_rate = peak_flops_per_second
        self.processes = processes
        """Over which counters are summed: rates of operations and MFU are per process."""
        self.work: Work | None = None
        """How counters become operations; without it those figures are left out."""
        self._modules: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._steps, self._tokens, self._done = 0, 0, Operations()
        self._live: LiveBytes | None = None
        self._peak_bytes = 0
        self._looks = False

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time of the block belongs to generate, score, update, save or wait, less that of phases inside it."""
        return self._watched(name) if self._looks and name != "save" else self._clock.phase(name)

    def add(self, counters: Mapping[str, int]) -> None:
        """A step is done; its work, over all processes."""
        self._steps += 1
        self._tokens += counters.get("tokens", 0)
        if self.work is not None:
            self._done += self.work(counters)
        self._end_look()

    def watch(
        self, modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], *, look: bool = False
    ) -> None:
        """Count the bytes of these models and optimizers.

        With `look`, on a processor, all that the phases of the next step allocate is counted too. That makes this one
        step about a third slower; the bits of its results stay.
        """
        self._modules, self._optimizers = list(modules), list(optimizers)
        self._looks = look and self._device.type == "cpu"

    def metrics(self) -> dict[str, float]:
        """Figures since the last call, by name; what is not known is left out."""
        seconds = self._clock.read()
        elapsed = sum(seconds.values())
        found = {f"seconds_{name}": seconds.get(name, 0.0) for name in (*PHASES, OTHER)}
        if elapsed > 0:
            found["tokens_per_second"] = self._tokens / elapsed
            if self.work is not None:
                found |= self._rates(elapsed)
        found |= self._bytes()
        if self._steps:
            found |= self._beside_plan((elapsed - seconds.get("save", 0.0)) / self._steps, found)
        self._steps, self._tokens, self._done = 0, 0, Operations()
        return found

    def _rates(self, elapsed: float) -> dict[str, float]:
        rate = self._done.model / elapsed / self.processes
        found = {"model_flops_per_second": rate}
        if self._done.repeated:
            found["repeated_flops_per_second"] = self._done.repeated / elapsed / self.processes
        if self._peak_rate:
            found["mfu"] = rate / self._peak_rate
        return found

    def _bytes(self) -> dict[str, float]:
        if self._device.type == "cuda":
            now = torch.cuda.memory_allocated(self._device)
            self._peak_bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            now = self.state_bytes()
        found = {"allocated_bytes": float(now)} if now else {}
        return found | ({"peak_bytes": float(self._peak_bytes)} if self._peak_bytes else {})

    def state_bytes(self) -> int:
        """Bytes of weights, gradients that exist and optimizer state of what is watched."""
        held = [tensor for module in self._modules for tensor in (*weights_of(module), *gradients_of(module))]
        return storage_bytes([*held, *(tensor for optimizer in self._optimizers for tensor in moments_of(optimizer))])

    def _beside_plan(self, seconds_per_step: float, found: Mapping[str, float]) -> dict[str, float]:
        planned = self._planned
        if planned is None:
            return {}
        beside = {
            "planned_seconds_per_step": planned.seconds_per_step,
            "planned_peak_bytes": planned.peak_bytes,
        }
        if planned.seconds_per_step > 0:
            beside["actual_over_planned_seconds"] = seconds_per_step / planned.seconds_per_step
        if planned.peak_bytes > 0 and "peak_bytes" in found:
            beside["actual_over_planned_bytes"] = found["peak_bytes"] / planned.peak_bytes
        return beside

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """A phase in which every allocation is counted; phases inside it are inside the count already."""
        with ExitStack() as stack:
            stack.enter_context(self._clock.phase(name))
            if self._live is None:
                known = [tensor for module in self._modules for tensor in (*weights_of(module), *gradients_of(module))]
                known += [tensor for optimizer in self._optimizers for tensor in moments_of(optimizer)]
                self._live = LiveBytes(known)
            if not self._live.is_open:
                stack.enter_context(self._live)
            yield

    def _end_look(self) -> None:
        if self._live is not None:
            self._peak_bytes = max(self._peak_bytes, self._live.peak_bytes)
            self._live, self._looks = None, False


def peak_of(device: torch.device, dtype: str) -> float | None:
    """Dense peak of a device by the catalog; None on processors and for devices that it does not have."""
    if device.type != "cuda":
        return None
    try:
        return accelerators.get(torch.cuda.get_device_name(device)).peak_flops_per_second(dtype)
    except UsageError:
        return None
