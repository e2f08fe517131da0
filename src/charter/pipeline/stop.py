"""Stopping a run from another terminal."""

import contextlib
import os
import signal
from pathlib import Path

from charter.artifacts.lease import Holder, ends_within, read_holder
from charter.errors import UsageError
from charter.pipeline.paths import run_dir


def stop_run(root: Path, *, wait_seconds: float) -> Holder | None:
    """Ask the run of a project directory to stop at its next safe point and wait for it.

    Returns the process that was stopped, None when none is running.
    """
    holder = read_holder(run_dir(root) / "lease.json")
    if holder is None:
        return None
    if not holder.is_here:
        raise UsageError(f"the run is held by {holder}; stop it there")
    if not holder.is_alive:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    if not ends_within(holder, wait_seconds):
        raise UsageError(
            f"the run ({holder}) was asked to stop and is still on its way to a safe point; look again with "
            "`charter status`"
        )
    return holder
