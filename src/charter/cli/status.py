"""`charter status`, `status track` and `logs`: where every stage is and why, its trackers, what its process printed."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    SetOption,
    VerifyOption,
    command_group,
    open_project,
    print_json,
    project_root,
)
from charter.errors import ExitCode, InterruptedRunError, UsageError
from charter.units import format_moment

if TYPE_CHECKING:
    from charter.spec.project import Project
    from charter.tracking.delivery import TrackerStatus


WATCH_SECONDS = 2.0
_MARKS = {"done": "✔", "running": "▶", "failed": "✘", "interrupted": "‖", "pending": "·"}


def status(
    directory: DirOption = Path("."),
    json_: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until Ctrl-C.")] = False,
    verify: VerifyOption = False,
    set_: SetOption = None,
) -> None:
    """Show where every stage is, how far, and why."""
    from charter.run.status import status_of

    while True:
        project, root = open_project(directory, set_)
        report = status_of(project, root, thorough=verify)
        if json_:
            print_json(report)
        else:
            _print(report)
        if not watch:
            return
        try:
            time.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.CTRL_C) from None


def actions(directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """List what people did to a run, from a command or a button, the newest last."""
    from charter.run.events import actions_of
    from charter.run.paths import run_dir
    from charter.tracking.progress import EVENTS_FILE

    events = actions_of(run_dir(project_root(directory)) / EVENTS_FILE)
    if json_:
        print_json({"actions": events})
        return
    for event in events:
        stage = f"{event['stage']}: " if event.get("stage") else ""
        said = event.get("message") or f"run started by {event.get('by', 'unknown')}"
        print(f"{format_moment(event['time'], to='second')}  {stage}{said}")
    if not events:
        print("Nobody has done anything to this run yet.")


def tag(
    tags: Annotated[list[str], typer.Argument(help="Words, or name=value each.", show_default=False)],
    directory: DirOption = Path("."),
    remove: Annotated[bool, typer.Option("--remove", help="Take them off.")] = False,
) -> None:
    """Put tags on a run: the dashboard finds and groups runs by them; bills use the tags of charter.yaml."""
    from charter.run.actions import tag_run

    have = tag_run(project_root(directory), tags, remove=remove)
    print(
        f"Tags of the run: {', '.join(f'{name}={value}' if value else name for name, value in have.items()) or 'none'}"
    )


def _print(report: dict[str, Any]) -> None:
    from charter.evaluate.outcome import OutcomeComparison

    phases = max((len(stage["phase"]) for stage in report["stages"]), default=0)
    width = max((len(stage["name"]) for stage in report["stages"]), default=0)
    print(report["run"])
    if report["supervisor"] is not None:
        is_done = all(stage["state"] == "done" for stage in report["stages"])
        print(f"  {_supervisor(report['supervisor'], is_done=is_done)}")
    for stage in report["stages"]:
        steps = f"{stage['step']}/{stage['target_step']}" if stage["target_step"] else "-"
        attempts = f"{stage['attempts']} attempt{'' if stage['attempts'] == 1 else 's'}"
        mark = _MARKS[stage["state"]]
        print(
            f"  {mark} {stage['name']:<{width}}  {stage['kind']:<16} {stage['phase']:<{phases}} {steps:>11}  "
            f"{attempts:<11} {_remarks(stage)}"
        )
    for outcome in report["outcomes"]:
        for item in outcome["comparisons"]:
            print(OutcomeComparison(**item))


def _supervisor(sent: dict[str, Any], *, is_done: bool) -> str:
    """`supervisor: sent to slurm as job 7 at 2026-11-23 01:02:03 UTC, queued (Resources)`."""
    job = f"as job {sent['job']}" if sent["job"] is not None else "(which number it got was never told)"
    what = f"{sent['state']} ({sent['reason']})" if sent["reason"] else sent["state"]
    if not sent["asked"]:
        what = f"last known at {format_moment(sent['known_at'], to='second')}: {what}"
    again = "" if is_done or sent["state"] in ("queued", "running") else "; `charter submit` sends another"
    return f"supervisor: sent to {sent['engine']} {job} at {format_moment(sent['sent_at'], to='second')}, {what}{again}"


def _remarks(stage: dict[str, Any]) -> str:
    """Return why the stage is in its state, its engine and its pace; further lines of advice stay apart."""
    first, *advice = stage["why"].split("\n")
    return "\n".join((f"{first}{_engine(stage)}{_beside_plan(stage)}", *advice))


def _engine(stage: dict[str, Any]) -> str:
    """`; by trl (resume: bit-exact)`, of a stage that another engine computes."""
    if stage["engine"] == "native":
        return ""
    guarantee = stage["resume_guarantee"]
    return f"; by {stage['engine']}" + (f" (resume: {guarantee.replace('_', '-')})" if guarantee else "")


def _beside_plan(stage: dict[str, Any]) -> str:
    """`; 1.20 x the planned time per step now, 0.98 x the planned memory of tensors`, as far as it was measured.

    The pace is that of the last steps, so it is told only of what runs; `charter cost report` has that of whole stages.
    """
    ratios = stage["actual_over_planned"]
    names = ({"seconds": "time per step now"} if stage["state"] == "running" else {}) | {"bytes": "memory of tensors"}
    ratios_text = ", ".join(f"{ratios[key]:.2f} x the planned {name}" for key, name in names.items() if key in ratios)
    return f"; {ratios_text}" if ratios_text else ""


FOLLOW_SECONDS = 0.5


def logs(
    stage: Annotated[str, typer.Argument(help="Name of the stage.", show_default=False)],
    directory: DirOption = Path("."),
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines to print; 0 for all.")] = 100,
) -> None:
    """Print the log of a stage."""
    from charter.run.graph import build_pipeline

    project, root = open_project(directory)
    path = _stage_log(project, build_pipeline(project, root).stage(stage).directory)
    if path is None:
        raise UsageError(f"stage {stage} has not run yet as it is written now, so there is no log of it")
    text = path if isinstance(path, str) else path.read_text(encoding="utf-8", errors="replace")
    sys.stdout.writelines(text.splitlines(keepends=True)[-lines:])
    if not text:
        print(f"stage {stage} has printed nothing{' yet' if follow else ''}", file=sys.stderr, flush=True)
    if follow and isinstance(path, Path):
        _follow(path)


def _stage_log(project: "Project", stage_dir: Path) -> Path | str | None:
    """The file of a stage's log, or its text where only the engine has it; None where there is none."""
    from charter.artifacts.group import LOG
    from charter.artifacts.job_files import JobFiles, numbers, read_submission
    from charter.launch.launcher import RUNS, open_scheduler

    if (stage_dir / LOG).exists():
        return stage_dir / LOG
    submitted = numbers(stage_dir)
    if not submitted:
        return None
    files = JobFiles(stage_dir, submitted[-1])
    if files.log.exists() and files.log.stat().st_size:
        return files.log
    submission = read_submission(files)
    if submission is None or submission.job_id is None or submission.scheduler not in RUNS:
        return None
    scheduler = open_scheduler(project, submission.scheduler)
    try:
        return scheduler.logs(submission.job_id) or None
    finally:
        scheduler.close()


