"""Who is told of budgets, failures and idle machines: the section `alerts:` of `charter.yaml`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from charter.errors import Problem
from charter.spec.quantity import Names

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*")
FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Alerts:
    """Where alerts go beside the log of the run."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    webhook: str | None = None
    """Where the address is, never the address: `env:NAME` or `file:PATH`; every alert is POSTed there as JSON."""
    email: Names = ()
    """Addresses that are written to."""
    smtp: str | None = None
    """`smtp://HOST:PORT` or `smtps://HOST:PORT`; the password by `env:NAME` in `smtp_password`."""
    smtp_user: str | None = None
    smtp_password: str | None = None
    """Where the password is: `env:NAME` or `file:PATH`."""
    sender: str = "charter@localhost"


def check_alerts(alerts: Alerts) -> Iterator[Problem]:
    """Problems of the section: secrets that stand in the file, addresses that cannot be written to."""
    for name in ("webhook", "smtp_password"):
        found = getattr(alerts, name)
        if found is not None and not REFERENCE.fullmatch(found):
            message = "must say where the secret is, as env:NAME or file:PATH, not be it"
            yield Problem(message=message, path=f"alerts.{name}")
    for address in (*alerts.email, alerts.sender):
        if "@" not in address.strip("@") or any(sign in address for sign in "\r\n,;<> "):
            yield Problem(message=f"{address!r} is no address that can be written to", path="alerts.email")
    if alerts.email and alerts.smtp is None:
        hint = "add  smtp: smtp://HOST:587"
        yield Problem(message="e-mail needs the server that sends it", path="alerts.smtp", hint=hint)
    if alerts.smtp is not None:
        yield from _check_server(alerts.smtp)
    if alerts.smtp_password is not None and alerts.smtp_user is None:
        yield Problem(message="a password needs its user", path="alerts.smtp_user")


def _check_server(address: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(address)
        known = parts.scheme in ("smtp", "smtps") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        message = "must be smtp://HOST:PORT or smtps://HOST:PORT"
        yield Problem(message=message, path="alerts.smtp")
    elif parts.username or parts.password:
        hint = "give them as smtp_user, and smtp_password: env:NAME"
        yield Problem(message="holds a user or a password", path="alerts.smtp", hint=hint)
