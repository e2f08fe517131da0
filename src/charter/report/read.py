"""Reading a run directory for a report: the edge between files and the pure part."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charter.artifacts.group import FAILURE
from charter.artifacts.job import JOB_FILE
from charter.artifacts.record import OUTPUTS, RECORD_FILE
from charter.artifacts.sample_prompts import sample_seconds
from charter.artifacts.stage_dir import PROGRESS
from charter.artifacts.stage_state import StageState, read_stage, stage_state
from charter.errors import CharterError, DataError, UsageError, loads_json
from charter.evaluate.outcome import RESULTS_FILE
from charter.ledger import Accounted, ApiUsage, Attempt, CallBooks, Ledger
from charter.ledger.account import account
from charter.ledger.calls import CALLS_FILE
from charter.ledger.focus import refuse_fewer
from charter.ledger.rebuilding import rebuilt_attempts
from charter.ledger.store import LEDGER_FILE, has_ledger, ledger_place
from charter.ledger.stored import OtherCharge
from charter.run.planned import plan_of_this_schema
from charter.spec import PROJECT_FILE
from charter.tracking import MeterSummary, meter_rows, summarise
from charter.tracking.base import MetricPoint, metrics_file, read_metrics
from charter.tracking.run_facts import PLAN_FILE

if TYPE_CHECKING:
    from charter.spec.project import Project

RUN, STAGES = "run", "stages"
Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StageFiles:
    """Files that one stage has written so far."""

    name: str
    job: Json | None = None
    """What the stage was started with: its identity, and its inputs by role."""
    record: Json | None = None
    progress: Json | None = None
    failure: Json | None = None
    results: Json | None = None
    """`outputs/results.json` of an evaluation."""
    metrics: tuple[MetricPoint, ...] = ()
    meter: MeterSummary | None = None
    """What its machines did; None where nothing was metered."""
    sample_seconds: float = 0.0
    """Spent on answers for people to read."""


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """All that a report needs, read once."""

    project: str
    plan: Json | None
    stages: Mapping[str, StageFiles] = field(default_factory=dict)
    states: Mapping[str, StageState] = field(default_factory=dict)
    accounted: tuple[Accounted, ...] = ()
    usage: tuple[ApiUsage, ...] = ()
    """What calls to servers cost."""
    fees: tuple[OtherCharge, ...] = ()
    """What was added by hand: fees, and credits."""
    budget_limit_usd: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What could not be read, in words."""


MOST = 1e15
"""Of seconds and dollars of a plan, as of everything that charter.yaml counts."""


def _refuse_absurd(plan: Json, path: Path) -> None:
    """DataError where an amount of a stage is no number that a plan can hold."""
    stages = plan.get("stages", ())
    for stage in stages if isinstance(stages, list) else ():
        if not isinstance(stage, Mapping) or not isinstance(stage.get("name"), str):
            raise DataError(f"{path} is damaged: a stage of it has no name; `charter plan` makes it anew")
        breakdown = stage.get("breakdown")
        parts = breakdown.get("seconds") if isinstance(breakdown, Mapping) else breakdown
        amounts = [stage.get("seconds"), stage.get("usd"), parts]
        for amount in amounts:
            values = amount.values() if isinstance(amount, Mapping) else [amount]
            if not all(value is None or (type(value) in (int, float) and -MOST <= value <= MOST) for value in values):
                raise DataError(f"{path} is damaged: an amount of a stage is no number; `charter plan` makes it anew")


