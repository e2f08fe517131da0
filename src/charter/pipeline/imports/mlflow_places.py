"""Places on this machine where MLflow keeps runs, looked at before MLflow is: it makes what is not there."""

import sqlite3
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from charter.errors import DataError, UsageError

NAMES = ("databricks", "databricks-uc", "uc")
"""What MLflow takes for a service without an address."""


def refuse_missing_place(tracking_uri: str) -> None:
    """UsageError for a file or directory that is not there, DataError for a database without runs; reads only."""
    scheme = urlsplit(tracking_uri).scheme.partition("+")[0]
    if scheme == "sqlite":
        path = Path(tracking_uri.partition(":///")[2].partition("?")[0])
        _refuse_missing(tracking_uri, there=path.is_file(), what=f"file {path}")
        if not _has_runs(path):
            raise DataError(f"--tracking-uri {tracking_uri}: {path} is no database of MLflow, and would be made one")
    elif scheme == "file" or not (scheme or tracking_uri in NAMES):
        path = Path(unquote(urlsplit(tracking_uri).path) if scheme == "file" else tracking_uri)
        _refuse_missing(tracking_uri, there=path.is_dir(), what=f"directory {path}")


def _refuse_missing(tracking_uri: str, *, there: bool, what: str) -> None:
    if not there:
        raise UsageError(f"--tracking-uri {tracking_uri}: there is no {what}, and MLflow would make it; correct it")


def _has_runs(path: Path) -> bool:
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        try:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone())
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return False
