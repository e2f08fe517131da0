"""Lets a test hold TRL before a step: the engine's interpreter finds this on PYTHONPATH and imports it first.

A file `hold-STAGE` in the project's directory has the number of a step that does not begin while the file is there;
`held-STAGE` appears once the trainer stands before it. A checkpoint that SIGTERM has asked for is let through. So a
stage still runs when a test kills or stops it, however quick the machine is and however long the test stood still.
"""

import os
import sys
import time
from pathlib import Path

LOOK_SECONDS = 0.02


def hold_trainer(stage_dir: Path) -> None:
    """Have every step of the Trainer of this process begin only when it may."""
    # Only a process that trains gets here; it would import this a moment later.
    from transformers.trainer_callback import CallbackHandler

    project, stage = stage_dir.parents[2], stage_dir.name.rpartition("-")[0]
    begin = CallbackHandler.on_step_begin

    def begin_when_allowed(handler, args, state, control):
        while _is_held(project / f"hold-{stage}", state.global_step) and not _is_asked_to_save(handler):
            (project / f"held-{stage}").touch()
            time.sleep(LOOK_SECONDS)
        return begin(handler, args, state, control)

    CallbackHandler.on_step_begin = begin_when_allowed


def _is_held(path: Path, done_steps: int) -> bool:
    try:
        return done_steps + 1 >= int(path.read_text())
    except FileNotFoundError:
        return False


def _is_asked_to_save(handler) -> bool:
    managers = [getattr(callback, "jit_manager", None) for callback in handler.callbacks]
    return any(manager is not None and manager.is_checkpoint_requested for manager in managers)


if "CHARTER_HOSTED_STAGE" in os.environ and any(word.startswith("trl.scripts") for word in sys.orig_argv):
    hold_trainer(Path(os.environ["CHARTER_HOSTED_STAGE"]))
