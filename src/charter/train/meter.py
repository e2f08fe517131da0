"""Measurements that a running stage makes of itself: seconds by phase, tokens and operations per second, bytes.

Its figures depend on the clock, so they go to metrics.jsonl and never into outputs. docs/guides/metering.md says what
each of them means and where it stops being true.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from charter.artifacts.job import read_planned_step
from charter.catalog import accelerators
from charter.errors import UsageError
from charter.physics.flops import forward_flops_per_token
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute

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
        by_owner: dict[str, float] = {}
        for owner, start, stop in zip(self._owners[1:], self._slices[:-1], self._slices[1:], strict=True):
            by_owner[owner] = by_owner.get(owner, 0.0) + self._marks.seconds(start, stop)  # type: ignore[arg-type]
        self._slices, self._owners = self._slices[-1:], self._owners[-1:]
        return by_owner

    def _turn(self) -> None:
        """The slice that ends now belongs to the phase that was open."""
        self._slices.append(self._marks.mark())
        self._owners.append(self._open[-1] if self._open else OTHER)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Size of the storages behind some tensors, each once.

    >>> weight = torch.zeros(3, 4)
    >>> storage_bytes([weight, weight.t(), weight[0]])
    48
    """
    local = (getattr(item, "_local_tensor", item) for item in tensors)
    storages = {item.untyped_storage()._cdata: item.untyped_storage().nbytes() for item in local}
    return sum(storages.values())


def weights_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def gradients_of(module: nn.Module) -> list[Tensor]:
    """Gradients that exist."""
    return [item.grad for item in module.parameters() if item.grad is not None]


