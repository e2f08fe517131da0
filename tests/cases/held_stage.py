"""The counting stage, which waits before a step as long as a file is there: `HELD=b:4:/path/of/the/file`.

Several of them, for several stages, are parted by blanks. What is done to a stage in the middle is done to one that
waits: it cannot have ended before, however late the test is.
"""

import os
from pathlib import Path

import counting_stage
from gate import until

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main

misbehave = counting_stage._misbehave


def hold(stage: StageDir, step: int) -> None:
    """Wait while the file is there, with signs of life; a stage that is asked to stop waits no longer.

    A file of its own beside it, named by the process id, says that a process has come to the wait.
    """
    for asked in os.environ.get("HELD", "").split():
        name, at, path = asked.split(":", 2)
        if name != stage.job.stage or int(at) != step:
            continue
        Path(f"{path}.{os.getpid()}").touch()
        until(
            lambda place=Path(path): not place.exists() or stage.should_stop(),
            meanwhile=lambda: stage.beat("wait"),
        )


def held_step(stage: StageDir, step: int) -> None:
    """Wait where that is asked, then what the counting stage does there."""
    hold(stage, step)
    misbehave(stage, step)


def run(stage: StageDir) -> None:
    """The counting stage."""
    counting_stage._misbehave = held_step
    counting_stage.run(stage)


if __name__ == "__main__":
    stage_main(run)
