"""Who may ask for what: pure rules for hosts, origins, sessions and headers."""

import hashlib
import hmac
from collections.abc import Mapping

from charter.dashboard.settings import LOOPBACK_NAMES, Settings, is_loopback

READING = frozenset({"GET", "HEAD"})
METHODS = READING | {"POST"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Only files of this server: no inline script, no inline style, no frame, nothing from elsewhere."""
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
KEEP_HTTPS = {"strict-transport-security": "max-age=31536000"}


def allowed_hosts(settings: Settings, port: int) -> frozenset[str]:
    """The values of `Host` that this server answers to: a page elsewhere cannot reach it by a name of its own.

    >>> from pathlib import Path
    >>> sorted(allowed_hosts(Settings(roots=(), token="t" * 32), 8000))
    ['127.0.0.1:8000', '[::1]:8000', 'localhost:8000']
    """
    names = {*settings.names}
    if is_loopback(settings.host):
        names |= {*LOOPBACK_NAMES, settings.host}
    elif settings.host not in ("0.0.0.0", "::"):
        names.add(settings.host)
    written = {f"[{name}]" if ":" in name else name.lower() for name in names}
    usual = 443 if settings.tls else 80
    return frozenset({f"{name}:{port}" for name in written} | (written if port == usual else set()))


def host_allowed(host: str | None, allowed: frozenset[str]) -> bool:
    """Whether a request names this server."""
    return host is not None and host.lower() in allowed


def origin_allowed(origin: str | None, *, scheme: str, allowed: frozenset[str]) -> bool:
    """Whether a request that may change something comes from a page of this server; browsers always say."""
    if origin is None:
        return False
    found, _, host = origin.partition("://")
    return found == scheme and host.lower() in allowed


def fetched_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether another site's page asks for a part of it; a link that is followed (`navigate`) is no part."""
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    return site in ("cross-site", "same-site") and mode != "navigate"


def session_of(token: str) -> str:
    """What the cookie holds: proof of the token, from which the token cannot be told."""
    return _derived(token, "session")


def csrf_of(token: str) -> str:
    """What a form must carry beside the cookie; another site can make a browser send the one, not read the other."""
    return _derived(token, "csrf")


def same(given: str | None, wanted: str) -> bool:
    """Compare secrets in constant time.

    >>> same("a", "a"), same("b", "a"), same(None, "a"), same("ä", "a")
    (True, False, False, False)
    """
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())


def cookie_name(port: int) -> str:
    """Cookies do not tell ports apart, so the name does: two dashboards on one machine keep their sessions."""
    return f"charter_ui_{port}"


def _derived(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"charter dashboard {purpose}".encode(), hashlib.sha256).hexdigest()
