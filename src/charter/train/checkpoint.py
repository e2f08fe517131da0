"""Checkpoints of a training stage: every process writes its part, one publishes the whole.

Nothing of the state may change between two parts of a step, so `save` is called there. It returns when the state is
written, or copied: then a thread writes the copy with a process group of its own while training goes on. At most one
save is in flight; what went wrong in it is raised by the next `save` or `finish`.
"""

import math
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from charter.artifacts import faults
from charter.artifacts.checkpoints import Position, damage
from charter.artifacts.fingerprint import FileFact
from charter.artifacts.group import LOCAL_WORLD_SIZE, SAVE
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import begin_dir, finish_dir, removed_on_error, settle
from charter.errors import CharterError, UsageError
from charter.models.parallel import own_part
from charter.models.ranks import Ranks
from charter.plan.machine import free_memory_bytes
from charter.train.state import (
    TrainState,
    check_fit,
    files_of,
    load_values,
    own_tensors,
    prepare_optimizers,
    read_buffers,
    read_tensors,
    read_values,
    saved_tensors,
    tensors_of,
    values_of,
    write_tensors,
    write_values,
)

Mode = Literal["sync", "async"]
VARIABLE = "CHARTER_SAVE"
TRIALS = 3
"""Saves of each mode before one is chosen."""
WORTH_SHARE = 0.6
"""A save in the background must cost at most this share of a plain one: it is durable later, and holds a copy."""


