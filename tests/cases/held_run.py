"""Runs whose stages wait until they are let go: what is watched while they run cannot have ended before."""

import contextlib
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]
HANG_SECONDS = 300.0
"""Only there to end a hang."""


@dataclass
class HeldRun:
    """A run of counting stages, each of which waits before its fourth step."""

    work: Any
    gates: Path
    process: Any = None

    def start(self, *stages):
        """Start it; these stages wait."""
        self.gates.mkdir()
        for stage in stages:
            (self.gates / stage).touch()
        held = " ".join(f"{stage}:4:{self.gates / stage}" for stage in stages)
        own = (str(TREE / "cases"), str(TREE / "integration"))
        path = os.pathsep.join(filter(None, (*own, os.environ.get("PYTHONPATH"))))
        self.process = self.work.start(COUNTING_MODULE="held_stage", HELD=held, PYTHONPATH=path)
        return self.process

    def wait_for(self, what):
        """Wait until something is so; what it says."""
        found = []
        self.work.wait_for(lambda: found.append(what()) or found[-1], seconds=HANG_SECONDS)
        return found[-1]

    def stage_dir(self, stage):
        """Its directory, None before it has one."""
        return next((self.work.root / "run" / "stages").glob(f"{stage}-????????"), None)

    def let_go(self, stage):
        """Let a stage go on."""
        (self.gates / stage).unlink()

    def finish(self):
        """Wait for the end of the run."""
        return self.work.wait(self.process, timeout=HANG_SECONDS)

    def lose_the_machine(self):
        """Kill the supervisor with its group, and remove the run once nobody is left who could write into it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.work.wait(self.process, timeout=HANG_SECONDS)
        self.wait_for(lambda: not working_below(self.work.root))
        shutil.rmtree(self.work.root / "run")


def working_below(root):
    """The processes whose command names a place in a project: stages, what follows the run, the supervisor."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(word == bytes(root) or word.startswith(bytes(root / "run")) for word in words):
                found.append(int(path.parent.name))
    return found
