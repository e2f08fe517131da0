"""The process of one stage: `python -m charter.train.sft --stage-dir D`, or a fork of the stage server.

It dies with its parent, stops at a safe point on SIGTERM, and turns every ending into a documented exit code
and, when it failed, `failure.json`. The traceback of a defect goes to the log only.
"""

import argparse
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from charter.artifacts import durable, faults
from charter.artifacts.lease import Lease
from charter.artifacts.stage_dir import StageDir
from charter.errors import CharterError, DataError, InterruptedRunError, MissingExtraError, StageError

FAILURE, LOG = "failure.json", "log.txt"
INTERNAL_EXIT, INTERRUPTED_EXIT = 1, InterruptedRunError.exit_code
RUN_EXTRA = frozenset({"torch", "transformers", "tokenizers", "safetensors"})
PIP_COMMAND = 'pip install "charter-plan[run]"'
_PR_SET_PDEATHSIG = 1


def stage_main(run: Callable[[StageDir], None], argv: Sequence[str] | None = None) -> NoReturn:
    """Run a stage module as a process of its own: parse `--stage-dir`, run, exit."""
    parser = argparse.ArgumentParser(description="Run one stage of a Charter pipeline.")
    parser.add_argument("--stage-dir", type=Path, required=True)
    arguments = parser.parse_args(argv)
    if parent := os.environ.get(faults.SUPERVISOR_PID):
        die_with_parent(int(parent))
    sys.exit(run_stage(lambda: run, arguments.stage_dir.resolve()))


def run_stage(load: Callable[[], Callable[[StageDir], None]], path: Path) -> int:
    """Run a stage in this process; the exit code says how it ended.

    `load` gives the stage's function: importing it is part of the attempt, since it may lack a library.
    """
    stop = _StopRequest()
    try:
        (path / FAILURE).unlink(missing_ok=True)
        with Lease(path, lock_name="lease.lock", what="the stage directory"):
            stage = StageDir(path, should_stop=stop)
            faults.boundary(stage.job.stage, "start", 0, "before")
            load()(stage)
            return _ending(stage, stop)
    except BaseException as error:
        return _failed(path, error)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent ends (Linux); do so now if it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


class _StopRequest:
    """Remembers SIGTERM.

    A second one changes nothing, since the stage is already on its way to a safe point.
    """

    def __init__(self) -> None:
        self._seen = False
        signal.signal(signal.SIGTERM, self._remember)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _remember(self, number: int, frame: Any) -> None:
        self._seen = True

    def __call__(self) -> bool:
        return self._seen


def _ending(stage: StageDir, stop: _StopRequest) -> int:
    if stage.is_done:
        return 0
    if stop():
        return INTERRUPTED_EXIT
    raise StageError(f"stage {stage.job.stage} ended without publishing its outputs, so it is not done")


def _failed(path: Path, error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else INTERNAL_EXIT
    known = _as_charter_error(error)
    if isinstance(known, InterruptedRunError):
        return INTERRUPTED_EXIT
    if known is None:
        code, label, message = (
            INTERNAL_EXIT,
            "internal",
            f"{type(error).__name__}: {error} (traceback in {path / LOG})",
        )
        _append_text(path / LOG, "".join(traceback.format_exception(error)))
    else:
        code, label, message = known.exit_code, known.label, str(known)
    print(f"error[{label}]: {message}", file=sys.stderr)
    durable.write_hint(path / FAILURE, {"exit_code": code, "label": label, "message": message})
    return code


def _as_charter_error(error: BaseException) -> CharterError | None:
    """The clear form of an error that users can do something about; None for a defect."""
    if isinstance(error, CharterError):
        return error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in RUN_EXTRA:
        return MissingExtraError(f"running stages needs {error.name}: {PIP_COMMAND} (planning works without it)")
    if durable.is_disk_full(error):
        return DataError(
            f"disk full: {error}\n  free some space and run the same command again; checkpoints are intact"
        )
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return StageError(f"out of memory: {error}\n  use a smaller resources.micro_batch, or recompute: full")
    return None


def _append_text(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        print(text, file=sys.stderr)