@dataclass
class SaveMode:
    """Tries both modes in turn, then stays with the better one; `CHARTER_SAVE` decides without trying."""

    asked: str = field(default_factory=lambda: os.environ.get(VARIABLE, "auto"))
    sync_seconds: list[float] = field(default_factory=list)
    async_seconds: list[float] = field(default_factory=list)
    chosen: Mode | None = None
    _usual: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of parts with nothing in the background, by their number in the step."""
    _beside: list[tuple[int, float]] = field(default_factory=list)
    """Parts beside the save in the background: number, seconds."""
    _stood_still: float | None = None
    """Seconds of the last background save itself, until what it slowed is known."""

    def __post_init__(self) -> None:
        if self.asked not in ("sync", "async", "auto"):
            raise UsageError(f"{VARIABLE}={self.asked} is not known; use sync, async or auto")
        if self.asked == "sync":
            self.chosen = "sync"
        elif self.asked == "async":
            self.chosen = "async"

    def next(self) -> Mode:
        """Return the mode in which the next checkpoint is written."""
        self._settle_last()
        if self.chosen is None and len(self.sync_seconds) >= TRIALS and len(self.async_seconds) >= TRIALS:
            self.chosen = choose(self.sync_seconds, self.async_seconds)
        if self.chosen is not None:
            return self.chosen
        return "sync" if len(self.sync_seconds) <= len(self.async_seconds) else "async"

    def saved(self, mode: Mode, seconds: float) -> None:
        """A save took so long until training could go on."""
        if mode == "sync":
            self.sync_seconds.append(seconds)
        else:
            self._stood_still = seconds

    def waited(self, seconds: float) -> None:
        """Training stood still until the save in the background was done."""
        if self._stood_still is not None:
            self._stood_still += seconds

    def worked(self, part: int, seconds: float, *, beside_save: bool) -> None:
        """A part of a step took so long, with or without a save in the background."""
        if self.chosen is not None:
            return
        if beside_save:
            self._beside.append((part, seconds))
        else:
            self._usual.setdefault(part, []).append(seconds)

    def describe(self) -> str:
        """The choice and what it rests on, in one line."""
        waits, in_background = (statistics.median(seconds) for seconds in (self.sync_seconds, self.async_seconds))
        return (
            f"checkpoints are written {'in the background' if self.chosen == 'async' else 'while training waits'}: "
            f"one costs {waits:.3g} s of training when it waits, {in_background:.3g} s in the background"
        )

    def _settle_last(self) -> None:
        if self._stood_still is not None:
            self.async_seconds.append(self._stood_still + slow_down(self._beside, self._usual))
        self._stood_still, self._beside = None, []


def choose(sync_seconds: Sequence[float], async_seconds: Sequence[float]) -> Mode:
    """The background only where it clearly pays, by medians.

    >>> choose([1.0, 1.2], [0.5, 0.5]), choose([1.0, 1.2], [0.9, 0.9])
    ('async', 'sync')
    """
    return "async" if statistics.median(async_seconds) <= WORTH_SHARE * statistics.median(sync_seconds) else "sync"


def slow_down(beside: Sequence[tuple[int, float]], usual: dict[int, list[float]]) -> float:
    """Seconds that the parts beside a save took longer than such parts usually do, never negative.

    >>> slow_down([(0, 1.5), (0, 1.25)], {0: [1.0, 1.0, 9.0]})
    0.75
    """
    return max(0.0, sum(seconds - statistics.median(usual[part]) for part, seconds in beside if part in usual))


class Background:
    """Work that has been started; `wait` ends it."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.seconds = 0.0
        """How long the work took, once it is waited for."""
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(name=name, target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Return True while the background write is running."""
        return self._thread.is_alive()

    def wait(self) -> BaseException | None:
        """Wait until the work is over; what went wrong in it, or None."""
        self._thread.join()
        return self._error

    def _run(self) -> None:
        began = time.perf_counter()
        try:
            self._work()
        except BaseException as error:
            self._error = error
        self.seconds = time.perf_counter() - began


ROOM_SHARE = 0.8
"""Of the free system memory that a copy of the state may take; the rest is for what training and loaders still take."""


class HostBuffers:
    """Buffers on the host that are filled anew by every save; pinned where the state is on a device."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same tensors with copies of their local parts; complete when this returns."""
        self._held = {name: buffer for name, buffer in self._held.items() if name in tensors}
        copies = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        if any(own_part(tensor).is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return copies

    def further_bytes(self, tensors: Mapping[str, Tensor]) -> int:
        """Bytes of memory that copies of the tensors would take beyond the buffers that are there."""
        locals_ = {name: own_part(tensor) for name, tensor in tensors.items()}
        sizes = ((local.nbytes, local.is_cuda) for name, local in locals_.items() if self._fitting(name, local) is None)
        # Page-locked memory comes in powers of two (torch's CachingHostAllocator).
        return sum(1 << max(size - 1, 0).bit_length() if pinned else size for size, pinned in sizes)

    def _fitting(self, name: str, local: Tensor) -> Tensor | None:
        buffer = self._held.get(name)
        fits = buffer is not None and buffer.shape == local.shape and buffer.dtype == local.dtype
        return buffer if fits else None

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        local = own_part(tensor)
        buffer = self._fitting(name, local)
        if buffer is None:
            buffer = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            self._held[name] = buffer
        buffer.copy_(local, non_blocking=local.is_cuda)
        if isinstance(tensor, DTensor):
            return DTensor(buffer, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
        return buffer


_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Together:
    """Every process calls the same methods in the same order."""

    ranks: Ranks

    def each(self, work: Callable[[], _Result]) -> list[_Result]:
        """Every process's result of its own work, by rank."""
        if self.ranks.world_size == 1:
            return [work()]
        try:
            outcome: tuple[Any, Exception | None] = (work(), None)
        except Exception as error:
            outcome = (None, error)
        outcomes = self.ranks.gather(outcome)
        errors = [error for _, error in outcomes if error is not None]
        if errors:
            raise next((error for error in errors if isinstance(error, CharterError)), errors[0])
        return [value for value, _ in outcomes]

    def first(self, work: Callable[[], _Result]) -> _Result:
        """Run work in rank 0 alone, and return its result in every process."""
        return self.each(lambda: work() if self.ranks.is_first else None)[0]  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class _Content:
    """Content of a checkpoint, as far as this process writes it."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    buffers: Mapping[str, Tensor]
    metric: float | None


def _all_of(tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, **{f"buffers/{name}": value for name, value in buffers.items()}}


@dataclass
class Checkpointer:
    """Saves and loads one training state; every process of the stage calls the same methods in the same order."""

    stage: StageDir
    ranks: Ranks
    state: TrainState
    mode: SaveMode = field(default_factory=SaveMode)
    _buffers: HostBuffers = field(default_factory=HostBuffers)
    _in_flight: Background | None = None
    _last: Position | None = None
    _part_began: float | None = None
    _part_beside: bool = False
    _metrics: dict[str, float] = field(default_factory=dict)
    _told: bool = False
    _said_no_room: bool = False

    def __post_init__(self) -> None:
        self._saving = replace(self.ranks, host_group=self.ranks.saving_group)
        self._together = Together(self._saving)
        self._files = self.stage.checkpoints

    def load_latest(self) -> Position | None:
        """Load the newest verified checkpoint of this job; None, and nothing touched, where there is none.

        Damaged ones are set aside, and the lines of `metrics.jsonl` and `samples.jsonl` that will be written again are
        cut off.
        """
        self.finish()
        self._together.first(self.stage.sweep)
        newest = self._newest_undamaged()
        if newest is not None:
            self._load(newest)
        self._last = newest
        self._together.first(lambda: self._cut(newest.step if newest else 0))
        return newest

    def _cut(self, step: int) -> None:
        self.stage.cut_metrics(step)
        self.stage.cut_samples(step)

    def set_aside_after(self, step: int) -> None:
        """Rename every checkpoint of more than `step` finished steps, so that it is not taken again."""
        self.finish()
        self._together.first(lambda: self._files.set_aside_after(Position(step)))

    def save(self, position: Position, metric: float | None = None) -> None:
        """Make the state durable at `position`; `metric` says how good it is, higher is better.

        Training may go on when this returns. A position that is saved already is left as it is.
        """
        began = time.perf_counter()
        self.stage.beat(SAVE)
        self.finish()
        waited = time.perf_counter() - began
        self.mode.waited(waited)
        there, mode = self.ranks.from_first((self._files.path_of(position).exists(), self.mode.next()))
        if there or position == self._last:
            return
        self._tell()
        if mode == "async" and self._lacks_room():
            mode = "sync"
        content = self._content(metric, copied=mode == "async")
        if mode == "async":
            self._in_flight = Background(f"checkpoint {position}", partial(self._publish, position, content))
        else:
            self._publish(position, content)
        self._last = position
        seconds = time.perf_counter() - began
        self.mode.saved(mode, seconds - waited)
        self._note(checkpoint_seconds=seconds, checkpoint_async=float(mode == "async"))
        self.stage.beat(f"after checkpoint {position}")
        self._begin_part()

    def tick(self, position: Position) -> None:
        """A part of a step has just been finished: remember how long it took, with or without a save beside it."""
        if self._part_began is not None:
            seconds = time.perf_counter() - self._part_began
            self.mode.worked(position.part, seconds, beside_save=self._part_beside)
        self._begin_part()

    def _begin_part(self) -> None:
        self._part_began = time.perf_counter()
        self._part_beside = self._in_flight is not None and self._in_flight.is_busy

    def finish(self) -> None:
        """Wait until the save in flight is durable; what went wrong in it is raised here."""
        flying, self._in_flight = self._in_flight, None
        if flying is None:
            return
        if flying.is_busy:
            self.stage.beat(SAVE)
        error = flying.wait()
        self._note(checkpoint_background_seconds=flying.seconds)
        if error is not None:
            self._last = None
            raise error

    def metrics(self) -> dict[str, float]:
        """Seconds that saves took since the last call, and whether the last was in the background."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _lacks_room(self) -> bool:
        """Return True, in every process, if some node has no room in memory for a copy of what its processes save.

        The copy is a convenience, and the kernel would end the stage for it.
        """
        copied = _all_of(*self._own())
        need = self._buffers.further_bytes(copied) * int(os.environ.get(LOCAL_WORLD_SIZE, "1"))
        room = ROOM_SHARE * free_memory_bytes() if need else math.inf
        lacks = self.ranks.any(need > room)
        if lacks and self.ranks.is_first and not self._said_no_room:
            self._said_no_room = True
            print("checkpoints are written while training waits: no room for a copy in system memory", file=sys.stderr)
        return lacks

    def _own(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors of the state that this process writes, and the buffers that rank 0 does."""
        buffers = dict(self.state.buffers) if self.ranks.is_first else {}
        return own_tensors(tensors_of(self.state), self.ranks), buffers

    def _content(self, metric: float | None, *, copied: bool) -> _Content:
        tensors, buffers = self._own()
        if copied:
            copies = self._buffers.copy(_all_of(tensors, buffers))
            tensors = {name: copies[name] for name in tensors}
            buffers = {name: copies[f"buffers/{name}"] for name in buffers}
        return _Content(tensors=tensors, values=values_of(self.state), buffers=buffers, metric=metric)

    def _publish(self, position: Position, content: _Content) -> None:
        stage, files = self.stage.job.stage, self._files
        target = files.path_of(position)
        faults.boundary(stage, "checkpoint", str(position), "before")
        expected = files.expected_bytes() if self.ranks.is_first else 0
        temporary = self._together.first(lambda: begin_dir(target, expected_bytes=expected))
        try:
            facts = self._write(temporary, target, content)
            text = files.manifest_text(position, facts, world_size=self.ranks.world_size, metric=content.metric)
            self._together.first(lambda: finish_dir(temporary, target, facts, manifest=text))
        except BaseException:
            if self.ranks.is_first:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        faults.boundary(stage, "checkpoint", str(position), "after")
        self._together.first(lambda: files.published(position))

    def _write(self, temporary: Path, target: Path, content: _Content) -> dict[str, FileFact]:
        """Write and hash this process's files; the facts of all files of all processes."""

        def write_own() -> dict[str, FileFact]:
            with removed_on_error(target, temporary):
                if self.ranks.is_first:
                    write_values(temporary, content.values, content.buffers)
                action.close()
                return settle(temporary, files_of(temporary, self.ranks))

        def enter() -> None:
            with removed_on_error(target, temporary):
                action.enter_context(faults.durable_action(f"fill {target.name}", writes=temporary))

        with ExitStack() as action:
            self._together.each(enter)
            with removed_on_error(target, temporary):
                write_tensors(temporary, content.tensors, self._saving)
            shares = self._together.each(write_own)
        return {name: fact for share in shares for name, fact in share.items()}

    def _newest_undamaged(self) -> Position | None:
        positions: list[Position] = self.ranks.from_first(self._files.positions())
        for position in reversed(positions):
            look = partial(damage, share=self.ranks.rank, shares=self.ranks.world_size)
            faults = self._together.each(partial(look, self._files.path_of(position)))
            wrong = next((item for item in faults if item is not None), None)
            if wrong is None:
                return position
            self._together.first(partial(self._files.set_damaged_aside, position, wrong))
        return None

    def _load(self, position: Position) -> None:
        path = self._files.accept(position, world_size=self.ranks.world_size).path
        saved = saved_tensors(path)
        prepare_optimizers(self.state, set(saved))
        tensors = tensors_of(self.state)
        check_fit(saved, tensors)
        read_tensors(path, tensors, self._saving)
        load_values(self.state, read_values(path))
        self.state.buffers.clear()
        self.state.buffers.update(read_buffers(path, self.ranks.device))

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            adds_up = name.endswith("_seconds")
            self._metrics[name] = value + (self._metrics.get(name, 0.0) if adds_up else 0.0)

    def _tell(self) -> None:
        if self.mode.chosen and self.mode.asked == "auto" and not self._told and self.ranks.is_first:
            print(self.mode.describe(), file=sys.stderr)
        self._told = self.mode.chosen is not None
