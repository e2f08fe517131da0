"""`charter run` with one stage that notes when it gets how far, and kills itself once: for resume_time.py.

As a stage module it wraps the real one: `RESUME_STAGE` says which, `RESUME_LOG` where times are noted.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charter.artifacts.faults import ATTEMPT

if __name__ != "__main__":
    # What a stage server imports before it forks.
    import charter.models.preload
    import charter.train.ppo
    import charter.train.sft  # noqa: F401

KILL_AFTER_STEP = 2


def run(stage: Any) -> None:
    """Run the real stage, noting times in its second attempt, killed in its first."""
    import importlib

    from charter.launch.job import STAGE_MODULES
    from charter.train import loop

    attempt = int(os.environ.get(ATTEMPT, "1"))
    if attempt > 1:
        note("stage_begins")
    begin, resume, report = loop.Loop.run, loop.Loop._resume, loop.Loop._report
    loop.Loop.run = noting("models_loaded", begin, before=True)  # type: ignore[method-assign]
    loop.Loop._resume = noting("checkpoint_loaded", resume)  # type: ignore[method-assign]
    if attempt > 1:
        loop.Loop._report = noting("first_step_done", report)  # type: ignore[method-assign]
    else:
        die_after(loop.Loop, "_save")
    importlib.import_module(STAGE_MODULES[stage.job.kind]).run(stage)


def note(what: str) -> None:
    """One line: what, and when."""
    with Path(os.environ["RESUME_LOG"]).open("a") as log:
        log.write(f"{what} {time.time()}\n")


def noting(what: str, function: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
    """The function, noted in the attempts after the first."""

    def wrapped(*arguments: Any) -> Any:
        again = int(os.environ.get(ATTEMPT, "1")) > 1
        if again and before:
            note(what)
        result = function(*arguments)
        if again and not before:
            note(what)
        return result

    return wrapped


def die_after(owner: Any, name: str) -> None:
    """Kill this process when a checkpoint of enough steps is durable."""
    save = getattr(owner, name)

    def wrapped(self: Any, at: Any, score: Any) -> None:
        save(self, at, score)
        if at.step >= KILL_AFTER_STEP:
            self.checkpoints.finish()
            note("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, wrapped)


def main() -> None:
    """Run the project in the first argument up to the stage in the second."""
    from charter.engines.project import load_project
    from charter.launch.job import STAGE_MODULES
    from charter.run.runner import RunOptions, run_project

    root, stage = Path(sys.argv[1]), sys.argv[2]
    run_project(
        load_project(root), root, RunOptions(only=(stage,), modules=dict.fromkeys(STAGE_MODULES, "resume_stage")), []
    )


if __name__ == "__main__":
    main()
