"""A supervisor that is a job itself (`charter submit`): its engine may end it and start it again, here or elsewhere.

Its stages are jobs of their own and go on meanwhile; the next start finds them.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from charter.artifacts.lease import Lease
from charter.errors import UsageError
from charter.launch.job import RESTART, SENT

LOOK_SECONDS = 1.0


def is_started_again(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether SIGTERM was sent by an engine that will start this supervisor again, so that stages need not stop.

    Only Slurm keeps a job's number, and says so; on other engines stages stop at checkpoints, and the next start goes
    on from these.
    """
    if environ.get(SENT) != "slurm":
        return False
    from charter.launch.slurm.own_job import is_put_back

    if not is_put_back(environ):
        return False
    print("Slurm takes this supervisor's place away and starts it again; its stages go on", file=sys.stderr)
    return True


def take_run(run_dir: Path, *, stop_wanted: Callable[[], bool], environ: Mapping[str, str] = os.environ) -> Lease:
    """The hold on a run. A supervisor that was started again waits for it: its last start may seem to live, or does.

    One that was lost is taken for dead half a minute later; one that is only cut off works until its machine ends it.
    """
    waits = SENT in environ and int(environ.get(RESTART) or 0) > 0
    said = False
    while True:
        try:
            return Lease(run_dir, lock_name="run.lock", what="the project")
        except UsageError as error:
            if not waits or stop_wanted():
                raise
            if not said:
                print(f"{error}; this supervisor was started again and waits for it", file=sys.stderr, flush=True)
                said = True
        time.sleep(LOOK_SECONDS)
