"""Alerts: what of a run's events somebody must hear of, each once, written down before anything is sent.

The run only adds lines to `alerts.jsonl`, and starts a process of its own that sends what is not sent yet
(`alert_sender`): a server that does not answer never holds a run up, and what is left is sent after the run, or with
the next one.
"""

import contextlib
import hashlib
import json
import select
import smtplib
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from charter.artifacts import durable
from charter.errors import CharterError, UsageError
from charter.inference.serve.protocol import is_loopback
from charter.spec.project import Project
from charter.spec.sections import Alerts
from charter.tracking.base import Secrets

ALERTS_DIR = "alerts"
"""In the run's directory."""
ALERTS_FILE, SENT_FILE = "alerts.jsonl", "sent.jsonl"
Level = Literal["warning", "error"]
LEVELS: Mapping[str, Level] = {
    "budget_warning": "warning",
    "budget_hold": "warning",
    "stage_idle": "warning",
    "overoptimisation": "warning",
    "stage_failed": "error",
    "run_stopped": "error",
}
"""The events that somebody must hear of."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One thing that somebody must hear of."""

    key: str
    """Equal for what is to be said once."""
    time: float
    run: str
    event: str
    level: Level
    text: str


def alert_of(event: Mapping[str, Any], *, run: str) -> Alert | None:
    """The alert that an event asks for; None for most. Pure.

    A share of a limit is said once, however often a run is started again; a higher limit has shares of its own.
    """
    kind = str(event["event"])
    level = LEVELS.get(kind)
    if level is None:
        return None
    if kind.startswith("budget"):
        about = [event.get(name) for name in ("scope", "name", "limit_usd", "state", "share")]
        moment = about if event.get("name") else [event.get("message")]
    else:
        moment = [event.get("stage"), event.get("at", event["time"])]
    if event.get("state") == "stop" or (event.get("share") or 0) >= 1:
        level = "error"
    digest = hashlib.sha256(json.dumps([run, kind, moment], sort_keys=True).encode()).hexdigest()[:16]
    stage = f"stage {event['stage']}: " if event.get("stage") and kind == "stage_failed" else ""
    text = f"{stage}{event.get('message') or kind.replace('_', ' ')}"
    return Alert(key=digest, time=float(event["time"]), run=run, event=kind, level=level, text=text)


class AlertBook:
    """The alerts of a run and what of them has been sent, in two files that are only added to."""

    def __init__(self, run_dir: Path) -> None:
        self.directory = run_dir / ALERTS_DIR

    def add(self, alert: Alert) -> bool:
        """Write an alert down; False when it was said before."""
        if any(earlier.key == alert.key for earlier in self.alerts()):
            return False
        durable.make_dir(self.directory)
        durable.append_line(self.directory / ALERTS_FILE, asdict(alert), sync=True)
        return True

    def mark(self, alert: Alert, channel: str, *, at: float, error: str = "") -> None:
        """Write down that an alert was sent by a channel, or why it could not be."""
        entry = {"key": alert.key, "channel": channel, "time": at, **({"error": error} if error else {})}
        durable.append_line(self.directory / SENT_FILE, entry, sync=not error)

    def alerts(self) -> tuple[Alert, ...]:
        """All alerts, oldest first."""
        return tuple(Alert(**line) for line in durable.objects_in(self.directory / ALERTS_FILE))

    def unsent(self, channels: tuple[str, ...]) -> tuple[tuple[Alert, str], ...]:
        """Return the alerts still to be sent, each with its channel."""
        sent = {
            (line["key"], line["channel"])
            for line in durable.objects_in(self.directory / SENT_FILE)
            if "error" not in line
        }
        return tuple((alert, name) for alert in self.alerts() for name in channels if (alert.key, name) not in sent)


