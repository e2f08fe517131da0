"""The web application: addresses to pages, errors to pages, events of live pages."""

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from charter.dashboard.guard import Guard, csrf_of
from charter.dashboard.links import ASSETS, PLAIN_LINKS, LiveLinks
from charter.dashboard.live import live_route
from charter.dashboard.page import Context, NoSuchPageError, Page
from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import render_page, render_plain
from charter.dashboard.settings import Settings
from charter.dashboard.site import Site
from charter.dashboard.table import PAGES, POSTS
from charter.errors import CharterError

LINKS = LiveLinks({page.name: page.path for page in PAGES})
KEPT_PAGES = 256
SAME_SECONDS = 2
"""A page that nothing has changed is written anew after so long, for the times on it."""
STALE_SECONDS = 5.0
"""How old a page may be that is given while a new one is written."""
ASSET_FILES: Mapping[str, tuple[str, str, str]] = {
    "app.css": ("charter.dashboard", "static/app.css", "text/css; charset=utf-8"),
    "parts.css": ("charter.dashboard", "static/parts.css", "text/css; charset=utf-8"),
    "theme.js": ("charter.dashboard", "static/theme.js", "text/javascript; charset=utf-8"),
    "app.js": ("charter.dashboard", "static/app.js", "text/javascript; charset=utf-8"),
    "charts.js": ("charter.dashboard", "static/charts.js", "text/javascript; charset=utf-8"),
    "pages.css": ("charter.dashboard", "static/pages.css", "text/css; charset=utf-8"),
    "more_charts.js": ("charter.dashboard", "static/more_charts.js", "text/javascript; charset=utf-8"),
    "what_if.js": ("charter.dashboard", "static/what_if.js", "text/javascript; charset=utf-8"),
    "pieces.js": ("charter.dashboard", "static/pieces.js", "text/javascript; charset=utf-8"),
    "chart.umd.min.js": ("charter.report.assets", "chart.umd.min.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("charter.dashboard", "static/icon.svg", "image/svg+xml"),
}
"""Every file that is served, by name: nothing else can be asked for."""


def build_app(settings: Settings, port: int, *, ending: Callable[[], bool] = lambda: False) -> Guard:
    """The application behind its guard; `port` is the one it is reached at, `ending` whether its server is."""
    site = Site(settings)
    shown = Shown(site, csrf_of(settings.token))
    routes: list[BaseRoute] = [Route(page.path, shown.endpoint(page), name=page.name) for page in PAGES]
    routes += [live_route(site, ending), Route(ASSETS + "{name}", asset), *POSTS]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _defect})
    app.state.site = site
    return Guard(app, settings, port)


@dataclass(frozen=True)
class Kept:
    """A page as it was last written."""

    state: object
    written_at: float
    response: Response


class Shown:
    """Pages as they were last written, by what they were written from.

    A page that has changed since is written anew beside the request, which gets the one before: with many browsers
    nobody waits. The page knows its version and asks again. Only one that is older than a moment is waited for.
    """

    def __init__(self, site: Site, csrf: str) -> None:
        self._site = site
        self._csrf = csrf
        self._kept: OrderedDict[object, Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._writing: dict[object, threading.Lock] = {}
        self._writers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="pages")

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """What answers requests for one page."""

        async def answer(request: Request) -> Response:
            return await run_in_threadpool(self._answer, page, request)

        return answer

    def _answer(self, page: Page, request: Request) -> Response:
        params = {key: str(value) for key, value in request.path_params.items()}
        query = tuple(request.query_params.multi_items())
        reader = None
        if page.of_project:
            reader = self._site.reader(params.pop("project"))
            if reader is None:
                return error_page(404, "No such project", "It may have been moved or removed; go back to the list.")
        key = (page.name, reader.found.key if reader else "", tuple(params.items()), query)
        context = Context(site=self._site, links=LINKS, now=time.time(), params=params, query=query, reader=reader)
        with self._lock:
            kept, turn = self._kept.get(key), self._writing.setdefault(key, threading.Lock())
        if kept is not None and kept.state == self._state(reader):
            return kept.response
        if kept is not None and time.monotonic() - kept.written_at < STALE_SECONDS:
            if not turn.locked():
                self._writers.submit(self._renew, key, turn, page, context)
            return kept.response
        return self._renew(key, turn, page, context)

    def _state(self, reader: ProjectReader | None) -> object:
        """What a page is written from; another one needs another page."""
        return self._site.version(reader), int(time.time() / SAME_SECONDS)

    def _renew(self, key: object, turn: threading.Lock, page: Page, context: Context) -> Response:
        """The page, written by one thread at a time."""
        with turn:
            state = self._state(context.reader)
            with self._lock:
                kept = self._kept.get(key)
            if kept is not None and kept.state == state:
                return kept.response
            response = self._write(page, context)
            with self._lock:
                self._kept.pop(key, None)
                self._kept[key] = Kept(state, time.monotonic(), response)
                while len(self._kept) > KEPT_PAGES:
                    old, _ = self._kept.popitem(last=False)
                    self._writing.pop(old, None)
            return response

    def _write(self, page: Page, context: Context) -> Response:
        version = self._site.version(context.reader)  # before what it shows is read: never newer than that
        try:
            view = page.build(context)
        except NoSuchPageError as error:
            return error_page(404, "Not found", str(error))
        except CharterError as error:
            return error_page(500, "This page could not be made", str(error))
        text = render_page(page, context, view, pages=PAGES, version=version, csrf=self._csrf)
        return HTMLResponse(text, status_code=view.status)


async def asset(request: Request) -> Response:
    """A style or a script, by a name of the list."""
    found = ASSET_FILES.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return Response(
        asset_bytes(request.path_params["name"]), media_type=found[2], headers={"cache-control": "no-cache"}
    )


def asset_bytes(name: str) -> bytes:
    """The content of an asset."""
    package, path, _ = ASSET_FILES[name]
    return files(package).joinpath(path).read_bytes()


def error_page(status: int, title: str, message: str, *, steps: Sequence[str] = ()) -> Response:
    """An error as a page like the others."""
    page = render_plain("error.html", title=title, message=message, steps=steps, links=PLAIN_LINKS, status=status)
    return HTMLResponse(page, status_code=status)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_page(404, "Not found", "There is no page at this address.")
    if error.status_code == 405:
        return PlainTextResponse("this address cannot be used that way\n", status_code=405)
    return error_page(error.status_code, "This could not be done", str(error.detail))


async def _defect(_: Request, error: Exception) -> Response:
    """A defect of Charter: its kind is said, its text may hold anything and is not."""
    return error_page(
        500, "This page could not be made", f"A defect of Charter ({type(error).__name__}); the terminal has the rest."
    )
