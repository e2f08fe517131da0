"""Checkpoints of a training stage: every process writes its part, one publishes the whole.

Nothing of the state may change between two parts of a step, so `save` is called there. It returns when the state is
written, or copied: then a thread writes the copy with a process group of its own while training goes on. At most one
save is in flight; what went wrong in it is raised by the next `save` or `finish`.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from charter.artifacts import faults
from charter.artifacts.checkpoints import damage
from charter.artifacts.file_facts import FileFact
from charter.artifacts.heartbeat import SAVE
from charter.artifacts.position import Position
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import begin_dir, finish_dir, removed_on_error, settle
from charter.models.ranks import Ranks
from charter.train import state_files, state_tensors
from charter.train.background import Background
from charter.train.save_mode import SaveMode
from charter.train.staging import HostBuffers
from charter.train.state import TrainState
from charter.train.together import Together


@dataclass(frozen=True, kw_only=True)
class _Content:
    """What a checkpoint will hold, as far as this process writes it."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    buffers: Mapping[str, Tensor]
    metric: float | None


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

    def __post_init__(self) -> None:
        self._saving = replace(self.ranks, host_group=self.ranks.saving_group)
        self._together = Together(self._saving)
        self._files = self.stage.checkpoints

    def load_latest(self) -> Position | None:
        """Load the newest verified checkpoint of this job; None, and nothing touched, where there is none.

        Damaged ones are set aside, and the lines of `metrics.jsonl` that will be written again are cut off.
        """
        self.finish()
        self._together.first(self.stage.sweep)
        found = self._newest_undamaged()
        if found is not None:
            self._load(found)
        self._last = found
        self._together.first(lambda: self.stage.cut_metrics(found.step if found else 0))
        return found

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
        found, self._metrics = self._metrics, {}
        return found

    def _content(self, metric: float | None, *, copied: bool) -> _Content:
        tensors = state_files.own_tensors(state_tensors.tensors_of(self.state), self.ranks)
        buffers = dict(self.state.buffers) if self.ranks.is_first else {}
        if copied:
            held = self._buffers.copy({**tensors, **{f"buffers/{name}": value for name, value in buffers.items()}})
            tensors = {name: held[name] for name in tensors}
            buffers = {name: held[f"buffers/{name}"] for name in buffers}
        return _Content(tensors=tensors, values=state_tensors.values_of(self.state), buffers=buffers, metric=metric)

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
                    state_files.write_values(temporary, content.values, content.buffers)
                action.close()
                return settle(temporary, state_files.files_of(temporary, self.ranks))

        def enter() -> None:
            with removed_on_error(target, temporary):
                action.enter_context(faults.durable_action(f"fill {target.name}", writes=temporary))

        with ExitStack() as action:
            self._together.each(enter)
            with removed_on_error(target, temporary):
                state_files.write_tensors(temporary, content.tensors, self._saving)
            shares = self._together.each(write_own)
        return {name: fact for share in shares for name, fact in share.items()}

    def _newest_undamaged(self) -> Position | None:
        positions: list[Position] = self.ranks.from_first(self._files.positions())
        for position in reversed(positions):
            look = partial(damage, share=self.ranks.rank, shares=self.ranks.world_size)
            found = self._together.each(partial(look, self._files.path_of(position)))
            wrong = next((item for item in found if item is not None), None)
            if wrong is None:
                return position
            self._together.first(partial(self._files.set_damaged_aside, position, wrong))
        return None

    def _load(self, position: Position) -> None:
        path = self._files.accept(position, world_size=self.ranks.world_size).path
        saved = state_files.saved_tensors(path)
        state_tensors.prepare_optimizers(self.state, set(saved))
        tensors = state_tensors.tensors_of(self.state)
        state_tensors.check_fit(saved, tensors)
        state_files.read_tensors(path, tensors, self._saving)
        state_tensors.load_values(self.state, state_files.read_values(path))
        self.state.buffers.clear()
        self.state.buffers.update(state_files.read_buffers(path, self.ranks.device))

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            adds_up = name.endswith("_seconds")
            self._metrics[name] = value + (self._metrics.get(name, 0.0) if adds_up else 0.0)

    def _tell(self) -> None:
        if self.mode.chosen and self.mode.asked == "auto" and not self._told and self.ranks.is_first:
            print(self.mode.describe(), file=sys.stderr)
        self._told = self.mode.chosen is not None