def read_run(
    project_dir: Path, *, plan: Json | None = None, with_metrics: bool = True, check_calls: bool = False
) -> RunFiles:
    """Read the run in `project_dir`; `plan` is used where no run has left one.

    `check_calls` reads every call and the whole ledger, and compares them with their checks.

    Raises UsageError when there is neither a plan nor a run, DataError when a file is broken.
    """
    run_dir = project_dir / RUN
    written = _json_of(run_dir / PLAN_FILE)
    kept_plan = None if written is None else plan_of_this_schema(written)
    if kept_plan is not None:
        _refuse_absurd(kept_plan, run_dir / PLAN_FILE)
    project, notes = _project_of(project_dir)
    accounted, usage, fees = _read_ledger(run_dir, project, checked=check_calls)
    if project is not None:
        name = project.name
    else:
        name = accounted[-1].attempt.run if accounted else project_dir.resolve().name
    lost = () if accounted else _lost_attempts(run_dir / STAGES, name)
    accounted = accounted or account(lost)
    if written is None and plan is None and not accounted:
        raise UsageError(
            f"there is no run in {project_dir} (no {RUN}/plan.json and no {RUN}/{LEDGER_FILE}); "
            "start one with: charter run, or give the project's directory with -C"
        )
    latest = {item.attempt.stage: item.attempt.fingerprint for item in accounted}
    directories = _stage_directories(run_dir / STAGES, latest)
    if written is not None and kept_plan is None:
        notes.append(f"{run_dir / PLAN_FILE} is of schema {written.get('schema')}, which this Charter does not read")
    notes += [_lost_words(run_dir, project, lost)] if lost else []
    stages = {name: _read_stage(name, path, notes, with_metrics=with_metrics) for name, path in directories.items()}
    return RunFiles(
        project=name,
        plan=kept_plan or plan,
        stages=stages,
        states=_states(project_dir, project, directories, accounted),
        accounted=accounted,
        usage=usage,
        fees=fees,
        budget_limit_usd=project.budget.limit if project and project.budget else None,
        versions=_versions(stages),
        notes=tuple(notes),
    )


def _lost_attempts(stages: Path, run: str) -> tuple[Attempt, ...]:
    """Return attempts that the directories of finished stages have and a lost or emptied ledger has not."""
    attempts: list[Attempt] = []
    for path in _stage_directories(stages, {}).values():
        job = _json_of(path / JOB_FILE) or {}
        if {"stage", "kind", "fingerprint"} <= job.keys():
            stage, kind, fingerprint = (str(job[key]) for key in ("stage", "kind", "fingerprint"))
            attempts += rebuilt_attempts(path, run=run, stage=stage, kind=kind, fingerprint=fingerprint)
    attempts.sort(key=lambda attempt: attempt.started_at)
    return tuple(replace(attempt, attempt_id=number) for number, attempt in enumerate(attempts, start=1))


def _lost_words(run_dir: Path, project: "Project | None", lost: Sequence[Attempt]) -> str:
    names = ", ".join(dict.fromkeys(attempt.stage for attempt in lost))
    kept_words = f"time and money are those that the directories of finished stages keep ({names})"
    if project is not None and project.storage.ledger is not None:
        return (
            f"the ledger has nothing of '{project.name}': {kept_words}, without what was never finished; what was "
            "booked under an earlier name stays there, and what was lost `charter run` writes back"
        )
    return (
        f"{run_dir / LEDGER_FILE} is empty or gone: {kept_words}, without what was never finished; `charter run` "
        "writes them back"
    )


def _read_ledger(
    run_dir: Path, project: "Project | None", *, checked: bool
) -> tuple[tuple[Accounted, ...], tuple[ApiUsage, ...], tuple[OtherCharge, ...]]:
    """Attempts, calls and fees. A file holds one run; on a server the project's name tells its own from others'.

    Calls are as their own stores have them, and those of stores that are gone as the ledger has them.
    """
    server = project.storage.ledger if project else None
    run = project.name if project and server else None
    accounted: tuple[Accounted, ...] = ()
    usage: tuple[ApiUsage, ...] = ()
    fees: tuple[OtherCharge, ...] = ()
    if has_ledger(place := ledger_place(run_dir, server)):
        with Ledger.open(place, create=False, check_whole=checked) as ledger:
            accounted, usage = ledger.accounted(run=run), ledger.usage(run=run)
            fees = ledger.other_charges(run=run)
    places: list[str | Path] = [server] if server else sorted((run_dir / STAGES).glob(f"*/{CALLS_FILE}"))
    by_route = {(item.store_id, item.route.endpoint, item.route.model): item for item in usage}
    for place in filter(has_ledger, places):
        with CallBooks.open(place, create=False, check_whole=checked) as books:
            for item in books.usage(run=run, checked=checked):
                key = (item.store_id, item.route.endpoint, item.route.model)
                refuse_fewer(by_route[key].route.sums.requests if key in by_route else None, item)
                by_route[key] = item
    return accounted, tuple(by_route.values()), fees


