"""Views to HTML: words for figures and states, addresses of pages, one Jinja environment.

Everything is escaped unless a template of ours made it."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from charter import __version__
from charter.dashboard.page import Context, Page, PageValues, Params
from charter.report.markup import script_json
from charter.units import format_bytes, format_count, format_seconds, format_usd

STATE_WORDS = {
    "pending": "pending",
    "waiting": "waiting for approval",
    "running": "running",
    "interrupted": "interrupted",
    "failed": "failed",
    "done": "done",
    "killed": "killed",
    "hung": "hung",
}


def state_word(state: str) -> str:
    """A state as a reader says it."""
    return STATE_WORDS.get(state, state)


def percent(share: float | None, digits: int = 0) -> str:
    """A share in percent.

    >>> percent(0.256), percent(0.256, 1), percent(None)
    ('26 %', '25.6 %', '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def ago(moment: float, now: float) -> str:
    """Return the time since a moment, in its largest unit.

    >>> ago(100, 100), ago(40, 100), ago(0, 7300)
    ('just now', '60 s ago', '2 h ago')
    """
    seconds = now - moment
    if seconds < 2:
        return "just now"
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds / 86400:.0f} d ago"


def short_seconds(seconds: float) -> str:
    """A duration in one unit, for narrow places.

    >>> short_seconds(4.2), short_seconds(75), short_seconds(5400), short_seconds(400000)
    ('4.2 s', '75 s', '1.5 h', '4.6 d')
    """
    for limit, unit, name in ((9.95, 1, "s"), (120, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}" if name == "h" or limit < 10 else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.1f} d"


ASSETS = "/assets/"
API = "/api/v1"


class LiveLinks:
    """Paths on the server."""

    static = False

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def page(self, name: str, /, *, query: Params | None = None, **params: str) -> str:
        """The path of a page."""
        path = self._paths[name]
        for key, value in params.items():
            path = path.replace("{" + key + "}", quote(value, safe=""))
        return f"{path}?{urlencode(query)}" if query else path

    def asset(self, name: str, /) -> str:
        """The path of an asset."""
        return ASSETS + name


PLAIN_LINKS = LiveLinks({"home": "/"})
"""What pages outside the table link to."""


class StaticLinks:
    """File names, all in one directory, so that every link is a name."""

    static = True

    def page(self, name: str, /, *, query: Params | None = None, **params: str) -> str:
        """The file of a page; what a query would change is not in an export."""
        if not params:
            return "index.html" if name == "home" else f"{name}.html"
        parts = [_file_part(value) for value in params.values()]
        return ".".join([parts[0], *([] if name == "run" else [name]), *parts[1:], "html"])

    def asset(self, name: str, /) -> str:
        """The file of an asset."""
        return f"assets/{name}"


def _file_part(value: str) -> str:
    """A value as part of a file name: itself where it is harmless, else with a mark that tells it from others.

    >>> _file_part("sl_cai"), _file_part("../x")
    ('sl_cai', 'x-d6b96a')
    """
    if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", value):
        return value
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-")[:60] or "page"
    return f"{words}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"


@cache
def environment() -> Environment:
    """The environment of all templates."""
    jinja = Environment(
        loader=PackageLoader("charter.dashboard", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja.filters.update(
        bytes=format_bytes,
        count=format_count,
        seconds=format_seconds,
        usd=format_usd,
        percent=percent,
        ago=ago,
        iso=iso,
        clock=clock,
        short_seconds=short_seconds,
        state_word=state_word,
    )
    return jinja


def render_page(page: Page, context: Context, view: PageValues, *, pages: Sequence[Page], version: str = "") -> str:
    """A whole page among `pages`; `version` is of what was read."""
    project = context.project if page.of_project else None
    return (
        environment()
        .get_template(page.template)
        .render(
            page=page,
            view=view.model,
            title=view.title,
            version=version,
            charts=Markup(script_json(view.charts)),
            project=project,
            nav=[item for item in pages if item.label] if project else [],
            links=context.links,
            now=context.now,
            charter_version=__version__,
            csrf=context.csrf,
            acts=context.acts,
        )
    )


def render_plain(template: str, **values: Any) -> str:
    """A page outside the table: errors, sign-in."""
    return environment().get_template(template).render(charter_version=__version__, **values)


def error_page(status: int, title: str, message: str, *, steps: Sequence[str] = ()) -> Response:
    """An error as a page like the others."""
    page = render_plain("error.html", title=title, message=message, steps=steps, links=PLAIN_LINKS, status=status)
    return HTMLResponse(page, status_code=status)


def iso(unix_seconds: float) -> str:
    """A moment for machines."""
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(unix_seconds: float) -> str:
    """A moment for people, in UTC as everywhere in Charter."""
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def json_text(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
