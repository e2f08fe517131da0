"""Where a stage stands between two pieces of work: the only places at which it can be saved and continued."""

import re
from dataclasses import dataclass

_NAME = re.compile(r"step-(\d{8,})(?:-([1-9]\d*))?")


@dataclass(frozen=True, order=True)
class Position:
    """Finished steps, and finished parts of the step after them.

    A step is an optimizer step, a rollout with its updates, a batch of records. Steps of one part are always at part 0.
    """

    step: int
    part: int = 0

    @property
    def directory(self) -> str:
        """The name of a checkpoint's directory.

        >>> Position(12).directory, Position(12, 2).directory
        ('step-00000012', 'step-00000012-2')
        """
        return f"step-{self.step:08d}" + (f"-{self.part}" if self.part else "")

    def __str__(self) -> str:
        """The shortest name: `12`, or `12-2` in the middle of a step."""
        return f"{self.step}-{self.part}" if self.part else str(self.step)


def position_of(directory: str) -> Position | None:
    """The position that a directory's name stands for; None for other names, so for what was set aside.

    >>> position_of("step-00000012-2"), position_of("step-00000012.damaged-1")
    (Position(step=12, part=2), None)
    """
    found = _NAME.fullmatch(directory)
    return Position(int(found[1]), int(found[2] or 0)) if found else None
