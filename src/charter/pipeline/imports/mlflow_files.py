"""Runs in a local `mlruns` directory, read from its plain files; MLflow is not needed.

Layout of the file store of MLflow 3.17: EXPERIMENT/RUN/meta.yaml, one file per
metric under metrics/ with lines of time in milliseconds, value and step, one file per parameter under params/.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from charter.errors import DataError, UsageError
from charter.pipeline.imports.found import FoundRun
from charter.pipeline.imports.mlflow_points import MlflowRun, Point, found_run

META = "meta.yaml"
LONGEST_LIST = 5
FINISHED = (3, "3", "FINISHED")
"""How `status` says that a run ended well."""


def run_directory(path: Path) -> Path | None:
    """The run that a path means: itself, or the only one below an `mlruns` directory; None where it is neither."""
    if not path.is_dir():
        return None
    if _is_run(path):
        return path
    runs = sorted(item for pattern in ("*", "*/*") for item in path.glob(pattern) if _is_run(item))
    if len(runs) > 1:
        some = ", ".join(str(item) for item in runs[:LONGEST_LIST])
        raise UsageError(f"{path} holds {len(runs)} MLflow runs; name one of them, such as {some}")
    return runs[0] if runs else None


def read_run_directory(directory: Path) -> FoundRun:
    """The run in one directory of a file store."""
    meta = _meta(directory / META)
    points: dict[str, list[Point]] = {}
    notes: list[str] = []
    digest = hashlib.sha256()
    root = directory / "metrics"
    for path in sorted(item for item in root.rglob("*") if item.is_file()):
        name = path.relative_to(root).as_posix()
        content = path.read_bytes()
        digest.update(name.encode() + b"\0" + content)
        points[name], torn = _points(path, content.decode("utf-8", errors="replace"))
        notes += [f"metrics/{name}: its last line has no end and was left out"] if torn else []
    run = MlflowRun(
        run_id=str(meta.get("run_id") or directory.name),
        source=str(directory),
        content=digest.hexdigest(),
        started_at=_seconds(meta.get("start_time")),
        ended_at=_seconds(meta.get("end_time")),
        points=points,
        finished=meta.get("status") in FINISHED,
        parameters={path.name: path.read_text(encoding="utf-8") for path in sorted((directory / "params").glob("*"))},
    )
    return found_run(run, notes=tuple(notes))


def _is_run(path: Path) -> bool:
    return (path / META).is_file() and (path / "metrics").is_dir()


def _meta(path: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _points(path: Path, text: str) -> tuple[list[Point], bool]:
    """The points of one metric, and whether its last line is torn; every other bad line is told, all at once."""
    *lines, last = text.split("\n")
    found, bad = [], []
    for number, line in enumerate(lines, start=1):
        point = _point(line)
        if point is None:
            bad.append(f"{path}:{number}: expected time in milliseconds, value and step, found {line[:60]!r}")
        else:
            found.append(point)
    if bad:
        raise DataError("\n".join(bad))
    return found, bool(last.strip())


def _point(line: str) -> Point | None:
    cells = line.split()
    try:
        return Point(time=int(cells[0]) / 1000, value=float(cells[1]), step=int(cells[2]) if len(cells) > 2 else 0)
    except (IndexError, ValueError):
        return None


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds else None
