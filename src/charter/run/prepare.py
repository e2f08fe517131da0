"""Makes a stage's directory ready for an attempt.

No orphan in it, nothing damaged in it, and its job written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.checkpoints import RESHARDED, Position
from charter.artifacts.group import sweep_start
from charter.artifacts.job import JOB_FILE, job_to_json, read_job, write_job
from charter.artifacts.lease import announce, stop_orphan
from charter.artifacts.record import OUTPUTS, RECORD_FILE, damaged_output, read_record
from charter.artifacts.stage_state import checkpoint_position
from charter.engines.installed import ENGINE
from charter.errors import DataError
from charter.launch.machine import LAYOUT_DEFAULTS, asked_layout, processes_of
from charter.models.engine_layout import CPU_ATTENTION
from charter.run.graph import PlannedStage, job_of
from charter.spec.project import BITS, EXACT, Project
from charter.spec.stage import MAKES_RECORDS
from charter.spec.stage_base import NATIVE

KEEPS_ITS_VALUE = frozenset({"threads"})
"""What a resume can reproduce on another machine: it uses the frozen value. The rest must be as it was."""

Frozen = Mapping[str, str | int]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A stage directory that an attempt may start in, and what is worth telling."""

    first_step: int
    frozen: Frozen
    notes: tuple[str, ...]

    @property
    def processes(self) -> int:
        """Processes that the stage is started with."""
        return processes_of(self.frozen)


def prepare(
    stage: PlannedStage,
    project: Project,
    here: Frozen,
    *,
    reshard: bool,
    elsewhere: bool = False,
) -> Prepared:
    """Write the job of a stage; the values that its bits depend on stay as frozen at its first start.

    What still runs of an earlier start is ended; not where it is a job of a scheduler (`elsewhere`), whose successor
    locks it out.
    """
    directory = stage.directory
    durable.make_dir(directory)
    notes = []
    if not elsewhere and (orphan := stop_orphan(directory)) is not None:
        notes.append(f"stopped the orphan {orphan}")
    sweep_start(directory)
    notes += _set_damage_aside(directory)
    started = checkpoint_position(directory)
    frozen = _frozen(stage, project, here, started=started != Position(0), reshard=reshard)
    write_job(directory, job_of(stage, project, frozen))
    announce(directory)
    return Prepared(first_step=started.step, frozen=frozen, notes=tuple(notes))


def prepared_before(stage: PlannedStage, project: Project, here: Frozen, *, reshard: bool) -> Prepared | None:
    """Return the preparation of a start that is under way; None where it was prepared for something else."""
    try:
        job = read_job(stage.directory)
    except DataError:
        return None
    frozen = {**job.frozen, **_shards(here)} if stage.spec.kind in MAKES_RECORDS else job.frozen
    if reshard or drift(stage, project, here) or job_to_json(job_of(stage, project, frozen)) != job_to_json(job):
        return None
    return Prepared(first_step=checkpoint_position(stage.directory).step, frozen=job.frozen, notes=())


def drift(stage: PlannedStage, project: Project, here: Frozen) -> list[str]:
    """Return how this machine and the file differ from what a stage with a checkpoint was started on, in words.

    Empty when it may go on. A layout that the file no longer says stays as it was.
    """
    if not (stage.directory / JOB_FILE).exists() or checkpoint_position(stage.directory) == Position(0):
        return []
    frozen = read_job(stage.directory).frozen
    values = {
        name: (frozen[name], value)
        for name, value in here.items()
        if name in frozen and name not in KEEPS_ITS_VALUE and name not in LAYOUT_DEFAULTS
    }
    values[EXACT] = (frozen.get(EXACT, BITS), here.get(EXACT, BITS))
    values[ENGINE] = (frozen.get(ENGINE, NATIVE), here.get(ENGINE, NATIVE))
    if stage.spec.kind in MAKES_RECORDS:
        return [f"{name} {old} -> {new}" for name, (old, new) in values.items() if old != new]
    for name, value in asked_layout(project, stage.spec).items():
        values[name] = (frozen.get(name, LAYOUT_DEFAULTS[name]), value)
    return [f"{name} {old} -> {new}" for name, (old, new) in values.items() if old != new]


def _frozen(stage: PlannedStage, project: Project, here: Frozen, *, started: bool, reshard: bool) -> Frozen:
    if not started:
        return here
    changed = drift(stage, project, here)
    frozen = read_job(stage.directory).frozen
    if not changed and not reshard:
        taken = {name: value for name, value in here.items() if name not in {*LAYOUT_DEFAULTS, CPU_ATTENTION}}
        same = {**taken, **frozen}
        return {**same, **_shards(here)} if stage.spec.kind in MAKES_RECORDS else same
    if not reshard:
        raise drift_error(stage, changed)
    if (old := frozen.get(ENGINE, NATIVE)) != (new := here.get(ENGINE, NATIVE)):
        raise DataError(
            f"stage {stage.name} was started by the engine {old}, whose checkpoints {new} cannot read\n"
            f"  set `engine: {old}` again, or move {stage.directory} away to start it anew"
        )
    reason = f"at step {checkpoint_position(stage.directory)}: {', '.join(changed) or 'resources of the file'}; "
    earlier = [str(frozen[RESHARDED])] if RESHARDED in frozen else []
    return {**here, RESHARDED: "; ".join([*earlier, f"{reason}no longer bit-identical"])}


def _shards(here: Frozen) -> Frozen:
    """Return the number of processes that make records: as the file says now, since no bit depends on it."""
    return {"world_size": here.get("world_size", 1)}


def drift_error(stage: PlannedStage, changed: list[str]) -> DataError:
    """The refusal to go on with a started stage where its bits would change."""
    return DataError(
        f"stage {stage.name} was started under other conditions: {', '.join(changed)}\n"
        "  going on would not give the bits of an undisturbed run; restore them, or go on with --reshard "
        "(the record will say that it is no longer bit-identical)"
    )


def _set_damage_aside(directory: Path) -> list[str]:
    """Move a record whose outputs are damaged out of the way, so that the stage can publish again."""
    record = read_record(directory)
    if record is None:
        return []
    damage = damaged_output(directory, record, thorough=True)
    if damage is None:
        return []
    moved = [durable.move_aside(directory / RECORD_FILE, "damaged").name]
    if (directory / OUTPUTS).exists():
        moved.append(durable.move_aside(directory / OUTPUTS, "damaged").name)
    return [f"outputs damaged ({damage}); kept as {', '.join(moved)}"]
