"""The counting stage, which waits before a step as long as a file is there: `HELD=b:4:/path/of/the/file`."""

import os
import time
from pathlib import Path

import counting_stage

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main

misbehave = counting_stage._misbehave


def hold(stage: StageDir, step: int) -> None:
    """Wait while the file is there, with signs of life."""
    name, _, rest = os.environ.get("HELD", "").partition(":")
    at, _, path = rest.partition(":")
    while name == stage.job.stage and int(at) == step and Path(path).exists():
        stage.beat("wait")
        time.sleep(0.05)
    misbehave(stage, step)


def run(stage: StageDir) -> None:
    """The counting stage."""
    counting_stage._misbehave = hold
    counting_stage.run(stage)


if __name__ == "__main__":
    stage_main(run)
