"""prime-rl's `rl`, from the newest whole checkpoint of the run directory, or from the beginning."""

import os
import pathlib
import sys

work = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(work))
os.environ["PYTHONPATH"] = os.pathsep.join([str(work), *filter(None, [os.environ.get("PYTHONPATH")])])
# Its processes are started by their names.
os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])


def newest():
    steps = work.joinpath("run", "checkpoints").glob("step_*")
    whole = (path for path in steps if (path / "trainer" / ".metadata").exists())
    whole = (path for path in whole if (path / "orchestrator" / "progress.pt").exists())
    return max((int(path.name.removeprefix("step_")) for path in whole), default=None)


from prime_rl.entrypoints.rl import main

step = newest()
sys.argv += ["--clean"] if step is None else ["--resume.step", str(step)]
main()
