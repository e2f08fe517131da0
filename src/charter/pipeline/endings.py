"""What an ended stage process means: done, to be restarted, or a failure that ends the run."""

import signal
from collections.abc import Mapping
from typing import Any

from charter.artifacts import durable
from charter.artifacts.group import FAILURE, failure_name, log_name
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_process import DISK_FULL, INTERRUPTED_EXIT, OUT_OF_MEMORY, PEER_EXIT
from charter.errors import CharterError, DataError, MissingExtraError, StageError
from charter.ledger import Outcome
from charter.pipeline.attempt import RunningAttempt, last_step
from charter.pipeline.graph import PlannedStage
from charter.pipeline.restart import Ending, FailureClass
from charter.pipeline.staleness import checkpoint_position

_ERRORS: Mapping[int, type[CharterError]] = {7: MissingExtraError, 8: DataError}
"""Exit codes of a stage that the run passes on; every other failure is a stage failure (5)."""
PERMANENT = frozenset({2, 3, 4, 7, 8})
"""Exit codes that another attempt would only repeat: configuration, budget, a missing tool, bad data."""
BY_CAUSE: Mapping[str, FailureClass] = {
    "preempted": "preempted",
    "time_limit": "time_limit",
    "node_lost": "lost",
    "out_of_memory": "out_of_memory",
    "cancelled": "stopped",
}
"""What an engine's word for the end of a job says, where the stage did not fail by itself."""
BY_LABEL: Mapping[str, FailureClass] = {
    OUT_OF_MEMORY: "out_of_memory",
    DISK_FULL: "disk_full",
    "diverged": "not_finite",
    "begin_again": "begin_again",
}
"""What the label in a stage's own `failure.json` says."""
_BY_ENGINE = {
    "preempted": "was preempted by its engine",
    "time_limit": "came to the time limit of its job",
}
OWN_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
"""What a process brings upon itself."""


def is_finished(stage: PlannedStage) -> bool:
    """Step target reached, record written, outputs verified: the only meaning of done."""
    record = read_record(stage.directory)
    if record is None or record.fingerprint != stage.asked_fingerprint:
        return False
    return record.step == record.target_step and damaged_output(stage.directory, record) is None


def ending_of(attempt: RunningAttempt, exit_code: int, *, out_of_memory: bool) -> Ending:
    """How an attempt ended, for the restart policy; `out_of_memory`: the kernel has killed a process for memory."""
    label = _failure(attempt).get("label", "")
    failure = classify(
        exit_code, label=str(label), hung=attempt.hang is not None, timed_out=attempt.timed_out, oom=out_of_memory
    )
    by_engine = BY_CAUSE.get(attempt.handle.cause)
    return Ending(
        failure=by_engine if by_engine and failure in ("lost", "stopped") else failure,
        exit_code=exit_code,
        step=last_step(attempt),
        checkpoint=checkpoint_position(attempt.stage.directory),
    )


def classify(exit_code: int, *, label: str, hung: bool, timed_out: bool, oom: bool) -> FailureClass:
    """The class of a failure.

    >>> classify(-9, label="", hung=False, timed_out=False, oom=True)
    'out_of_memory'
    >>> classify(5, label="diverged", hung=False, timed_out=False, oom=False)
    'not_finite'
    """
    if timed_out or hung:
        return "timeout" if timed_out else "hung"
    if exit_code in (-signal.SIGKILL, 137):
        return "out_of_memory" if oom else "lost"
    if exit_code < 0:
        return "crashed" if -exit_code in OWN_SIGNALS else "lost"
    if exit_code == INTERRUPTED_EXIT:
        return "stopped"
    if exit_code in (PEER_EXIT, 143):
        return "lost"
    if label in BY_LABEL and exit_code:
        return BY_LABEL[label]
    return "permanent" if exit_code in PERMANENT else "error"


def outcome_of(ending: Ending) -> Outcome:
    """The ledger's word for an ending that did not finish the stage."""
    match ending.failure:
        case "stopped" | "time_limit" | "preempted":
            return "interrupted" if ending.exit_code == INTERRUPTED_EXIT else "killed"
        case "hung":
            return "hung"
        case "lost" | "crashed" | "timeout":
            return "killed"
        case "out_of_memory":
            return "killed" if ending.exit_code in (-signal.SIGKILL, 137) else "failed"
    return "failed"


def describe_ending(attempt: RunningAttempt, ending: Ending) -> str:
    """What happened, in words."""
    who = f"process {attempt.handle.failed_rank} of {attempt.handle.processes} " if attempt.handle.processes > 1 else ""
    code, message = ending.exit_code, str(_failure(attempt).get("message", ""))
    if ending.failure == "timeout":
        return f"ran longer than its timeout of {attempt.stage.spec.timeout:g} s"
    if attempt.hang is not None:
        return attempt.hang.words(attempt.handle.processes)
    if ending.failure in _BY_ENGINE:
        return f"{_BY_ENGINE[ending.failure]}{' at a checkpoint' if code == INTERRUPTED_EXIT else ''}"
    if attempt.handle.cause == "node_lost":
        return f"its node was lost{f' ({attempt.handle.note})' if attempt.handle.note else ''}"
    if ending.failure == "out_of_memory" and not message:
        advice = "use a smaller resources.micro_batch, recompute: full, or a machine with more memory"
        return f"{who}was killed by the kernel for lack of memory; {advice}"
    if code < 0:
        return f"{who}was killed by {_signal_name(-code)}"
    if code == 0:
        return "ended with exit code 0 without reaching its target and publishing verified outputs"
    if ending.failure == "stopped":
        return "was stopped from outside at a safe point"
    if message and attempt.handle.failed_rank:
        return f"{who.strip()}: {message}"
    return message or f"{who}ended with exit code {code}"


def failure_of(attempt: RunningAttempt, what: str, ending: Ending, reason: str) -> CharterError:
    """The error that ends the run because of a stage."""
    kind = _ERRORS.get(ending.exit_code, StageError)
    log = attempt.stage.directory / log_name(attempt.handle.failed_rank)
    return kind(f"stage {attempt.stage.name}: {what}\n  given up: {reason}; the log is {log}")


def keep_failure(attempt: RunningAttempt, ending: Ending, what: str, error: CharterError) -> None:
    """Leave the first cause in `failure.json`, where the failed process could not write it or was not rank 0."""
    own = _failure(attempt)
    told = own if own and ending.exit_code > 0 and ending.failure != "timeout" else {}
    content = {
        "exit_code": told.get("exit_code", error.exit_code),
        "label": told.get("label", error.label),
        "message": what,
        "failure": ending.failure,
    }
    durable.write_hint(attempt.stage.directory / FAILURE, content)


def _failure(attempt: RunningAttempt) -> Mapping[str, Any]:
    """What the process that failed first has written about it; empty when it could not."""
    try:
        content: Any = durable.read_json(attempt.stage.directory / failure_name(attempt.handle.failed_rank))
    except DataError:
        return {}
    return content if isinstance(content, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