def _follow(path: Path) -> None:
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        try:
            while True:
                sys.stdout.write(file.read())
                sys.stdout.flush()
                time.sleep(FOLLOW_SECONDS)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.CTRL_C) from None


track_app = command_group(
    "Show what trackers (MLflow, W&B, TensorBoard) have received of a run, and send them the rest."
)


@track_app.command("status")
def track_status(directory: DirOption = Path("."), as_json: JsonOption = False) -> None:
    """Show how much each tracker has received, and what went wrong last."""
    from charter.run.paths import run_dir
    from charter.tracking.delivery import status_of_trackers

    _, root = open_project(directory)
    statuses = status_of_trackers(run_dir(root))
    if as_json:
        print_json({"trackers": [_plain(item) for item in statuses]})
        return
    for item in statuses:
        print(_line(item))
    if not statuses:
        print("no run here has named a tracker; `tracking: [mlflow]` in charter.yaml does")


@track_app.command("sync")
def track_sync(
    directory: DirOption = Path("."),
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TRACKER", help="This tracker alone; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send trackers what they have not received, and wait until they have it.

    That includes what ran before `tracking` named them. Exit code 6 when a tracker does not answer; nothing is lost
    then.
    """
    from charter.run.followers import sync_trackers

    project, root = open_project(directory)
    statuses = sync_trackers(project, root, only=tuple(only or ()))
    if as_json:
        print_json({"trackers": [_plain(item) for item in statuses]})
    else:
        for item in statuses:
            print(_line(item))
    behind = [item for item in statuses if not item.is_up_to_date]
    if behind:
        reasons = "; ".join(f"{item.tracker}: {item.message or 'not everything was told'}" for item in behind)
        raise InterruptedRunError(
            f"not everything was delivered; {reasons}; `charter status track sync` goes on from there"
        )


def _plain(item: "TrackerStatus") -> dict[str, Any]:
    return {**vars(item), "is_up_to_date": item.is_up_to_date}


def _line(item: "TrackerStatus") -> str:
    if item.is_up_to_date:
        return f"{item.tracker:<12} up to date: {item.told_rows:,} rows told"
    why = f"; {item.failures} tries failed, the last: {item.message}" if item.failures else ""
    return f"{item.tracker:<12} behind: {item.told_rows:,} rows told, {item.waiting_rows:,} wait{why}"
