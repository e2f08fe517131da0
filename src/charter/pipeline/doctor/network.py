"""Looks whether what a project talks to answers: endpoints, ledger, second place, tracking, alerts."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from charter.pipeline.doctor.check import Check
from charter.spec.project import Project

CONNECT_SECONDS = 5.0
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "smtp": 25, "smtps": 465}


def addresses(project: Project) -> Iterator[tuple[str, str]]:
    """Where in the file an address stands, and the address."""
    for name, serving in project.serving.items():
        if serving.is_used:
            for number, address in enumerate((serving.endpoint, *serving.also_endpoints)):
                yield f"serving.{name}" + (f" ({number + 1})" if number else ""), str(address)
    if (project.storage.ledger or "").startswith("postgresql"):
        yield "storage.ledger", str(project.storage.ledger)
    if project.alerts.smtp is not None:
        yield "alerts.smtp", project.alerts.smtp
    for entry in project.tracking:
        if (uri := getattr(entry, "uri", None)) is not None and urlsplit(uri).hostname:
            yield f"tracking.{getattr(entry, 'kind', 'tracker')}", uri


def examine_network(project: Project, root: Path) -> tuple[Check, ...]:
    """One connection to every server that the project names, and one look into its second place."""
    checks = [connect(where, address) for where, address in addresses(project)]
    if project.storage.artifacts is not None:
        checks.append(_second_place(project.storage.artifacts, root))
    return tuple(checks)


def connect(where: str, address: str, *, seconds: float = CONNECT_SECONDS) -> Check:
    """Whether something accepts connections at an address; what it says is not asked."""
    parts = urlsplit(address)
    try:
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        return Check(
            group="network", name=where, ok=False, found="no host and port in the address", advice=f"mend {where}"
        )
    shown, start = f"{parts.hostname}:{port}", time.monotonic()
    try:
        with contextlib.closing(socket.create_connection((parts.hostname, port), timeout=seconds)):
            milliseconds = (time.monotonic() - start) * 1000
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        advice = f"is the server of {where} running, and may this machine reach it?"
        return Check(group="network", name=where, ok=False, found=f"{shown}: {why}", advice=advice)
    return Check(group="network", name=where, ok=True, found=f"{shown} answers in {milliseconds:.0f} ms")


def _second_place(where: str, root: Path) -> Check:
    from charter.artifacts.store.opening import open_place

    try:
        open_place(where, root=root).size("charter-doctor")
    except Exception as error:
        advice = "give a bucket or directory that you may read and write, with its credentials"
        return Check(group="network", name="storage.artifacts", ok=False, found=_line(error), advice=advice)
    return Check(group="network", name="storage.artifacts", ok=True, found=f"{where} can be read")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
