"""From the name of a tracker to its destination; the library is loaded here and nowhere else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.errors import DataError
from charter.spec.tracking import PLAIN, MlflowSettings, TensorboardSettings, WandbSettings
from charter.tracking.base import Destination
from charter.tracking.journal import tracking_dir
from charter.tracking.run_facts import Followed
from charter.tracking.secret_texts import Secrets

TENSORBOARD = "tensorboard"


def open_destination(run_dir: Path, followed: Followed, tracker: str, secrets: Secrets) -> Destination:
    """The destination of one tracker of a run; raises where its package or a secret is missing. Nothing is sent yet."""
    settings = settings_of(followed, tracker)
    root = Path(followed.root)
    directory = tracking_dir(run_dir)
    if isinstance(settings, MlflowSettings):
        from charter.tracking.destinations.mlflow import open_mlflow

        opened: Destination = open_mlflow(
            settings, run_name=followed.name, root=root, directory=directory, secrets=secrets
        )
        return opened
    if isinstance(settings, WandbSettings):
        from charter.tracking.destinations.wandb import open_wandb

        return open_wandb(settings, run_name=followed.name, directory=directory / "wandb", secrets=secrets)
    from charter.tracking.destinations.tensorboard import TensorboardDestination

    where = run_dir / TENSORBOARD if settings.directory is None else root / settings.directory
    return TensorboardDestination(where)


def settings_of(followed: Followed, tracker: str) -> MlflowSettings | WandbSettings | TensorboardSettings:
    """The settings of one tracker, as they were written down when the run started."""
    values: Mapping[str, Any] = followed.trackers[tracker]
    try:
        return PLAIN[tracker](**{name: value for name, value in values.items() if name != "drain_seconds"})
    except (KeyError, TypeError) as error:
        raise DataError(f"the settings of {tracker} are not of this version of Charter: {error}") from None
