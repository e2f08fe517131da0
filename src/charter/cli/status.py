"""`charter status`: where every stage is, how far, and why."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, VerifyOption, open_project, print_json, project_root
from charter.errors import ExitCode

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
    from charter.run.events import EVENTS_FILE, actions_of
    from charter.run.paths import run_dir

    events = actions_of(run_dir(project_root(directory)) / EVENTS_FILE)
    if json_:
        print_json({"actions": events})
        return
    for event in events:
        stage = f"{event['stage']}: " if event.get("stage") else ""
        said = event.get("message") or f"run started by {event.get('by', 'unknown')}"
        print(f"{_utc(event['time'])}  {stage}{said}")
    if not events:
        print("Nobody has done anything to this run yet.")


def tag(
    tags: Annotated[list[str], typer.Argument(help="Words, or name=value each.", show_default=False)],
    directory: DirOption = Path("."),
    remove: Annotated[bool, typer.Option("--remove", help="Take them off.")] = False,
) -> None:
    """Put tags on a run, by which the dashboard finds and groups it; bills are split by those of charter.yaml."""
    from charter.run.actions import tag_run

    have = tag_run(project_root(directory), tags, remove=remove)
    print(
        f"Tags of the run: {', '.join(f'{name}={value}' if value else name for name, value in have.items()) or 'none'}"
    )


def _print(report: dict[str, Any]) -> None:
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
            print(f"{item['question']} {item['answer'].capitalize()}: {item['why']}.")


def _supervisor(sent: dict[str, Any], *, is_done: bool) -> str:
    """`supervisor: sent to slurm as job 7 at 2026-11-23 01:02:03 UTC, queued (Resources)`."""
    job = f"as job {sent['job']}" if sent["job"] is not None else "(which number it got was never told)"
    what = f"{sent['state']} ({sent['reason']})" if sent["reason"] else sent["state"]
    if not sent["asked"]:
        what = f"last known at {_utc(sent['known_at'])}: {what}"
    again = "" if is_done or sent["state"] in ("queued", "running") else "; `charter submit` sends another"
    return f"supervisor: sent to {sent['engine']} {job} at {_utc(sent['sent_at'])}, {what}{again}"


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


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
