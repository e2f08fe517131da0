"""Looks whether every secret that a project refers to is there; never at what it is."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from charter.pipeline.doctor.check import Check
from charter.spec.project import Project


def references(project: Project) -> Iterator[tuple[str, str]]:
    """Where in the file a secret is referred to, and the reference."""
    for name, serving in project.serving.items():
        if serving.api_key is not None and serving.is_used:
            yield f"serving.{name}.api_key", serving.api_key
    for name in ("webhook", "smtp_password"):
        if (reference := getattr(project.alerts, name)) is not None:
            yield f"alerts.{name}", reference


def examine_credentials(
    project: Project, root: Path, environment: Mapping[str, str] | None = None
) -> tuple[Check, ...]:
    """One check for every reference; a file that others may read is told."""
    known = os.environ if environment is None else environment
    return tuple(look_up(where, reference, root, known) for where, reference in references(project))


def look_up(where: str, reference: str, root: Path, environment: Mapping[str, str]) -> Check:
    """Whether one secret is where the file says.

    >>> look_up("alerts.webhook", "env:HOOK", Path("."), {"HOOK": "https://..."}).found
    'HOOK is set'
    """
    scheme, _, name = reference.partition(":")
    if scheme == "env":
        found = bool(environment.get(name))
        said, advice = f"{name} is {'set' if found else 'not set'}", f"export {name}=... before charter run"
        return Check(group="credentials", name=where, ok=found, found=said, advice=advice)
    path = (root / Path(name).expanduser()).resolve()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        said, advice = f"{path}: {error.strerror}", "write the secret into that file, readable by you alone"
        return Check(group="credentials", name=where, ok=False, found=said, advice=advice)
    private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
    said = f"{path} is there" + ("" if private else ", and others may read it")
    return Check(group="credentials", name=where, ok=private, found=said, advice=f"chmod 600 {path}")
