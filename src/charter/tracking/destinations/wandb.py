"""Weights & Biases, online or as files for `wandb sync`: stages are runs of one group, and so is a sweep.

The library sends in the background and cannot say what has arrived. So a row's number is its `_step`, which the server
takes only once and in order; after a lost process the server says how far it is, and the rest is told again. Offline,
the files that a lost process left are thrown away and written anew.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.stage_state import TrackerState
from charter.errors import MissingExtraError, how_to_install
from charter.spec.tracking import WandbSettings
from charter.tracking.base import MetricRow, RunFacts, Secrets

INIT_SECONDS, FINISH_SECONDS = 20, 20
LONGEST_LABEL = 64
STEP, SAMPLE = "step", "system/sample"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class WandbDestination:
    """One project at Weights & Biases."""

    def __init__(self, library: Any, settings: WandbSettings, *, project: str, directory: Path) -> None:
        self._library, self._settings, self._project = library, settings, project
        self._directory = directory
        self._facts: dict[str, tuple[RunFacts, str]] = {}
        """By number: what it is, and its group."""
        self._runs: dict[str, Any] = {}
        self._named: set[tuple[str, str]] = set()
        self._rows: dict[str, int] = {}
        """By number: rows that it has been told."""

    def open_run(self, facts: RunFacts, *, parent: str | None, known: str | None) -> str:
        """Our own number for it; the run itself is opened when there is something to tell."""
        run = known or f"charter-{hashlib.blake2b(facts.key.encode(), digest_size=8).hexdigest()}"
        self._facts[run] = (facts, facts.group or parent or run)
        return run

    def describe(self, run: str, facts: RunFacts) -> None:
        """The configuration: parameters, tags and inputs."""
        inputs = {f"{item.role}.{item.name}": item.fingerprint for item in facts.inputs}
        config = {**facts.parameters, "charter": {"tags": dict(facts.tags), "inputs": inputs}}
        self._open(run).config.update(config, allow_val_change=True)

    def log(self, run: str, rows: Sequence[MetricRow]) -> None:
        """One row of history each."""
        opened = self._open(run)
        for row in rows:
            axis = SAMPLE if row.machine else STEP
            for name in row.values:
                if (run, name) not in self._named:
                    opened.define_metric(name, step_metric=axis)
                    self._named.add((run, name))
            opened.log({**row.values, axis: row.step, "time": row.time}, step=row.number)
            self._rows[run] = row.number + 1

    def rows_lost_from(self, run: str, *, told: int, sure: int) -> int | None:
        """Online what the server has not; offline everything that the process wrote which died."""
        self._rows[run] = told
        if run in self._runs:
            return None
        lost_from: int | None = None
        if self._settings.mode == "online":
            arrived = told if told == sure else int(self._open(run).starting_step)
            lost_from = arrived if arrived < told else None
        elif self._note_path(run).exists():
            lost_from = min(told, int(durable.read_json(self._note_path(run))["rows"]))
        self._rows[run] = told if lost_from is None else lost_from
        return lost_from

    def attach(self, run: str, name: str, path: Path) -> None:
        """An artifact of one file."""
        artifact = self._library.Artifact(
            f"{self._facts[run][0].name}-{UNSAFE.sub('-', name)}", type=path.suffix.lstrip(".") or "file"
        )
        artifact.add_file(str(path), name=name)
        self._open(run).log_artifact(artifact)

    def set_state(self, run: str, state: TrackerState, *, ended_at: float | None) -> None:
        """A run that ended is closed, which waits until all of it has arrived."""
        opened = self._open(run)
        opened.summary["charter_state"] = state
        if state == "running":
            return
        self._runs.pop(run, None)
        opened.finish(exit_code=0 if state == "finished" else 1)
        if self._note_path(run).exists():
            durable.remove_file(self._note_path(run))

    def close(self) -> None:
        """Close the run; open parts stay so on the server, and rows that have not arrived are sent again later."""

    def _open(self, run: str) -> Any:
        if run in self._runs:
            return self._runs[run]
        facts, group = self._facts[run]
        labels = [f"{name}:{value}"[:LONGEST_LABEL] for name, value in facts.tags.items() if "charter." not in name]
        online = self._settings.mode == "online"
        durable.make_dir(self._directory)
        self._discard_unfinished(run)
        opened = self._library.init(
            project=self._settings.project or self._project,
            entity=self._settings.entity,
            id=run,
            name=facts.name,
            group=group,
            job_type=facts.tags.get("charter.kind") or facts.tags.get("charter.level", "pipeline"),
            notes=facts.note or None,
            tags=labels,
            dir=str(self._directory),
            mode=self._settings.mode,
            resume="allow" if online else None,
            reinit="create_new",
            save_code=False,
            settings=self._quiet(),
        )
        if not online:
            note = {"directory": str(Path(opened.dir).parent), "rows": self._rows.get(run, 0)}
            durable.write_json(self._note_path(run), note)
        self._runs[run] = opened
        return opened

    def _note_path(self, run: str) -> Path:
        """Says which directory is being written, from which row on; gone when that has ended in good order."""
        return self._directory / f"{run}.open.json"

    def _discard_unfinished(self, run: str) -> None:
        """Remove the files that a lost process left; what they held is told again."""
        if self._note_path(run).exists():
            shutil.rmtree(durable.read_json(self._note_path(run))["directory"], ignore_errors=True)

    def _quiet(self) -> Any:
        address = self._settings.base_url
        return self._library.Settings(
            **({"base_url": address} if address else {}),
            silent=True,
            console="off",
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
        )


def open_wandb(settings: WandbSettings, *, run_name: str, directory: Path, secrets: Secrets) -> WandbDestination:
    """The destination that settings name; nothing is sent yet."""
    if settings.api_key is not None:
        os.environ["WANDB_API_KEY"] = secrets.read(settings.api_key, of="the key of W&B")
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb
    except ImportError:
        raise MissingExtraError(f"tracking names wandb, which is not installed: {how_to_install('wandb')}") from None
    return WandbDestination(wandb, settings, project=run_name, directory=directory)
