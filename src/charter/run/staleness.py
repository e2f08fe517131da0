"""Why a stage must run, or need not, in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from charter.artifacts import durable
from charter.artifacts.batch_files import finished_batches
from charter.artifacts.checkpoints import STATE, Position, positions_in
from charter.artifacts.fingerprint import differences
from charter.artifacts.group import FAILURE
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import read_holder
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_dir import PROGRESS
from charter.errors import DataError
from charter.run.graph import PlannedStage
from charter.run.job_states import job_now
from charter.run.paths import earlier_stage_dirs

VERIFIED = "outputs verified"
State = Literal["pending", "running", "interrupted", "failed", "done"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Where one stage is."""

    state: State
    why: str
    step: int
    target_step: int | None
    outputs: Mapping[str, str]

    @property
    def done(self) -> bool:
        """Whether it need not run."""
        return self.state == "done"


def assess(stage: PlannedStage, root: Path, *, thorough: bool = False) -> Verdict:
    """Look at a stage's directory: done only with a record of this fingerprint and verified outputs."""
    directory = stage.directory
    record = read_record(directory)
    if record is not None and record.fingerprint != stage.fingerprint:
        raise DataError(
            f"{directory} holds the record of fingerprint {record.fingerprint[:16]}, "
            f"where {stage.fingerprint[:16]} is expected; move the directory away"
        )
    if record is not None:
        damage = damaged_output(directory, record, thorough=thorough)
        if damage is None:
            why = stage.kept.why if stage.kept else VERIFIED
            return Verdict(
                state="done", why=why, step=record.step, target_step=record.target_step, outputs=record.outputs
            )
        return _unfinished("interrupted", f"outputs damaged: {damage}", directory)
    if not (directory / JOB_FILE).exists():
        return Verdict(state="pending", why=_why_new(stage, root), step=0, target_step=None, outputs={})
    holder = read_holder(directory / "lease.json")
    if holder is not None and holder.is_alive:
        return _unfinished("running", f"{holder}", directory)
    if (job := job_now(directory)) is not None:
        return _unfinished(job.state, job.why, directory)
    if (failure := _read(directory / FAILURE)) and failure.get("exit_code") != 6:
        return _unfinished("failed", str(failure.get("message", "")), directory)
    return _unfinished("interrupted", _where_it_stopped(directory), directory)


def checkpoint_position(directory: Path) -> Position:
    """Where the newest checkpoint stands, or how many batches of records there are; nothing is verified here."""
    return max(positions_in(directory / STATE), default=Position(finished_batches(directory)))


def checkpoint_step(directory: Path) -> int:
    """The finished steps of the newest checkpoint, 0 when there is none."""
    return checkpoint_position(directory).step


def read_progress(directory: Path) -> dict[str, Any]:
    """What the stage process has last said about itself, empty when nothing yet."""
    return _read(directory / PROGRESS)


def describe(path: str, old: Any, new: Any, names: Mapping[str, str]) -> str:
    """One difference between two identities in words; `names` gives the inputs' names by role.

    >>> describe("spec.learning_rate", 0.0002, 0.0003, {})
    'learning_rate 0.0002 -> 0.0003'
    >>> describe("inputs.data", ["a"], ["b"], {"data": "helpful"})
    'input helpful changed'
    """
    section, _, rest = path.partition(".")
    match section:
        case "spec":
            return f"{rest} {_shown(old)} -> {_shown(new)}"
        case "inputs":
            return _describe_input(rest, old, new, names.get(rest, rest))
        case "revision":
            return f"Charter computes this kind differently (revision {old} -> {new})"
        case "constitution":
            return "the constitution changed"
    return f"{path} {_shown(old)} -> {_shown(new)}"


def input_names(stage: PlannedStage, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """For every role, the names of those inputs whose fingerprints differ between two identities."""
    names: dict[str, str] = {}
    for role, items in stage.inputs.items():
        before = old.get("inputs", {}).get(role) or []
        after = new.get("inputs", {}).get(role) or []
        changed = [item.name for item, fp in zip(items, after, strict=False) if fp not in before]
        names[role] = ", ".join(changed or [item.name for item in items])
    return names


def describe_all(stage: PlannedStage, old: Mapping[str, Any]) -> list[str]:
    """All differences between an old identity and the one that is asked for, in words, each once."""
    names = input_names(stage, old, stage.identity)
    return list(dict.fromkeys(describe(*item, names) for item in differences(old, stage.identity)))


def _why_new(stage: PlannedStage, root: Path) -> str:
    for directory in earlier_stage_dirs(root, stage.name):
        old = _read(directory / JOB_FILE).get("identity")
        if old and (words := describe_all(stage, old)):
            return "; ".join(words)
    return "never run"


def _describe_input(role: str, old: Any, new: Any, names: str) -> str:
    if not old:
        return f"input {role} added"
    if not new:
        return f"input {role} removed"
    return f"input {names} changed"


def _unfinished(state: State, why: str, directory: Path) -> Verdict:
    progress = read_progress(directory)
    step = int(progress.get("step") or 0) if state == "running" else checkpoint_step(directory)
    target = progress.get("target_step")
    return Verdict(state=state, why=why, step=step, target_step=int(target) if target is not None else None, outputs={})


def _where_it_stopped(directory: Path) -> str:
    step = checkpoint_step(directory)
    return f"stopped; continues from its checkpoint at step {step}" if step else "stopped before its first checkpoint"


def _shown(value: Any) -> str:
    return "(none)" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = durable.read_json(path)
    except DataError:
        return {}
    return content if isinstance(content, dict) else {}