def _stage_directories(directory: Path, latest: Mapping[str, str]) -> dict[str, Path]:
    """Return the directory of each stage that counts: that of its last attempt, else the newest."""
    candidates: dict[str, list[Path]] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        name, dash, mark = path.name.rpartition("-")
        if path.is_dir() and dash and mark.isalnum() and len(mark) == 8:
            candidates.setdefault(name, []).append(path)
    return {
        name: max(paths, key=lambda path: (path.name.endswith(f"-{latest.get(name, '')[:8]}"), os.stat(path).st_mtime))
        for name, paths in candidates.items()
    }


def _states(
    project_dir: Path, project: "Project | None", directories: Mapping[str, Path], accounted: Sequence[Accounted]
) -> dict[str, StageState]:
    """Return the states of the stages of the file; without a file that loads, those of the directories of a run."""
    running = [item.attempt for item in accounted if item.attempt.outcome == "running"]
    signs = {attempt.stage: attempt.last_heartbeat for attempt in running}
    if project is not None:
        from charter.run.graph import build_pipeline
        from charter.run.staleness import states_of

        with contextlib.suppress(CharterError):  # an input that is gone does not stop a report of what was run
            return states_of(build_pipeline(project, project_dir), proof="sizes", signs=signs)
    now = time.time()
    return {
        name: stage_state(replace(read_stage(path, proof="sizes", now=now), last_sign=signs.get(name)), now=now)
        for name, path in directories.items()
    }


def _read_stage(name: str, path: Path, notes: list[str], *, with_metrics: bool) -> StageFiles:
    """Read the files of a stage; one that is torn is left out and noted, since a report shows what there is."""

    def read(file: Path) -> Json | None:
        try:
            return _json_of(file)
        except DataError as error:
            notes.append(str(error))
            return None

    metered = meter_rows(path) if with_metrics else ()
    return StageFiles(
        name=name,
        job=read(path / JOB_FILE),
        record=read(path / RECORD_FILE),
        progress=read(path / PROGRESS),
        failure=read(path / FAILURE),
        results=read(path / OUTPUTS / RESULTS_FILE),
        metrics=read_metrics(metrics_file(path)) if with_metrics else (),
        meter=summarise(metered) if metered else None,
        sample_seconds=sample_seconds(path),
    )


def _project_of(project_dir: Path) -> "tuple[Project | None, list[str]]":
    """A file that no longer loads does not stop a report of what was run: a note says why."""
    path = project_dir / PROJECT_FILE
    if not path.exists():
        return None, []
    try:
        from charter.engines.project import load_project

        return load_project(path, env=dict(os.environ)), []
    except CharterError as error:
        return None, [f"charter.yaml does not load, so the budget is not shown: {error}"]


def _versions(stages: Mapping[str, StageFiles]) -> dict[str, str]:
    """Versions by name over all records; several of one name are joined."""
    by_package: dict[str, list[str]] = {}
    for stage in stages.values():
        for name, version in (stage.record or {}).get("versions", {}).items():
            if str(version) not in by_package.setdefault(name, []):
                by_package[name].append(str(version))
    return {name: ", ".join(versions) for name, versions in sorted(by_package.items())}


def _json_of(path: Path) -> Json | None:
    try:
        content = loads_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); move it away and run `charter run` again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} should hold one JSON object, found {type(content).__name__}")
    return content
