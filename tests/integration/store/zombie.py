"""Takes a stage directory, says so, and publishes a checkpoint at every line that it is sent: `zombie.py DIR`."""

import sys
from pathlib import Path

from charter.artifacts.lease import Lease
from charter.artifacts.stage_dir import StageDir
from charter.errors import CharterError

directory = Path(sys.argv[1])
try:
    with Lease(directory, lock_name="lease.lock", what="the stage directory"):
        print("held", flush=True)
        for line in sys.stdin:
            word, _, step = line.strip().partition(" ")
            stage = StageDir(directory)
            write = lambda out: (out / "who").write_text(sys.argv[2]) and None  # noqa: E731
            if word == "save":
                stage.save_checkpoint(int(step), write)
            elif word == "publish":
                stage.publish_outputs(write, step=int(step), target_step=int(step))
            elif word == "report":
                stage.report(int(step), 9, "steps", {"loss": 1.0})
            print(f"did {word}", flush=True)
except CharterError as error:
    print(f"error {error.exit_code}: {error}", flush=True)
    sys.exit(error.exit_code)
