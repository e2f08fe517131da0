"""Guard of the dashboard: rules for hosts, origins, sessions and headers, and the middleware that applies them."""

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from charter.dashboard.render import API, ASSETS, PLAIN_LINKS, render_plain
from charter.dashboard.site import LOOPBACK_NAMES, OPERATOR, VIEWER, Settings
from charter.inference.serve.protocol import is_loopback

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
    # Not "no-referrer": browsers then send forms with `Origin: null`, which no page of this server could be told from.
    "referrer-policy": "same-origin",
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
    """Return True if a request names this server."""
    return host is not None and host.lower() in allowed


def origin_allowed(origin: str | None, *, scheme: str, allowed: frozenset[str]) -> bool:
    """Return True if a request that may change something comes from a page of this server; browsers always say."""
    if origin is None:
        return False
    its_scheme, _, host = origin.partition("://")
    return its_scheme == scheme and host.lower() in allowed


def fetched_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return True if another site's page requests a part of it; a link that is followed (`navigate`) is no part."""
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    return site in ("cross-site", "same-site") and mode != "navigate"


def session_of(token: str) -> str:
    """Return the value of the session cookie: proof of the token, from which the token cannot be derived."""
    return _derived(token, "session")


def csrf_of(token: str) -> str:
    """Return the value that a form carries beside the cookie; another site can send the one, not read the other."""
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


SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
CSRF_HEADER, CSRF_FIELD = "x-charter-csrf", "csrf"
LARGEST_BODY = 64 * 1024
OPEN_ASSETS = frozenset({ASSETS + "app.css", ASSETS + "parts.css", ASSETS + "theme.js", ASSETS + "icon.svg"})
"""What the sign-in page itself needs."""


class RequestGuard:
    """Host, origin, method, session and CSRF, in that order; the application sees what is left."""

    def __init__(self, app: ASGIApp, settings: Settings, port: int) -> None:
        self.app = app
        self._settings = settings
        self._hosts = allowed_hosts(settings, port)
        self._cookie = cookie_name(port)
        roles = {OPERATOR: settings.token, **({VIEWER: settings.viewer_token} if settings.viewer_token else {})}
        self._tokens: Mapping[str, str] = roles
        self._sessions = {role: session_of(token) for role, token in roles.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = await self._refusal(Request(scope, receive))
        await (refused or self.app)(scope, receive, self._sealed(scope, send))

    def _sealed(self, scope: Scope, send: Send) -> Send:
        """`send`, with the headers of every answer."""
        still = scope["path"].startswith(ASSETS)

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**HEADERS, **(KEEP_HTTPS if self._settings.tls else {})})
                if not still:
                    headers["cache-control"] = "no-store"
            await send(message)

        return sealed

    async def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that may not pass, or that concerns the session itself; None lets it pass."""
        if not host_allowed(request.headers.get("host"), self._hosts):
            return _plain(421, f"this server answers to {', '.join(sorted(self._hosts))} only")
        if request.method not in METHODS:
            return _plain(405, "only GET, HEAD and POST are known here")
        if fetched_from_elsewhere(request.headers):
            return _plain(403, "another site asked for this; open the address itself")
        if request.method not in READING and not self._is_own(request.headers):
            return _plain(403, "the request does not come from a page of this dashboard")
        if request.method in READING and request.url.path in OPEN_ASSETS:
            return None
        if request.url.path == SIGN_IN:
            return await self._sign_in(request)
        if "token" in request.query_params:
            return self._with_token(request)
        role = self._role(request.cookies.get(self._cookie), self._sessions)
        if role is None and request.method in READING and f"{request.url.path}/".startswith(f"{API}/"):
            # Scripts have no session. A page of another site cannot send this header without asking first.
            role = self._role(request.headers.get("authorization", "").removeprefix("Bearer ").strip(), self._tokens)
            if role is None:
                return _plain(401, "give the token of this dashboard: Authorization: Bearer TOKEN")
        if role is None:
            return _sign_in_page(401)
        request.state.role = role
        if request.method not in READING:
            return await self._changing(request, csrf_of(self._tokens[role]))
        return None

    def _role(self, given: str | None, secrets: Mapping[str, str]) -> str | None:
        """Return whose secret that is; all are compared, so that the time says nothing."""
        matches = [role for role, secret in secrets.items() if same(given, secret)]
        return matches[0] if matches else None

    def _is_own(self, headers: Headers) -> bool:
        return origin_allowed(headers.get("origin"), scheme=self._settings.scheme, allowed=self._hosts)

    async def _changing(self, request: Request, csrf: str) -> Response | None:
        """A POST: it must carry the CSRF token, in a header or in its form, which is read here once."""
        given = request.headers.get(CSRF_HEADER)
        if given is None:
            request.state.form = await _form(request)
            given = request.state.form.get(CSRF_FIELD)
        if not same(given, csrf):
            return _plain(403, "the request lacks the token of this session's pages; reload the page")
        if int(request.headers.get("content-length") or LARGEST_BODY + 1) > LARGEST_BODY:
            return _plain(413, f"more than {LARGEST_BODY} bytes, or no content-length")
        if request.url.path == SIGN_OUT:
            response = _sign_in_page(200, message="Signed out.")
            response.delete_cookie(self._cookie, path="/")
            return response
        return None

    async def _sign_in(self, request: Request) -> Response:
        if request.method in READING:
            return _sign_in_page(200)
        role = self._role((await _form(request)).get("token", "").strip(), self._tokens)
        if role is None:
            return _sign_in_page(401, message="That is not the token of this dashboard.")
        return self._let_in(RedirectResponse("/", status_code=303), role)

    def _with_token(self, request: Request) -> Response:
        """The first visit, by the printed address: the cookie, and a page that goes on without the token.

        A page rather than a redirect: after one that begins at another site, a browser keeps a strict cookie back.
        """
        role = self._role(request.query_params["token"], self._tokens)
        if request.method not in READING or role is None:
            return _sign_in_page(401, message="That is not the token of this dashboard; each start makes a new one.")
        left = [(key, value) for key, value in parse_qsl(request.url.query) if key != "token"]
        path = "/" + request.url.path.lstrip("/\\")
        target = f"{path}?{urlencode(left)}" if left else path
        return self._let_in(HTMLResponse(render_plain("entered.html", target=target, links=PLAIN_LINKS)), role)

    def _let_in(self, response: Response, role: str) -> Response:
        response.set_cookie(
            self._cookie, self._sessions[role], httponly=True, samesite="strict", secure=self._settings.tls, path="/"
        )
        return response


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a small form; empty when it is none."""
    if int(request.headers.get("content-length") or LARGEST_BODY + 1) > LARGEST_BODY:
        return {}
    body = await request.body()
    return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))


def _sign_in_page(status: int, *, message: str = "") -> Response:
    return HTMLResponse(render_plain("sign_in.html", links=PLAIN_LINKS, message=message), status_code=status)


def _plain(status: int, message: str) -> Response:
    return PlainTextResponse(f"{message}\n", status_code=status)
