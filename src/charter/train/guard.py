"""What happens when a loss is not finite or jumps, decided the same way in every run and after every resume."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from charter.artifacts.sealed import read_sealed, write_sealed
from charter.errors import StageError
from charter.spec.stage_parts import Guard

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
        """Whether the update of `step` (from 0) may be applied; raises when the stage has to stop or to go back."""
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
        """How many roll-backs changed the data of the first `step` steps."""
        return sum(1 for item in self.roll_backs if item.resume_from < step)

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs."""
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
