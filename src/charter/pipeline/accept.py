"""Keeping a finished stage although its fingerprint has changed, because somebody looked at the difference."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import differences
from charter.artifacts.record import Record, read_record
from charter.errors import DataError, UsageError
from charter.pipeline.paths import earlier_stage_dirs

ACCEPTED_FILE = "accepted.json"
MIN_PIN_LENGTH = 8


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A finished record that stands in for a stage whose fingerprint is now another."""

    fingerprint: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What `charter accept` would keep, and how it differs from what the file asks for."""

    stage: str
    kept: str
    wanted: str
    differences: tuple[tuple[str, Any, Any], ...]


def kept_record(root: Path, name: str, *, asked: str, pin: str | None, acceptances: Mapping[str, Any]) -> Kept | None:
    """The record that a pin or an acceptance keeps for a stage, None when the asked fingerprint counts."""
    if pin is not None and not asked.startswith(pin):
        found = _finished(root, name, pin) if len(pin) >= MIN_PIN_LENGTH else None
        return Kept(fingerprint=found.fingerprint, why="kept by its pin (expected_fingerprint)") if found else None
    accepted = acceptances.get(name)
    if accepted and accepted.get("wanted") == asked:
        found = _finished(root, name, accepted["kept"])
        return Kept(fingerprint=found.fingerprint, why="kept by `charter accept`") if found else None
    return None


def read_acceptances(run_dir: Path) -> Mapping[str, Any]:
    """Stage -> {wanted, kept, accepted_at, differences}."""
    path = run_dir / ACCEPTED_FILE
    if not path.exists():
        return {}
    content = durable.read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold acceptances by stage; move it away to run as if nothing was accepted")
    return content


def acceptance_of(root: Path, name: str, *, identity: Mapping[str, Any], asked: str) -> Acceptance:
    """What can be accepted for a stage: its last finished result under another fingerprint."""
    for directory in earlier_stage_dirs(root, name):
        record = read_record(directory)
        if record is None:
            continue
        if record.fingerprint == asked:
            raise UsageError(f"stage {name} is finished under its present fingerprint {asked[:8]}; nothing to accept")
        found = tuple(differences(record.identity, identity))
        return Acceptance(stage=name, kept=record.fingerprint, wanted=asked, differences=found)
    raise UsageError(f"stage {name} has no finished result that could be accepted; `charter run` computes it")


def record_acceptance(run_dir: Path, acceptance: Acceptance) -> None:
    """Write an acceptance durably; it holds until the stage's fingerprint changes again."""
    content = dict(read_acceptances(run_dir))
    content[acceptance.stage] = {
        "wanted": acceptance.wanted,
        "kept": acceptance.kept,
        "accepted_at": time.time(),
        "differences": [list(item) for item in acceptance.differences],
    }
    durable.write_json(run_dir / ACCEPTED_FILE, content)


def _finished(root: Path, name: str, prefix: str) -> Record | None:
    for directory in earlier_stage_dirs(root, name):
        record = read_record(directory)
        if record is not None and record.fingerprint.startswith(prefix):
            return record
    return None
