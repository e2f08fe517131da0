"""Settings of the dashboard: projects, address, audience; checked before a socket is opened."""

import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from charter.errors import UsageError
from charter.inference.serve.options import is_loopback

SHORTEST_TOKEN = 32
"""Characters of a token of one's own: as many as 128 bits in hexadecimal."""
OPERATOR, VIEWER = "operator", "viewer"
"""Who has the token may look and, where the dashboard has buttons, act; who has the viewer's token may look."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One dashboard."""

    roots: tuple[Path, ...]
    """Directories that hold projects, at any depth that discovery looks into."""
    token: str = field(repr=False)
    """Whoever has it may look, and act where `acts`."""
    viewer_token: str | None = field(default=None, repr=False)
    """Whoever has it may look."""
    acts: bool = False
    """Whether pages have buttons that approve, stop and start."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose a free one."""
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    """Further names that browsers may call this server by, beside its address."""

    def token_of(self, role: str) -> str:
        """Return the token that lets a role in."""
        return self.viewer_token if role == VIEWER and self.viewer_token else self.token

    @property
    def tls(self) -> bool:
        """Return True if it speaks HTTPS."""
        return self.certificate is not None

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self.tls else "http"


def check_settings(settings: Settings) -> None:
    """UsageError unless what is asked for is safe: away from loopback only with TLS; a token that cannot be guessed."""
    if (settings.certificate is None) != (settings.key is None):
        raise UsageError("--tls-certificate and --tls-key belong together; give both, or neither")
    for option, path in (("--tls-certificate", settings.certificate), ("--tls-key", settings.key)):
        if path is not None and not path.is_file():
            raise UsageError(f"{option} {path}: there is no such file; give a PEM file")
    if not is_loopback(settings.host) and not settings.tls:
        raise UsageError(
            f"--host {settings.host} can be reached from other machines, and without TLS anyone on the way reads the "
            "token and the pages\n"
            "  give --tls-certificate FILE --tls-key FILE, or stay on 127.0.0.1 and go through a tunnel: "
            "ssh -L 8765:127.0.0.1:8765 THIS_MACHINE"
        )
    if len(settings.token) < SHORTEST_TOKEN or not settings.token.isascii() or not settings.token.isprintable():
        raise UsageError(
            f"the token has {len(settings.token)} characters; at least {SHORTEST_TOKEN} printable ASCII ones are "
            'needed: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    if settings.viewer_token is not None:
        check_settings(replace(settings, token=settings.viewer_token, viewer_token=None))
        if settings.viewer_token == settings.token:
            raise UsageError("--viewer-token is the same as --token; give another, or leave it out")
    if not 0 <= settings.port <= 65535:
        raise UsageError(f"--port {settings.port} is not a port; give 0 (a free one) to 65535")


def token_from(reference: str | None) -> str:
    """A fresh random token, or the one that `env:NAME` or `file:PATH` holds; never one from the command line itself."""
    if reference is None:
        return secrets.token_urlsafe(32)
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        token = os.environ.get(where)
        if token is None:
            raise UsageError(f"--token {reference}: the variable {where} is not set")
        return token.strip()
    if kind == "file" and where:
        try:
            return Path(where).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token {reference}: {error}") from None
    raise UsageError(
        "--token takes the place where the token is, never the token: env:NAME or file:PATH; "
        "without it a random one is made for this session"
    )
