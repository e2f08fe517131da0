"""Stages that stay where they are until a test has done to them what it wants to.

A stage that only takes its time has ended when the test comes late; one that is held has not.
"""

import os
import time

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
    while is_held(stage, step) and not stage.should_stop():
        stage.alive()
        time.sleep(0.02)
