"""What an ended stage process means: done, to be restarted, or a failure that ends the run."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_process import FAILURE, LOG
from charter.errors import CharterError, DataError, MissingExtraError, StageError
from charter.ledger import Outcome
from charter.pipeline.attempt import RunningAttempt, last_step
from charter.pipeline.graph import PlannedStage
from charter.pipeline.restart import Ending
from charter.pipeline.staleness import checkpoint_step

_ERRORS: Mapping[int, type[CharterError]] = {7: MissingExtraError, 8: DataError}
"""Exit codes of a stage that the run passes on; every other failure is a stage failure (5)."""


def is_finished(stage: PlannedStage) -> bool:
    """Step target reached, record written, outputs verified: the only meaning of done."""
    record = read_record(stage.directory)
    if record is None or record.fingerprint != stage.asked_fingerprint:
        return False
    return record.step == record.target_step and damaged_output(stage.directory, record) is None


def ending_of(attempt: RunningAttempt, exit_code: int, *, out_of_memory: bool) -> Ending:
    """How an attempt ended, for the restart policy."""
    return Ending(
        exit_code=exit_code,
        step=last_step(attempt),
        checkpoint_step=checkpoint_step(attempt.stage.directory),
        out_of_memory=out_of_memory,
    )


def outcome_of(ending: Ending) -> Outcome:
    """The ledger's word for an ending that did not finish the stage."""
    if ending.exit_code == 6:
        return "interrupted"
    return "killed" if ending.was_killed else "failed"


def describe_ending(attempt: RunningAttempt, ending: Ending) -> str:
    """What happened, in words."""
    if attempt.timed_out:
        return f"ran longer than its timeout of {attempt.stage.spec.timeout:g} s"
    if ending.out_of_memory:
        return "was killed by the kernel for lack of memory"
    if ending.exit_code < 0:
        return f"was killed by {_signal_name(-ending.exit_code)}"
    if ending.exit_code == 0:
        return "ended with exit code 0 without reaching its target and publishing verified outputs"
    if ending.exit_code == 6:
        return "was stopped from outside at a safe point"
    message = failure_message(attempt.stage.directory)
    return message or f"ended with exit code {ending.exit_code}"


def failure_of(stage: PlannedStage, what: str, exit_code: int, reason: str) -> CharterError:
    """The error that ends the run because of a stage."""
    kind = _ERRORS.get(exit_code, StageError)
    log = stage.directory / LOG
    return kind(f"stage {stage.name}: {what}\n  given up: {reason}; the log is {log}")


def failure_message(directory: Path) -> str:
    """The message of the stage's own `failure.json`, empty when there is none."""
    try:
        content: Any = durable.read_json(directory / FAILURE)
    except DataError:
        return ""
    return str(content.get("message", "")) if isinstance(content, dict) else ""


def write_failure(directory: Path, *, exit_code: int, label: str, message: str) -> None:
    """Leave word of a failure that the stage process could not write itself."""
    durable.write_hint(directory / FAILURE, {"exit_code": exit_code, "label": label, "message": message})


def oom_kills(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes the kernel has killed for memory in this control group (v2 or v1)."""
    for path in (cgroup / "memory.events", cgroup / "memory" / "memory.oom_control"):
        try:
            lines = path.read_text(encoding="ascii").split("\n")
        except OSError:
            continue
        for name, _, count in (line.partition(" ") for line in lines):
            if name == "oom_kill" and count.isdecimal():
                return int(count)
    return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
