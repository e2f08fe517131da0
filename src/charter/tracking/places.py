"""Where tracking keeps its files: `tracking/` in a run's directory."""

from pathlib import Path

TRACKING = "tracking"
FACTS, LIVE, LOCK, PROMETHEUS = "run.json", "live.json", ".lock", "prometheus.json"


def tracking_dir(run_dir: Path) -> Path:
    """The directory of tracking of a run."""
    return run_dir / TRACKING


def facts_path(run_dir: Path) -> Path:
    """What the run is, for those who tell trackers of it."""
    return tracking_dir(run_dir) / FACTS


def live_path(run_dir: Path) -> Path:
    """What only the supervisor knows while a run lasts: what was spent."""
    return tracking_dir(run_dir) / LIVE


def journal_path(run_dir: Path, stage_dir_name: str) -> Path:
    """The journal of one stage: its rows in the order in which they came."""
    return tracking_dir(run_dir) / "rows" / f"{stage_dir_name}.jsonl"


def delivered_path(run_dir: Path, tracker: str) -> Path:
    """What one tracker has been told."""
    return tracking_dir(run_dir) / f"{tracker}.json"


def health_path(run_dir: Path, tracker: str) -> Path:
    """How the delivery to one tracker goes; nothing depends on it."""
    return tracking_dir(run_dir) / f"{tracker}.health.json"


def log_path(run_dir: Path, tracker: str) -> Path:
    """What a tracker's library prints."""
    return tracking_dir(run_dir) / f"{tracker}.log"


def card_path(run_dir: Path, stage_dir_name: str) -> Path:
    """The model card of a finished stage."""
    return tracking_dir(run_dir) / "cards" / f"{stage_dir_name}.md"