class AlertListener:
    """Listens to a run's events; starts the sender when there is something to send."""

    def __init__(self, project: Project, run_dir: Path) -> None:
        self._project = project
        self._book = AlertBook(run_dir)
        self._run_dir = run_dir
        self._senders: list[subprocess.Popen[bytes]] = []
        """Those that have not ended; the last one may still look at the book."""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Hear of an event."""
        starts = event["event"] == "run_started"
        alert = alert_of(event, run=self._project.name)
        if alert is None and not starts:
            return
        channels = channels_of(self._project.alerts)
        new = alert is not None and self._book.add(alert)
        if channels and (new or starts) and self._book.unsent(channels):
            self._start_sender()

    def _start_sender(self) -> None:
        self._senders = [sender for sender in self._senders if not _has_ended(sender)]
        if self._senders and _looks_again(self._senders[-1]):
            return
        command = [sys.executable, "-m", "charter.run.alert_sender", "--run-dir", str(self._run_dir)]
        command += ["--settings", json.dumps(asdict(self._project.alerts))]
        with contextlib.suppress(OSError):
            sender = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._senders.append(sender)


def _looks_again(sender: "subprocess.Popen[bytes]") -> bool:
    """Return True if a sender surely sees what is in the book now: it closes its input before its last look."""
    assert sender.stdin is not None
    closed = select.poll()
    closed.register(sender.stdin, 0)
    return not closed.poll(0)


def _has_ended(sender: "subprocess.Popen[bytes]") -> bool:
    """Return True if a sender has ended; its pipe is closed then."""
    if sender.poll() is None:
        return False
    assert sender.stdin is not None
    sender.stdin.close()
    return True


def channels_of(settings: Alerts) -> tuple[str, ...]:
    """The ways that alerts go beside the log.

    >>> channels_of(Alerts(webhook="env:HOOK"))
    ('webhook',)
    """
    return (("webhook",) if settings.webhook else ()) + (("email",) if settings.email else ())


TIMEOUT_SECONDS = 10.0


class SendError(CharterError):
    """An alert could not be sent now; it is tried again."""


def sender_of(channel: str, settings: Alerts, secrets: Secrets) -> Callable[[Alert], None]:
    """The function that sends an alert by a channel."""
    return {"webhook": _webhook, "email": _email}[channel](settings, secrets)


def body_of(alert: Alert) -> dict[str, Any]:
    """Return what is posted: `text`, which chat programs show, and the fields beside it."""
    return {**asdict(alert), "text": f"[{alert.run}] {alert.text}"}


def message_of(alert: Alert, settings: Alerts) -> EmailMessage:
    """The e-mail."""
    message = EmailMessage()
    text = _writable(alert.text)
    first = " ".join(text.splitlines()[:1])[:150]
    message["Subject"] = " ".join(f"[charter] {alert.level}: {_writable(alert.run)}: {first}".split())
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.email)
    message["Message-ID"] = f"<{alert.key}@{settings.sender.rpartition('@')[2]}>"
    message.set_content(f"{text}\n\nrun {_writable(alert.run)}, event {alert.event}\n")
    return message


def _writable(text: str) -> str:
    """A text that a mail can hold: no half of a pair of surrogates, no control characters but line ends."""
    valid = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(sign if sign == "\n" or sign.isprintable() else " " for sign in valid)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A webhook that points elsewhere is not followed: its secret would go along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


def _webhook(settings: Alerts, secrets: Secrets) -> Callable[[Alert], None]:
    opener = urllib.request.build_opener(_NoRedirects)

    def send(alert: Alert) -> None:
        address = secrets.read(settings.webhook or "", of="the address of the webhook (alerts.webhook)")
        if urlsplit(address).scheme not in ("http", "https"):
            raise UsageError("the address of the webhook (alerts.webhook) is not http:// or https://")
        request = urllib.request.Request(
            address,
            data=json.dumps(body_of(alert)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "charter", "X-Charter-Alert": alert.key},
            method="POST",
        )
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS):
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise SendError(f"the webhook answered {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise SendError(f"the webhook cannot be reached ({secrets.blotted(str(error))})") from None

    return send


def _email(settings: Alerts, secrets: Secrets) -> Callable[[Alert], None]:
    def send(alert: Alert) -> None:
        parts = urlsplit(settings.smtp or "")
        host, port = parts.hostname or "localhost", parts.port or (465 if parts.scheme == "smtps" else 587)
        password = None
        if settings.smtp_password is not None:
            password = secrets.read(settings.smtp_password, of="the password of the mail server (alerts.smtp_password)")
        try:
            with _server(parts.scheme, host, port) as server:
                _log_in(server, host, settings.smtp_user, password)
                server.send_message(message_of(alert, settings))
        except (OSError, smtplib.SMTPException) as error:
            raise SendError(f"the mail server {host}:{port} failed ({secrets.blotted(str(error))})") from None

    return send


def _server(scheme: str, host: str, port: int) -> smtplib.SMTP:
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())
    return smtplib.SMTP(host, port, timeout=TIMEOUT_SECONDS)


def _log_in(server: smtplib.SMTP, host: str, user: str | None, password: str | None) -> None:
    encrypted = isinstance(server, smtplib.SMTP_SSL)
    server.ehlo()
    if not encrypted and server.has_extn("starttls"):
        server.starttls(context=ssl.create_default_context())
        server.ehlo()
        encrypted = True
    if user is None or password is None:
        return
    if not encrypted and not is_loopback(host):
        raise UsageError(
            f"the mail server {host} offers no encryption, so the password is not sent to it\n"
            "  use smtps://HOST:PORT, or a server with STARTTLS"
        )
    server.login(user, password)
