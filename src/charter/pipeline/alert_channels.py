"""How one alert is sent: a POST to a webhook, or an e-mail. Secrets are read here, and stand in no message."""

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from email.message import EmailMessage
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from charter.errors import CharterError, UsageError
from charter.pipeline.alerts import Alert
from charter.spec.alerts import Alerts
from charter.tracking.secret_texts import Secrets

TIMEOUT_SECONDS = 10.0


class SendError(CharterError):
    """An alert could not be sent now; it is tried again."""


def sender_of(channel: str, settings: Alerts, secrets: Secrets) -> Callable[[Alert], None]:
    """The function that sends an alert by a channel."""
    return {"webhook": _webhook, "email": _email}[channel](settings, secrets)


def body_of(alert: Alert) -> dict[str, Any]:
    """What is posted: `text`, which chat programs show, and the fields beside it."""
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
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(sign if sign == "\n" or sign.isprintable() else " " for sign in whole)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A webhook that points elsewhere is not followed: its secret would go along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


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
    if not encrypted and not _is_loopback(host):
        raise UsageError(
            f"the mail server {host} offers no encryption, so the password is not sent to it\n"
            "  use smtps://HOST:PORT, or a server with STARTTLS"
        )
    server.login(user, password)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
