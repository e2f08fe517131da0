"""Pages to HTML: words for figures and states, addresses of pages, one Jinja environment.

Everything is escaped unless a template of ours made it. A page is an address, and a function from a snapshot to the
values that its template prints. To add one: a view model (pure, in `report` or `dashboard/view`), a module in
`dashboard/pages` with a `PAGE`, a template, and its name in `PAGES` of `dashboard/app.py`. Navigation, live updates,
export and the tests of every page follow.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from charter import __version__
from charter.dashboard.reading import ProjectReader
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot
from charter.errors import CharterError
from charter.report.markup import script_json
from charter.units import format_bytes, format_count, format_moment, format_seconds, format_usd

Params = Mapping[str, str]


class NoSuchPageError(CharterError):
    """There is nothing at that address."""

    exit_code = 2
    label = "usage"


class Links(Protocol):
    """Addresses of pages and files, on a server or in a directory of files."""

    static: bool
    """Whether the pages are files: then nothing is live and no form can be sent."""

    def page(self, name: str, /, *, query: Params | None = None, **params: str) -> str:
        """The address of a page by its name and the parameters of its path."""

    def asset(self, name: str, /) -> str:
        """The address of a style or a script."""


@dataclass(frozen=True, kw_only=True)
class PageValues:
    """Values of a page, for its template."""

    title: str
    model: Any
    """The view model; `view` in the template."""
    charts: Mapping[str, Any] = field(default_factory=dict)
    """What the page's charts draw, by the name that `data-chart` gives; becomes JSON."""
    status: int = 200


@dataclass(frozen=True, kw_only=True)
class Context:
    """Sources that a page may read."""

    site: ProjectSite
    links: Links
    now: float
    """Unix seconds."""
    params: Params = field(default_factory=dict)
    query: Sequence[tuple[str, str]] = ()
    reader: ProjectReader | None = None
    csrf: str = ""
    """What forms and scripts must send back; empty in an export."""
    acts: bool = False
    """Whether this reader's pages have buttons."""

    @property
    def project(self) -> Snapshot:
        """The project whose page it is; NoSuchPageError on pages without one."""
        if self.reader is None:
            raise NoSuchPageError("this page belongs to no project")
        return self.reader.snapshot()

    def asked(self, name: str, default: str = "") -> str:
        """The first value of a query parameter."""
        return next((value for key, value in self.query if key == name), default)

    def all_asked(self, name: str) -> tuple[str, ...]:
        """All values of a query parameter."""
        return tuple(value for key, value in self.query if key == name)


def _once(_: Snapshot) -> Iterable[Params]:
    return ({},)


@dataclass(frozen=True, kw_only=True)
class WebPage:
    """One kind of page."""

    name: str
    path: str
    """`/p/{project}/cost`; with `{project}` it belongs to one project."""
    template: str
    build: Callable[[Context], PageValues]
    label: str = ""
    """Its entry in the project's navigation; none when empty."""
    each: Callable[[Snapshot], Iterable[Params]] = _once
    """The parameters, beside the project, of every such page: what an export writes."""

    @property
    def of_project(self) -> bool:
        """Return True if it belongs to one project."""
        return "{project}" in self.path


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
        clock=partial(format_moment, to="second"),
        short_seconds=short_seconds,
        state_word=state_word,
    )
    return jinja


def render_page(
    page: WebPage, context: Context, view: PageValues, *, pages: Sequence[WebPage], version: str = ""
) -> str:
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


def error_page(status: int, title: str, message: str) -> Response:
    """An error as a page like the others."""
    page = render_plain("error.html", title=title, message=message, links=PLAIN_LINKS, status=status)
    return HTMLResponse(page, status_code=status)


def iso(unix_seconds: float) -> str:
    """A moment for machines."""
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def json_text(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
