"""The loop of every training stage: run a part, watch it, report it, make it durable, stop when asked.

A stage is a number of steps, and a step one or more parts (PPO: a rollout, then epochs over it). Between parts
nothing is half done: there a checkpoint may be taken and a run may stop.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from charter.artifacts.checkpoints import Position
from charter.artifacts.group import PUBLISH
from charter.artifacts.whole_dir import read_sealed, write_sealed
from charter.errors import DataError, InterruptedRunError, StageError
from charter.models.parallel import Parallel
from charter.models.ranks import leave
from charter.spec.stage_base import Guard
from charter.train.checkpoint import Checkpointer
from charter.train.samples import SampleDrawer
from charter.train.setup import Setup
from charter.train.state import TrainState

ROLL_BACKS, ROLL_BACKS_KEY = "roll_backs.json", "roll_backs"
DECAY = 0.95
"""Weight of the past in the running mean of the loss: about the last twenty steps."""
FIRST_STEPS = 20
"""Before so many steps the mean is not trusted, and no jump is called one."""


class DivergedError(StageError):
    """The loss is not finite or jumped, and the stage is not allowed to go on."""

    label = "diverged"


class BeginAgainError(StageError):
    """Training has to go back to before its first checkpoint: the next attempt starts from the beginning."""

    label = "begin_again"


@dataclass(frozen=True, kw_only=True)
class RollBack:
    """Training went back to `resume_from`, and the data of the `skip_steps` steps from there are left out."""

    diverged_at: int
    resume_from: int
    skip_steps: int


class RollBackError(Exception):
    """Asks the loop to go back."""

    def __init__(self, roll_back: RollBack) -> None:
        super().__init__(f"roll back to step {roll_back.resume_from}")
        self.roll_back = roll_back


@dataclass
class DivergenceGuard:
    """Watches the loss of every step and says whether its update may be applied.

    Going back replays the same steps bit for bit, so where training goes on depends on the step of the
    divergence alone, never on which checkpoints happened to exist.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean", "steps", "skipped")

    settings: Guard = field(default_factory=Guard)
    roll_backs: tuple[RollBack, ...] = ()
    mean: float = 0.0
    steps: int = 0
    skipped: int = 0

    def allows(self, step: int, loss: float, gradient_norm: float) -> bool:
        """Return True if the update of `step` (from 0) may be applied; raise when the stage has to stop or go back."""
        wrong = self._what_is_wrong(loss, gradient_norm)
        if wrong is None:
            self.steps += 1
            self.mean = loss if self.steps == 1 else DECAY * self.mean + (1 - DECAY) * loss
            return True
        happened = self.skipped + len(self.roll_backs) + 1
        if self.settings.on_divergence == "stop" or happened > self.settings.most:
            raise DivergedError(f"step {step + 1}: {wrong}{self._advice(happened)}")
        if self.settings.on_divergence == "roll_back":
            raise RollBackError(
                RollBack(
                    diverged_at=step,
                    resume_from=max(0, step - self.settings.roll_back_steps),
                    skip_steps=self.settings.skip_steps,
                )
            )
        self.skipped += 1
        return False

    def data_step(self, step: int) -> int:
        """The step whose data are read at `step`: roll-backs leave some out.

        >>> back = RollBack(diverged_at=9, resume_from=5, skip_steps=10)
        >>> [DivergenceGuard(roll_backs=(back,)).data_step(step) for step in (4, 5, 9)]
        [4, 15, 19]
        """
        return step + sum(item.skip_steps for item in self.roll_backs if item.resume_from <= step)

    def seen_at(self, step: int) -> int:
        """Count the roll-backs that changed the data of the first `step` steps."""
        return sum(1 for item in self.roll_backs if item.resume_from < step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        return {"mean": self.mean, "steps": self.steps, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.mean, self.steps, self.skipped = float(state["mean"]), int(state["steps"]), int(state["skipped"])

    def _what_is_wrong(self, loss: float, gradient_norm: float) -> str | None:
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            return f"the loss or its gradient is not finite (loss {loss}, gradient norm {gradient_norm})"
        ratio = self.settings.spike_ratio
        if ratio is not None and self.steps >= FIRST_STEPS and loss > ratio * abs(self.mean):
            return f"the loss jumped to {loss:.4g}, over {ratio:g} times its running mean of {self.mean:.4g}"
        return None

    def _advice(self, happened: int) -> str:
        tried = f"; this is divergence {happened} of at most {self.settings.most}" if happened > 1 else ""
        return f"{tried}\n  lower learning_rate or raise warmup_steps; the checkpoints before this step are intact"


def read_roll_backs(stage_dir: Path) -> tuple[RollBack, ...]:
    """The roll-backs of a stage, in their order; a damaged file is refused, since the path taken hangs on it."""
    path = stage_dir / ROLL_BACKS
    return tuple(RollBack(**item) for item in read_sealed(path)[ROLL_BACKS_KEY]) if path.exists() else ()


def write_roll_backs(stage_dir: Path, roll_backs: tuple[RollBack, ...]) -> None:
    """Make the roll-backs durable, before anything acts on them."""
    write_sealed(stage_dir / ROLL_BACKS, {ROLL_BACKS_KEY: [vars(item) for item in roll_backs]})


LOGGED_POINTS = 200
"""About how many lines a stage writes to metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A finished step: what was measured, what work was done, and how good it is (higher is better)."""

    metrics: Mapping[str, float]
    counters: Mapping[str, int]
    score: float


class TrainingTask(Protocol):
    """Training task of one stage kind: its state, step and checks, as the training loop calls them."""

    unit: str
    """What a step is called: step, rollout."""
    state: TrainState
    guard: DivergenceGuard

    @property
    def ahead(self) -> int:
        """Number of steps by which data are read ahead."""

    @property
    def frozen(self) -> Sequence[nn.Module]:
        """Models that are read and never change."""

    @property
    def target_step(self) -> int:
        """Steps in all."""

    @property
    def parts(self) -> int:
        """Parts of a step."""

    def warm(self) -> None:
        """Whatever must have happened once in this process before its first part; changes no state."""

    def run_part(self, at: Position) -> StepReport | None:
        """Do the part after `at`; the report with the last part of a step."""

    def must_save(self, at: Position) -> bool:
        """Return True if the work just done may not be done again, whatever the checkpoint interval says."""


@dataclass
class Loop:
    """Runs a task to its target, from the newest checkpoint on the path taken."""

    setup: Setup
    task: TrainingTask
    samples: SampleDrawer | None = None

    def __post_init__(self) -> None:
        self._unreported = self.task.state.plain["unreported"] = _Unreported()
        self._guard = self.task.state.plain["guard"] = _GuardState(self.task.guard)
        self.checkpoints = Checkpointer(self.setup.stage, self.setup.ranks, self.task.state)

    def run(self) -> None:
        """Run to the target step; everything is durable when this returns."""
        at = self._resume()
        self._saved_at = time.monotonic()
        self._watch_bytes()
        self.task.warm()
        if self.samples is not None and at.step and at.part == 0:
            self.samples.make_up(at.step)
        while at.step < self.task.target_step:
            try:
                at = self._part(at)
            except RollBackError as error:
                at = self._roll_back(error.roll_back)
        with self.setup.meter.phase("save"):
            self.checkpoints.finish()

    def _watch_bytes(self) -> None:
        """Count what the state holds, and once, in a single process, all that a step allocates."""
        state, layout = self.task.state, self.setup.layout
        modules = [*state.modules.values(), *self.task.frozen]
        self.setup.meter.watch(modules, state.optimizers.values(), look=layout.is_plain)

    def _part(self, at: Position) -> Position:
        if at.part == 0:
            self.setup.stage.beat(f"{self.task.unit} {at.step + 1}")
        self.setup.stage.alive()
        report = self.task.run_part(at)
        at = Position(at.step, at.part + 1) if at.part + 1 < self.task.parts else Position(at.step + 1, 0)
        self.checkpoints.tick(at)
        if report is not None:
            self._report(at.step, report)
        stopping, due = self._agreed(at)
        if due or (stopping and at.step < self.task.target_step):
            self._save(at, report.score if report is not None and math.isfinite(report.score) else None)
        if stopping and at.step < self.task.target_step:
            self.checkpoints.finish()
            place = f"{self.task.unit} {at.step}" + (f", part {at.part} of the next" if at.part else "")
            raise InterruptedRunError(f"stopped at {place} of {self.task.target_step}, after a checkpoint")
        return at

    def _agreed(self, at: Position) -> tuple[bool, bool]:
        """Return the common decisions to stop and to save a checkpoint; every process gets the same answer."""
        wishes = self.setup.ranks.gather((self.setup.stage.should_stop(), self._is_due(at)))
        return any(stop for stop, _ in wishes), wishes[0][1]

    def _is_due(self, at: Position) -> bool:
        spec = self.setup.job.spec
        if at.step == self.task.target_step or self.task.must_save(at):
            return True
        waited = time.monotonic() - self._saved_at
        if spec.checkpoint_interval is not None and waited >= spec.checkpoint_interval:
            return True
        if at.part:
            return bool(getattr(spec, "checkpoint_epochs", False))
        return at.step % spec.checkpoint_every == 0

    def _report(self, step: int, report: StepReport) -> None:
        self._unreported.add(report.counters)
        every = max(1, self.task.target_step // LOGGED_POINTS)
        if step % every and step != self.task.target_step:
            return
        metrics = {
            **report.metrics,
            **self.setup.skipped.metrics(),
            **self.setup.meter.metrics(),
            **self.checkpoints.metrics(),
        }
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if self.setup.ranks.is_first:
            self.setup.stage.report(step, self.task.target_step, self.task.unit, metrics, self._unreported.work)
        self._unreported.work = {}

    def _save(self, at: Position, score: float | None) -> None:
        self._guard.seen = self.task.guard.seen_at(self._begun(at))
        with self.setup.meter.phase("save"):
            self.checkpoints.save(at, score)
            if self.samples is not None and at.part == 0:
                self.samples.draw(at.step)
        self._saved_at = time.monotonic()

    def _resume(self) -> Position:
        self.task.guard.roll_backs = read_roll_backs(self.setup.stage.path)
        position = self.checkpoints.load_latest()
        while position is not None and self._guard.seen != self.task.guard.seen_at(self._begun(position)):
            before = position
            if self.task.guard.roll_backs:
                last = self.task.guard.roll_backs[-1]
                self.checkpoints.set_aside_after(max(0, last.resume_from - self.task.ahead))
                position = self.checkpoints.load_latest()
            if position == before:
                raise DataError(
                    f"the checkpoint at step {before.step} does not belong to the roll-backs in {ROLL_BACKS}: one of "
                    "the two was changed from outside; move the stage's directory away to start it anew"
                )
        return position or Position(0, 0)

    def _begun(self, at: Position) -> int:
        """Return the number of steps whose data have been read, none of which a roll-back may have changed since.

        Data that are read ahead are there from the end of the step before: `at` of part 0 counts them too.
        """
        return at.step + (1 if at.part else 0) + (self.task.ahead if at != Position(0, 0) else 0)

    def _roll_back(self, roll_back: RollBack) -> Position:
        """Make the decision durable, then go on from the newest checkpoint before it."""
        self.checkpoints.finish()
        if self.setup.ranks.is_first:
            write_roll_backs(self.setup.stage.path, (*self.task.guard.roll_backs, roll_back))
        self.setup.ranks.wait()
        position = self._resume()
        if position == Position(0, 0):
            raise BeginAgainError(
                f"step {roll_back.diverged_at + 1} diverged; going back to step {roll_back.resume_from}, before which "
                "there is no checkpoint: the next attempt starts from the beginning"
            )
        return position


@dataclass
class _Unreported:
    """Work since the last line of metrics, so that lines after a resume count what an undisturbed run counts."""

    STATE: ClassVar[tuple[str, ...]] = ("work",)

    work: dict[str, int] = field(default_factory=dict)

    def add(self, counters: Mapping[str, int]) -> None:
        """A step is done."""
        for name, count in counters.items():
            self.work[name] = self.work.get(name, 0) + count

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        return {"work": dict(self.work)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.work = {str(name): int(count) for name, count in state["work"].items()}


class _GuardState:
    """The guard's state with the number of roll-backs that the trained weights have seen."""

    STATE: ClassVar[tuple[str, ...]] = ("seen", "_guard.mean", "_guard.steps", "_guard.skipped")

    def __init__(self, guard: DivergenceGuard) -> None:
        self._guard = guard
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        return {**self._guard.state_dict(), "seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self._guard.load_state_dict(state)
        self.seen = int(state["seen"])


def publish_model(
    setup: Setup, parallel: Parallel, save: Callable[[Path, Mapping[str, Tensor]], None], *, target_step: int
) -> None:
    """Publish the outputs from rank 0: `save` writes a model directory from whole tensors with plain names."""
    setup.stage.beat(PUBLISH)
    weights = parallel.full_state_dict()
    if setup.ranks.is_first:
        setup.stage.publish_outputs(
            lambda directory: save(directory / "model", weights), step=target_step, target_step=target_step
        )
    setup.ranks.wait()
    leave()
