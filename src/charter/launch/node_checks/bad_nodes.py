"""Nodes that a run leaves out, with the reason; kept beside the run, so that the next attempt does not ask for them."""

import time
from collections.abc import Mapping
from pathlib import Path

from charter.artifacts import durable
from charter.errors import DataError

BAD_NODES = "bad_nodes.json"
FORGET_AFTER_SECONDS = 24 * 3600.0
"""A node that was mended is tried again the next day; take its line out of the file to try it sooner."""


def read_bad_nodes(run_dir: Path, *, now: float | None = None) -> dict[str, str]:
    """Nodes to be left out now, and why."""
    at = time.time() if now is None else now
    return {node: str(entry["why"]) for node, entry in _entries(run_dir).items() if at < float(entry["until"])}


def leave_out(run_dir: Path, nodes: Mapping[str, str], *, now: float | None = None) -> None:
    """Leave nodes out from now on."""
    at = time.time() if now is None else now
    fresh = {node: {"why": why, "until": at + FORGET_AFTER_SECONDS} for node, why in nodes.items()}
    if fresh:
        durable.write_json(run_dir / BAD_NODES, {**_entries(run_dir), **fresh})


def _entries(run_dir: Path) -> dict[str, dict[str, float | str]]:
    path = run_dir / BAD_NODES
    if not path.exists():
        return {}
    content = durable.read_json(path)
    if not isinstance(content, dict) or any("until" not in entry for entry in content.values()):
        raise DataError(f"{path} does not hold nodes with why and until; remove it to leave no node out")
    return content
