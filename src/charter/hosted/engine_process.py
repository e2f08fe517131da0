"""The processes of an engine as one: started under a guard, asked to stop, ended, and found again when left over.

Pump of an engine's output into the stage's own log, where `charter logs` shows it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from charter.errors import StageError
from charter.hosted import guard

_MOST_BYTES = 1 << 20
_END_BYTES = 1 << 16
_LONGEST = 400


class LogPump:
    """Passes on what has been added to a file since it last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def pump(self) -> None:
        """Pass on what is new; at most a megabyte at a time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                new_bytes = file.read(_MOST_BYTES)
        except OSError:
            return
        if new_bytes:
            self._position += len(new_bytes)
            sys.stdout.write(new_bytes.decode(errors="replace"))
            sys.stdout.flush()

    def last_lines(self, number: int) -> str:
        """The last lines of the file, for a message."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - _END_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join([line[:_LONGEST] for line in lines if line.strip()][-number:])


MARK = "CHARTER_HOSTED_STAGE"
"""Set in every process of an engine: the stage directory that it works for."""
_OF_CHARTERS_PROCESS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CHARTER_GROUP",
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables that say what Charter's own process is, and would mislead an engine's."""
END_SECONDS = 60.0
"""How long killed processes may take to be gone: memory of an accelerator is freed first."""


class EngineProcess:
    """A running engine; when this process ends, in whatever way, all processes of the engine are killed."""

    def __init__(
        self, command: Sequence[str], *, directory: Path, log: Path, environment: Mapping[str, str], stage_dir: Path
    ) -> None:
        self._stage_dir = stage_dir
        read, self._held = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", str(Path(guard.__file__).resolve()), str(read), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=directory,
                    env={**environment, MARK: str(stage_dir)},
                    pass_fds=(read,),
                    start_new_session=True,
                )
        finally:
            os.close(read)

    def poll(self) -> int | None:
        """The exit code of the engine (128 and the number of a signal), or None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """SIGTERM to the engine."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill all of the engine, and wait until it is gone."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            end_left(self._stage_dir)  # the guard itself among them: alone it would leave the engine behind
            self._process.wait()

    _held: int | None


def engine_environment(extra: Mapping[str, str], *, python: str) -> dict[str, str]:
    """The variables of an engine's processes: those of this one, without what names its own place, and `extra`.

    Programs of the engine's environment (`accelerate`, `torchrun`) are found first. Nothing is fetched from a hub
    unless `extra` says so: what a stage reads lies in directories.
    """
    own = {name: value for name, value in os.environ.items() if name not in _OF_CHARTERS_PROCESS}
    path = os.pathsep.join([os.path.dirname(python), own.get("PATH", os.defpath)])
    return {**own, "HF_HUB_OFFLINE": "1", "PATH": path, **extra}


def end_left(stage_dir: Path) -> int:
    """Kill what an earlier start has left of an engine in a stage directory, and wait for its end; how many it were.

    The guard sees to it that there is nothing; this is for the case that the guard was killed itself.
    """
    deadline, ended = time.monotonic() + END_SECONDS, set[int]()
    while left := _marked(stage_dir):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= left
        if time.monotonic() > deadline:
            raise StageError(
                f"processes {', '.join(map(str, sorted(left)))} of an earlier start still work in {stage_dir}, and "
                "SIGKILL did not end them; end them by hand"
            )
        time.sleep(0.01)
    return len(ended)


def _marked(stage_dir: Path) -> set[int]:
    wanted = f"{MARK}={stage_dir}".encode()
    pids = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            while (environment := _environment(name)) is None:
                time.sleep(0.001)
            if wanted in environment:
                pids.add(int(name))
    return pids


PF_KTHREAD = 0x00200000
"""Flag of a thread of the kernel, of which `/proc/PID/cmdline` is empty for good (linux/sched.h)."""


def _environment(pid: str) -> list[bytes] | None:
    """Return the variables of a process; None while it becomes another program.

    Its parent knows that `exec` has succeeded before the kernel has set out arguments and variables: until then both
    are empty, and a process with the mark would be missed.
    """
    place = Path("/proc", pid)
    if variables := (place / "environ").read_bytes():
        return variables.split(b"\0")
    state, *numbers = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
    is_settled = state in "ZX" or int(numbers[5]) & PF_KTHREAD or (place / "cmdline").read_bytes()
    return [] if is_settled else None
