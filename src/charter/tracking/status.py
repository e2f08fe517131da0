"""Delivery status of every tracker of a run, from the files of the run."""

from dataclasses import dataclass
from pathlib import Path

from charter.tracking.delivery import PIPELINE, read_told, waiting_rows
from charter.tracking.journal import health_of
from charter.tracking.progress import RunProgress
from charter.tracking.run_facts import read_followed


@dataclass(frozen=True, kw_only=True)
class TrackerStatus:
    """One tracker of a run."""

    tracker: str
    told_rows: int
    waiting_rows: int
    is_closed: bool
    """Whether the tracker knows how every stage and the run are."""
    failures: int
    """Tries in a row that went wrong, up to now."""
    message: str | None
    """What went wrong last."""
    run: str | None
    """The tracker's number of the pipeline."""

    @property
    def is_up_to_date(self) -> bool:
        """Return True if the tracker has received everything that is there."""
        return self.waiting_rows == 0 and self.is_closed


def status_of_trackers(run_dir: Path) -> tuple[TrackerStatus, ...]:
    """All trackers that the last run named; empty where none was."""
    followed = read_followed(run_dir)
    if followed is None:
        return ()
    progress = RunProgress(run_dir=run_dir)
    progress.look()
    stages = {path.name: standing for path, standing in progress.stages.items()}
    wanted = {PIPELINE: progress.run, **progress.swept(), **stages}
    statuses = []
    for tracker in followed.trackers:
        deliveries, health = read_told(run_dir, tracker), health_of(run_dir, tracker)
        statuses.append(
            TrackerStatus(
                tracker=tracker,
                told_rows=sum(item.rows for item in deliveries.values()),
                waiting_rows=waiting_rows(run_dir, deliveries),
                is_closed=all(
                    key in deliveries and deliveries[key].state == standing.state for key, standing in wanted.items()
                ),
                failures=int(health.get("failures", 0)),
                message=health.get("message"),
                run=deliveries[PIPELINE].id if PIPELINE in deliveries else None,
            )
        )
    return tuple(statuses)
