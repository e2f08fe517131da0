"""Stages that stay where they are until a test has done to them what it wants to.

A stage that only takes its time has ended when the test comes late; one that is held has not.
"""

import os
import signal
import time
from collections.abc import Callable

from charter.artifacts import faults
from charter.artifacts.stage_dir import StageDir

GO = "go"
"""This file in the stage's directory lets it go on (`Workplace.release`)."""


def is_held(stage: StageDir, step: int) -> bool:
    """`COUNTING_HOLD=sft:3`: the first attempt at stage sft stays at step 3."""
    asked = os.environ.get("COUNTING_HOLD") == f"{stage.job.stage}:{step}"
    return asked and os.environ.get(faults.ATTEMPT, "1") == "1" and not (stage.path / GO).exists()


def hold(stage: StageDir, step: int) -> None:
    """Stay at a step, with signs of life, until the file is there or somebody asks the stage to stop."""
    until(lambda: not is_held(stage, step) or stage.should_stop(), meanwhile=stage.alive)


def until(is_so: Callable[[], object], *, meanwhile: Callable[[], object] = bool) -> None:
    """Stay until something is so, however long that takes: who waits for the stage gives up before."""
    while not is_so():
        meanwhile()
        time.sleep(0.01)


def take_time() -> None:
    """Take the `COUNTING_SECONDS_PER_STEP` of a step."""
    time.sleep(float(os.environ.get("COUNTING_SECONDS_PER_STEP", "0")))


def hang() -> None:
    """Do nothing any more, until a signal ends the process."""
    while True:
        signal.pause()
