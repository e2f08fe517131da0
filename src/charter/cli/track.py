"""`charter status track`: how far trackers have been told of a run, and telling them the rest."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import DirOption, JsonOption

if TYPE_CHECKING:
    from charter.tracking.status import TrackerStatus

track_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show what trackers (MLflow, W&B, TensorBoard) have received of a run, and send them the rest.",
)


@track_app.command("status")
def track_status(directory: DirOption = Path("."), as_json: JsonOption = False) -> None:
    """Show how much each tracker has received, and what went wrong last."""
    from charter.cli.common import open_project, print_json
    from charter.run.paths import run_dir
    from charter.tracking.status import status_of_trackers

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
    from charter.cli.common import open_project, print_json
    from charter.errors import InterruptedRunError
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