def moments_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Tensors of the optimizer's state, step counters among them."""
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, from their making until they are freed.

    `known` tensors are there before. What a kernel takes for itself while it runs is not seen. On processors only.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = self.now_bytes = 0
        self.is_open = False
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        for tensor in tensors:
            self.note(tensor)

    def note(self, tensor: Tensor) -> None:
        """Count a tensor's storage from now on, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or not size:
            return
        self._alive[key] = (weakref.ref(storage, lambda _: self._freed(key)), size)
        self.now_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def __enter__(self) -> "LiveBytes":
        self.is_open = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        self.is_open = False
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _freed(self, key: int) -> None:
        self.now_bytes -= self._alive.pop(key)[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return result


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Operations of some work."""

    model: float = 0.0
    """What the mathematics of the model needs: of real tokens, each counted once per pass."""
    repeated: float = 0.0
    """What recomputation does again; no part of model operations or of MFU."""

    def __add__(self, other: "Operations") -> "Operations":
        return Operations(model=self.model + other.model, repeated=self.repeated + other.repeated)

    def __mul__(self, count: float) -> "Operations":
        return Operations(model=count * self.model, repeated=count * self.repeated)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One model as a stage runs it."""

    architecture: Architecture
    scalar_head: bool = False
    """One number per token: the product with the vocabulary is not done."""
    frozen_base: bool = False
    """Only adapters are trained: no weight gradients of the base."""
    recompute: Recompute = Recompute.NONE

    def forward(self, tokens: float, sequences: float, *, head_share: float = 1.0) -> Operations:
        """A forward pass over `tokens` tokens in `sequences` sequences.

        `tokens x forward_flops_per_token(mean length)`. Lengths enter by their mean, so that of n sequences the
        attention scores are low by 1 + (deviation / mean)^2.
        """
        return Operations(model=tokens * self._per_token(tokens, sequences, head_share)[0])

    def training(self, tokens: float, sequences: float, *, head_share: float = 1.0) -> Operations:
        """Forward and backward: `3 F`, with a frozen base `2 F + F_mixing`; recomputation repeats scores or `F - head`.

        Source: Kaplan et al. 2020, section 2.1; Korthikanti et al. 2022, section 4 (`physics.flops`).
        """
        total, head, mixing, scores = self._per_token(tokens, sequences, head_share)
        trained = 2 * total + mixing if self.frozen_base else 3 * total
        again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: scores, Recompute.FULL: total - head}[self.recompute]
        return Operations(model=tokens * trained, repeated=tokens * again)

    def _per_token(self, tokens: float, sequences: float, head_share: float) -> tuple[float, float, float, float]:
        length = max(tokens / max(sequences, 1.0), 1.0)
        share = 0.0 if self.scalar_head else head_share
        flops = forward_flops_per_token(self.architecture, length, head_share=share)
        return flops.total, flops.head, flops.mixing, flops.scores


LOGITS = "logits"
"""Counter of the positions whose logits are computed."""
MINIBATCHES = "minibatches"
"""Counter of the minibatches that a step of reinforcement learning has trained on."""


@dataclass(frozen=True, kw_only=True)
class SupervisedWork:
    """Operations of a stage that trains one model on sequences; DPO reads them with a frozen reference too."""

    model: Reader
    sequences_per_step: float
    """Over all processes: rows of a step times sequences of a row (two of a pair)."""
    reference: Reader | None = None
    reads_before: bool = False
    """Before a step both models read as much once more, to compare (kto)."""

    def __call__(self, counters: Mapping[str, int]) -> Operations:
        """Of one step, in which `tokens` tokens were read and `logits` positions have a loss (all, if not counted)."""
        tokens = float(counters.get("tokens", 0))
        share = _share(counters)
        done = self.model.training(tokens, self.sequences_per_step, head_share=share)
        if self.reference is not None:
            done += self.reference.forward(tokens, self.sequences_per_step, head_share=share)
        if self.reads_before:
            for reader in (self.model, self.reference) if self.reference is not None else (self.model,):
                done += reader.forward(tokens, self.sequences_per_step, head_share=share)
        return done


@dataclass(frozen=True, kw_only=True)
class PolicyWork:
    """Operations of a step of reinforcement learning: sample, score with every model, then train."""

    policy: Reader
    reward: Reader
    value: Reader | None
    """None where no critic is trained (rloo, grpo)."""
    minibatches: int
    """Of an epoch."""
    reads: float
    """Passes over the rollout that sample it, and that score it by the policy and by a reference of its size."""

    def __call__(self, counters: Mapping[str, int]) -> Operations:
        """Of one rollout of `episodes` answers: `tokens` of prompts and answers, `logits` of them answers."""
        tokens, sequences = float(counters.get("tokens", 0)), float(counters.get("episodes", 1))
        share, epochs = _share(counters), counters.get(MINIBATCHES, 0) / self.minibatches
        read = self.policy.forward(tokens, sequences, head_share=share)
        done = read * self.reads + self.reward.forward(tokens, sequences)
        done += self.policy.training(tokens, sequences, head_share=share) * epochs
        if self.value is not None:
            done += self.value.forward(tokens, sequences) + self.value.training(tokens, sequences) * epochs
        return done


def _share(counters: Mapping[str, int]) -> float:
    """Logits per token."""
    tokens = counters.get("tokens", 0)
    return counters.get(LOGITS, tokens) / tokens if tokens else 1.0


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
        metrics = {f"seconds_{name}": seconds.get(name, 0.0) for name in (*PHASES, OTHER)}
        if elapsed > 0:
            metrics["tokens_per_second"] = self._tokens / elapsed
            if self.work is not None:
                metrics |= self._rates(elapsed)
        metrics |= self._bytes()
        if self._steps:
            metrics |= self._beside_plan((elapsed - seconds.get("save", 0.0)) / self._steps, metrics)
        self._steps, self._tokens, self._done = 0, 0, Operations()
        return metrics

    def _rates(self, elapsed: float) -> dict[str, float]:
        rate = self._done.model / elapsed / self.processes
        rates = {"model_flops_per_second": rate}
        if self._done.repeated:
            rates["repeated_flops_per_second"] = self._done.repeated / elapsed / self.processes
        if self._peak_rate:
            rates["mfu"] = rate / self._peak_rate
        return rates

    def _bytes(self) -> dict[str, float]:
        if self._device.type == "cuda":
            now = torch.cuda.memory_allocated(self._device)
            self._peak_bytes = torch.cuda.max_memory_allocated(self._device)
        else:
            now = self.state_bytes()
        figures = {"allocated_bytes": float(now)} if now else {}
        return figures | ({"peak_bytes": float(self._peak_bytes)} if self._peak_bytes else {})

    def state_bytes(self) -> int:
        """Bytes of weights, gradients that exist and optimizer state of what is watched."""
        tensors = [tensor for module in self._modules for tensor in (*weights_of(module), *gradients_of(module))]
        return storage_bytes(
            [*tensors, *(tensor for optimizer in self._optimizers for tensor in moments_of(optimizer))]
        )

    def _beside_plan(self, seconds_per_step: float, figures: Mapping[str, float]) -> dict[str, float]:
        planned = self._planned
        if planned is None:
            return {}
        ratios = {
            "planned_seconds_per_step": planned.seconds_per_step,
            "planned_peak_bytes": planned.peak_bytes,
        }
        if planned.seconds_per_step > 0:
            ratios["actual_over_planned_seconds"] = seconds_per_step / planned.seconds_per_step
        if planned.peak_bytes > 0 and "peak_bytes" in figures:
            ratios["actual_over_planned_bytes"] = figures["peak_bytes"] / planned.peak_bytes
        return ratios

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """A phase in which every allocation is counted; phases inside it are inside the count already."""
        with ExitStack() as stack:
            stack.enter_context(self._clock.phase(name))
            if self._live is None:
                tensors = [
                    tensor for module in self._modules for tensor in (*weights_of(module), *gradients_of(module))
                ]
                tensors += [tensor for optimizer in self._optimizers for tensor in moments_of(optimizer)]
                self._live = LiveBytes(tensors)
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
