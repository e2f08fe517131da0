"""Secrets of a job: their references in a project, and their values, read where it is submitted."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from charter.errors import UsageError
from charter.spec.project import Project


def secrets_of(project: Project) -> Iterator[tuple[str, str]]:
    """Yield the variables that stages read keys from, with their references."""
    for serving in project.serving.values():
        if serving.api_key and serving.api_key.startswith("env:"):
            yield serving.api_key.removeprefix("env:"), serving.api_key


def secret_values(references: Mapping[str, str]) -> dict[str, str]:
    """Variable -> value for variable -> `env:NAME` or `file:PATH`; all that are missing are told at once."""
    values, missing = {}, []
    for variable, reference in sorted(references.items()):
        kind, _, where = reference.partition(":")
        if kind == "env" and os.environ.get(where):
            values[variable] = os.environ[where]
        elif kind == "file" and Path(where).expanduser().is_file():
            values[variable] = Path(where).expanduser().read_text(encoding="utf-8").strip()
        else:
            missing.append(f"{variable} ({reference})")
    if missing:
        raise UsageError(
            f"secrets that the job needs are not here: {', '.join(missing)}\n"
            "  export them where you submit, or give them by file:PATH"
        )
    return values
