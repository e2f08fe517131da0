"""A hosted stage whose engine is `fake_trainer.py`: `python faked.py --stage-dir D`, the fault in the environment."""

import os
import sys
from pathlib import Path

import charter.hosted.run as hosted
from charter.artifacts.stage_process import stage_main
from charter.engines.common.rendered import RenderedRun, Resume

TRAINER = Path(__file__).parent / "fake_trainer.py"
FAULT, EVERY = "FAULT", "EVERY"


def render(handover):
    """The command of the fake engine instead of TRL's."""
    paths = handover.paths
    words = [paths.trained, "output", str(handover.target_steps), os.environ.get(EVERY, "2")]
    resume = [paths.resume_from] if paths.resume_from else []
    if handover.num_nodes > 1:
        words = ["--node=${NODE_RANK}", *words]
    return RenderedRun(
        files={"sft.yaml": "max_steps: 6\n"},
        command=("python", str(TRAINER), *words, os.environ.get(FAULT, "none"), *resume),
        mapping=(),
        resume=Resume(guarantee="bit_exact", reason="of a fake", source="here"),
        environment={"MADE_BY": "charter"},
    )


def run(stage):
    hosted.render = render
    hosted.run(stage)


if __name__ == "__main__":
    sys.path.insert(0, str(TRAINER.parent))
    stage_main(run)
