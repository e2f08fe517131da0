"""The process of one stage: `python -m charter.train.sft --stage-dir D`, or a fork of the stage server.

It dies with its parent, stops at a safe point on SIGTERM, prints its stacks into its log on SIGUSR1, and turns every
ending into a documented exit code and, when it failed, `failure.json`. The traceback of a defect goes to the log only.
A stage may have several processes (`charter.artifacts.group`): rank 0 holds the lease.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from charter.artifacts import durable, faults
from charter.artifacts.fingerprint import is_disk_full
from charter.artifacts.group import START, WORLD_SIZE, failure_name, log_name, rank_of_process, works_apart
from charter.artifacts.lease import Lease, Membership, ShareLease
from charter.artifacts.stage_dir import StageDir
from charter.errors import (
    CharterError,
    DataError,
    ExitCode,
    InterruptedRunError,
    MissingExtraError,
    StageError,
    how_to_install,
)
from charter.redaction import hide_output, without_secrets

INTERNAL_EXIT, INTERRUPTED_EXIT = ExitCode.INTERNAL, ExitCode.INTERRUPTED
PEER_EXIT = 9
"""Of a process that ended because another one of the stage was lost; never the exit code of a run."""
OUT_OF_MEMORY, DISK_FULL, PEER_LOST = "out_of_memory", "disk_full", "peer"
"""Labels in `failure.json` beside those of `charter.errors`."""
_LOST_CONNECTION = ("DistBackendError", "DistNetworkError", "DistStoreError")
_GLOO = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "gloo/transport")
LOST_PEER_WORDS = (*_LOST_CONNECTION, *_GLOO)
"""In an error of a process that lost another one, which says nothing about why that one ended."""
RUN_EXTRA = frozenset({"torch", "transformers", "tokenizers", "safetensors"})
_PR_SET_PDEATHSIG = 1
_OOM_ADJUSTMENT = Path("/proc/self/oom_score_adj")
_OOM_RAISE, _OOM_MOST = 500, 1000
"""Half of the memory that the kernel counts for; 1,000 is the most it takes (proc(5))."""


def stage_main(run: Callable[[StageDir], None]) -> NoReturn:
    """Run a stage module as a process of its own: parse `--stage-dir`, run, exit."""
    parser = argparse.ArgumentParser(description="Run one stage of a Charter pipeline.")
    parser.add_argument("--stage-dir", type=Path, required=True)
    arguments = parser.parse_args()
    if parent := os.environ.get(faults.SUPERVISOR_PID):
        die_with_parent(int(parent) or os.getppid())
    code = run_stage(lambda: run, arguments.stage_dir.resolve())
    if int(os.environ.get(WORLD_SIZE, "1")) > 1:
        end_now(code)
    sys.exit(code)


def end_now(code: int) -> NoReturn:
    """End without tearing libraries down, which may wait for processes that are gone."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run_stage(load: Callable[[], Callable[[StageDir], None]], path: Path) -> int:
    """Run a stage in this process; the exit code says how it ended.

    `load` gives the stage's function: importing it is part of the attempt, since it may lack a library.
    """
    rank, stop = rank_of_process(), _StopRequest()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    offer_to_out_of_memory_killer()
    hide_output()
    try:
        (path / failure_name(rank)).unlink(missing_ok=True)
        with _hold(path, rank):
            stage = StageDir(path, should_stop=stop)
            stage.beat(START)
            faults.boundary(stage.job.stage, "start", 0, "before")
            try:
                load()(stage)
            finally:
                stage.write_last_progress()
            return _ending(stage, stop, rank)
    except BaseException as error:
        return _failed(path, error, rank)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent ends (Linux); do so now if it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def offer_to_out_of_memory_killer(adjustment: Path = _OOM_ADJUSTMENT) -> None:
    """Have the kernel end this process before its supervisor where memory runs out (Linux).

    A stage that dies is restarted from its checkpoint by the supervisor, and the record says why; a supervisor that
    dies takes all its stages with it and explains nothing. By itself the kernel ends whichever is larger.
    """
    with contextlib.suppress(OSError, ValueError):  # no Linux, or a file system of processes that cannot be written
        adjustment.write_text(str(min(int(adjustment.read_text()) + _OOM_RAISE, _OOM_MOST)))


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


def _hold(path: Path, rank: int) -> contextlib.AbstractContextManager[object]:
    if works_apart():
        return ShareLease(path)
    if rank:
        return Membership(path, rank)
    return Lease(path, lock_name="lease.lock", what="the stage directory")


def _ending(stage: StageDir, stop: _StopRequest, rank: int) -> int:
    if stage.is_done:
        return 0
    if stop():
        return INTERRUPTED_EXIT
    if rank or works_apart():
        return 0
    raise StageError(f"stage {stage.job.stage} ended without publishing its outputs, so it is not done")


def _failed(path: Path, error: BaseException, rank: int) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else INTERNAL_EXIT
    if isinstance(error, InterruptedRunError):
        return INTERRUPTED_EXIT
    code, label, message = _told(error)
    message = without_secrets(message)
    if label == "internal":
        message = f"{message} (traceback in {path / log_name(rank)})"
    if label in ("internal", PEER_LOST):
        _append_text(path / log_name(rank), without_secrets("".join(traceback.format_exception(error))))
    print(f"error[{label}]: {message}", file=sys.stderr)
    durable.write_hint(path / failure_name(rank), {"exit_code": code, "label": label, "message": message})
    return code


def _told(error: BaseException) -> tuple[int, str, str]:
    """Exit code, label and message of an error; what users can do something about is in the message."""
    if is_disk_full(error):
        advice = "free some space and run the same command again; checkpoints are intact"
        message = str(error) if isinstance(error, CharterError) else f"disk full: {error}\n  {advice}"
        return DataError.exit_code, DISK_FULL, message
    if isinstance(error, CharterError):
        return error.exit_code, error.label, str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in RUN_EXTRA:
        lacking = f"running stages needs {error.name}: {how_to_install('run')} (planning works without it)"
        return MissingExtraError.exit_code, MissingExtraError.label, lacking
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        advice = "use a smaller resources.micro_batch, or recompute: full"
        return StageError.exit_code, OUT_OF_MEMORY, f"out of memory: {error}\n  {advice}"
    if _lost_a_peer(error):
        return PEER_EXIT, PEER_LOST, f"lost another process of the stage: {str(error).splitlines()[0]}"
    return INTERNAL_EXIT, "internal", f"{type(error).__name__}: {error}"


def _lost_a_peer(error: BaseException) -> bool:
    """Return True if the connection to another process broke, which says nothing about why that one ended."""
    if int(os.environ.get(WORLD_SIZE, "1")) == 1 or works_apart():
        return False
    named = type(error).__name__ in _LOST_CONNECTION or isinstance(error, ConnectionError)
    return named or (isinstance(error, RuntimeError) and any(words in str(error) for words in _GLOO))


def _append_text(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        print(text, file=sys.stderr)
