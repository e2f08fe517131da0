"""Model cards for trackers: written beside a run's journals when a stage is done, sent by whoever tells trackers."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.artifacts.durable import make_dir, write_file
from charter.artifacts.record import read_record
from charter.errors import CharterError
from charter.report.export import figures_about
from charter.report.model_card import model_card
from charter.run.graph import build_pipeline
from charter.run.paths import run_dir
from charter.spec.project import Project
from charter.spec.stage_base import MODEL
from charter.spec.tracking import trackers_of
from charter.tracking.journal import card_path


class CardWriter:
    """Listens to the events of a run; a stage that is done gives cards to the models that are known then.

    An evaluation changes the card of the model that it read. A card that cannot be written is left out: it is for
    readers, and stops no run.
    """

    def __init__(self, project: Project, root: Path) -> None:
        self._project, self._root = project, root
        self._wanted = bool(trackers_of(project.tracking))

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write cards after `stage_done`, where a tracker is named."""
        if self._wanted and event.get("event") == "stage_done":
            with contextlib.suppress(CharterError, OSError, KeyError):
                write_cards(self._project, self._root)


def write_cards(project: Project, root: Path) -> list[Path]:
    """Write the card of every finished stage that makes a model, where it is new or has changed."""
    pipeline = build_pipeline(project, root)
    written = []
    for stage in pipeline.stages.values():
        record = read_record(stage.directory) if stage.spec.MAKES == MODEL else None
        if record is None:
            continue
        text = model_card(record.to_json(), figures=figures_about(pipeline, record.fingerprint))
        path = card_path(run_dir(root), stage.directory.name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            make_dir(path.parent)
            write_file(path, text)
            written.append(path)
    return written
