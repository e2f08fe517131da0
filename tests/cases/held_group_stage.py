"""The group stage, all of whose processes wait before a step as `held_stage` does."""

import group_stage
from held_stage import hold

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main

misbehave = group_stage._misbehave


def held_step(stage: StageDir, rank: int, step: int) -> None:
    """Wait where that is asked, then what the group stage does there."""
    hold(stage, step)
    misbehave(stage, rank, step)


def run(stage: StageDir) -> None:
    """The group stage."""
    group_stage._misbehave = held_step
    group_stage.run(stage)


if __name__ == "__main__":
    stage_main(run)
