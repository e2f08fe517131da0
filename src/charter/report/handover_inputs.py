"""Inputs of an exported stage, written by a process of its own: rows in Charter's order, models as directories."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts.durable import read_json
from charter.artifacts.group import FAILURE
from charter.artifacts.job import write_job
from charter.errors import CharterError, DataError, MissingExtraError, StageError, UsageError
from charter.launch.commands import stage_command
from charter.launch.machine import frozen_values
from charter.run.graph import build_pipeline, job_of
from charter.run.preflight import check_packages
from charter.run.staleness import assess
from charter.spec.project import Project

MODULE = "charter.hosted.export_inputs"
EXPORTED, FACTS = "exported", "inputs.json"
_ERRORS: Mapping[int, type[CharterError]] = {
    kind.exit_code: kind for kind in (UsageError, MissingExtraError, DataError)
}


@dataclass(frozen=True, kw_only=True)
class ExportedInputs:
    """The files, and how much work they are."""

    directory: Path
    """Holds `data` and `inputs`."""
    target_steps: int
    rows: Mapping[str, int]
    """Role -> rows of its file."""
    notes: tuple[str, ...] = ()


def export_inputs(project: Project, root: Path, name: str, scratch: Path) -> ExportedInputs:
    """Write what a stage reads below an empty directory; stages that it reads from must be done."""
    check_packages()
    pipeline = build_pipeline(project, root)
    stage = pipeline.stage(name)
    waiting = [item for item in stage.stage_inputs if not assess(pipeline.stage(item), pipeline.root).done]
    if waiting:
        raise UsageError(
            f"--data needs what {name} reads, and {', '.join(waiting)} is not finished\n"
            f"  run {', '.join(waiting)} first, or export without --data and put the files there later"
        )
    if problems := pipeline.inputs.problems_of(stage.outside_inputs):
        raise DataError("\n".join(str(problem) for problem in problems))
    frozen = {"threads": frozen_values(project, stage.spec)["threads"]}
    write_job(scratch, job_of(stage, pipeline.project, frozen))
    ended = subprocess.run(
        stage_command(MODULE, scratch), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise _error_of(scratch, ended)
    facts = read_json(scratch / FACTS)
    return ExportedInputs(
        directory=scratch / EXPORTED,
        target_steps=facts["target_steps"],
        rows=facts["rows"],
        notes=tuple(facts["notes"]),
    )


def _error_of(scratch: Path, ended: "subprocess.CompletedProcess[str]") -> CharterError:
    try:
        message = str(read_json(scratch / FAILURE)["message"])
    except (DataError, KeyError):
        message = f"writing the inputs ended with exit code {ended.returncode}\n{ended.stderr.strip()[-2000:]}"
    return _ERRORS.get(ended.returncode, StageError)(message)
