"""Web application: addresses to pages, errors to pages, events of live pages; served, or all pages as files."""

import asyncio
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from charter.artifacts import durable
from charter.dashboard.guard import RequestGuard, csrf_of
from charter.dashboard.pages import home, run
from charter.dashboard.pages.api import ROUTES as API_ROUTES
from charter.dashboard.pages.data import DATA, DATA_ROUTES, RECORDS, SAMPLES
from charter.dashboard.pages.home import HOME
from charter.dashboard.pages.plan import ACCURACY, ACCURACY_ROUTES, PLAN, PLAN_ROUTES
from charter.dashboard.pages.run import APPROVE, COST, STAGE
from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import (
    ASSETS,
    Context,
    LiveLinks,
    NoSuchPageError,
    StaticLinks,
    WebPage,
    error_page,
    json_text,
    render_page,
)
from charter.dashboard.site import OPERATOR, ProjectSite, Settings, check_settings, missing_extra
from charter.errors import CharterError, UsageError
from charter.report.markup import ASSETS as CHARTS
from charter.report.markup import CHART_LIBRARY

# -------- Buttons of the pages.


Form = Mapping[str, str]


def may_act(settings: Settings, role: str) -> bool:
    """Return True if somebody in that role may press buttons."""
    return settings.acts and role == OPERATOR


def _approve(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.engines.project import load_project
    from charter.run.actions import approve_stage
    from charter.run.graph import build_pipeline

    root = reader.found.root
    pipeline = build_pipeline(load_project(root, env=dict(os.environ)), root)
    if form.get("stage", "") not in pipeline.stages:
        raise UsageError(f"there is no stage {form.get('stage', '')!r} any more; reload the page")
    stage = pipeline.stages[form["stage"]]
    # What was looked at is what is approved: a file that has changed meanwhile makes another fingerprint.
    if form.get("fingerprint", "") != stage.asked_fingerprint:
        raise UsageError(f"stage {stage.name} has changed since this page was shown; look at its samples again")
    approve_stage(pipeline, stage, note=form.get("note", "").strip(), by=by)


def _stop(reader: ProjectReader, _: Form, by: str) -> None:
    from charter.run.actions import stop_beside

    stop_beside(reader.found.root, by=by)


def _start(reader: ProjectReader, _: Form, by: str) -> None:
    from charter.run.actions import start

    start(reader.found.root, by=by)


def _sweep(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import start

    start(reader.found.root, sweep=form.get("sweep", ""), by=by)


def _raise(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import raise_budget

    raise_budget(reader.found.root, form.get("limit", ""), by=by)


def _rerun(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.engines.project import load_project
    from charter.run.actions import rerun_stage, start
    from charter.run.graph import build_pipeline

    root = reader.found.root
    rerun_stage(build_pipeline(load_project(root, env=dict(os.environ)), root), form.get("stage", ""), by=by)
    start(root, by=by)


def _note(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import note_sample

    sample = form.get("sample", "")
    if not sample:
        raise UsageError("there is no sample to flag")
    note = form.get("note", "").strip()[:LONGEST_NOTE]
    stage, flagged = form.get("stage", ""), bool(form.get("flagged"))
    note_sample(reader.found.root, sample, flagged=flagged, note=note, stage=stage, by=by)


def _tag(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import tag_run

    tag_run(reader.found.root, [form.get("tag", "")], remove=form.get("remove", "") != "", by=by)


LONGEST_NOTE = 500
BUTTONS: Mapping[str, Callable[[ProjectReader, Form, str], None]] = {
    "approve": _approve,
    "stop": _stop,
    "start": _start,
    "note": _note,
    "sweep": _sweep,
    "tag": _tag,
    "raise": _raise,
    "rerun": _rerun,
}

RETURNS_TO: Mapping[str, str] = {"note": "/samples"}
"""Where a button leads that is not on the page of the run."""


async def act(request: Request) -> Response:
    """`POST /p/{project}/do/{button}`: do it, then show the run again."""
    site, key = request.app.state.site, request.path_params["project"]
    reader, button = site.reader(key), BUTTONS.get(request.path_params["button"])
    if reader is None or button is None:
        return error_page(404, "Not found", "There is no such project, or no such button.")
    if not may_act(site.settings, request.state.role):
        return error_page(
            403, "You may look, not act", "The token that let you in is a viewer's, or buttons are off here."
        )
    form: Form = getattr(request.state, "form", {})
    from charter.run.approval import who_is_here

    try:
        await run_in_threadpool(button, reader, form, f"{who_is_here()}, in the dashboard")
        # The page that follows shows what was done, not the snapshot of half a second ago.
        await run_in_threadpool(lambda: reader.snapshot(wait=True))
        request.app.state.shown.forget(reader.found.key)
    except CharterError as error:
        return error_page(409, "This was not done", str(error))
    page = RETURNS_TO.get(request.path_params["button"], "")
    return RedirectResponse(f"/p/{key}{page}", status_code=303)


ACTIONS = (Route("/p/{project}/do/{button}", act, methods=["POST"]),)


# -------- Web application: addresses to pages, errors to pages, events of live pages.


EVERY_SECONDS = 1.0
"""How often a stream looks; the readers themselves look less often when many ask."""
NAP_SECONDS = 0.25
"""How soon a stream ends when the server does."""
ALIVE_SECONDS = 15.0
MOST_STREAMS = 128


def live_route(site: ProjectSite, ending: Callable[[], bool]) -> Route:
    """`/live` (all projects) and `/live?project=KEY`; the streams end when the server is `ending`."""
    streams = Streams(site, ending)
    return Route("/live", streams.answer, methods=["GET"])


class Streams:
    """The open streams."""

    def __init__(self, site: ProjectSite, ending: Callable[[], bool]) -> None:
        self._site = site
        self._ending = ending
        self._open = 0

    async def answer(self, request: Request) -> Response:
        """Open a stream, unless there are too many."""
        key = request.query_params.get("project", "")
        if key and self._site.reader(key) is None:
            return PlainTextResponse("no such project\n", status_code=404)
        if self._open >= MOST_STREAMS:
            return PlainTextResponse("too many live pages are open\n", status_code=503, headers={"retry-after": "30"})
        headers = {"x-accel-buffering": "no", "cache-control": "no-store"}
        return StreamingResponse(self._events(request, key), media_type="text/event-stream", headers=headers)

    async def _events(self, request: Request, key: str) -> AsyncIterator[str]:
        self._open += 1
        try:
            sent, said_at = "", time.monotonic()
            yield "retry: 2000\n\n"
            while not self._ending() and not await request.is_disconnected():
                version = await run_in_threadpool(self._version, key)
                if version != sent:
                    sent, said_at = version, time.monotonic()
                    yield f"event: version\ndata: {json_text({'version': version})}\n\n"
                elif time.monotonic() - said_at > ALIVE_SECONDS:
                    said_at = time.monotonic()
                    yield ": alive\n\n"
                for _ in range(round(EVERY_SECONDS / NAP_SECONDS)):
                    if not self._ending():
                        await asyncio.sleep(NAP_SECONDS)
        finally:
            self._open -= 1

    def _version(self, key: str) -> str:
        reader = self._site.reader(key) if key else None
        return "gone" if key and reader is None else self._site.version(reader)


PAGES: tuple[WebPage, ...] = (
    HOME,
    run.PAGE,
    run.ACTIONS,
    run.FILES,
    STAGE,
    COST,
    PLAN,
    DATA,
    SAMPLES,
    APPROVE,
    RECORDS,
    ACCURACY,
    home.SWEEPS,
    home.PAGE,
)
POSTS: tuple[BaseRoute, ...] = (*PLAN_ROUTES, *DATA_ROUTES, *ACCURACY_ROUTES, *home.ROUTES)
"""Addresses that answer forms: behind the guard, so with session, own origin and CSRF token. They change no file."""
LINKS = LiveLinks({page.name: page.path for page in PAGES})
KEPT_PAGES = 256
SAME_SECONDS = 2
"""A page that nothing has changed is written anew after so long, for the times on it."""
STALE_SECONDS = 5.0
"""How old a page may be that is given while a new one is written."""
ASSET_FILES = (
    *("app.css", "parts.css", "pages.css", "icon.svg", "theme.js", "app.js", "charts.js", "more_charts.js"),
    *("what_if.js", "pieces.js", CHART_LIBRARY),
)
"""Every file that is served: nothing else can be asked for."""
MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


def build_app(settings: Settings, port: int, *, ending: Callable[[], bool] = lambda: False) -> RequestGuard:
    """The application behind its guard; `port` is the one it is reached at, `ending` whether its server is."""
    site = ProjectSite(settings)
    shown = Shown(site)
    routes: list[BaseRoute] = [Route(page.path, shown.endpoint(page), name=page.name) for page in PAGES]
    routes += [live_route(site, ending), Route(ASSETS + "{name}", asset), *POSTS, *ACTIONS, *API_ROUTES]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _defect})
    app.state.site, app.state.shown = site, shown
    return RequestGuard(app, settings, port)


@dataclass(frozen=True)
class StoredPage:
    """A page as it was last written."""

    state: object
    written_at: float
    response: Response


class Shown:
    """Pages as they were last written, by what they were written from.

    A page that has changed since is written anew beside the request, which gets the one before: with many browsers
    nobody waits. The page knows its version and asks again. Only one that is older than a moment is waited for.
    """

    def __init__(self, site: ProjectSite) -> None:
        self._site = site
        self._kept: OrderedDict[object, StoredPage] = OrderedDict()
        self._lock = threading.Lock()
        self._writing: dict[object, threading.Lock] = {}
        self._writers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="pages")

    def forget(self, key: str) -> None:
        """Write a project's pages and those of all anew at the next request: somebody has acted and wants to see it."""
        with self._lock:
            for page in [item for item in self._kept if isinstance(item, tuple) and item[2] in (key, "")]:
                del self._kept[page]

    def endpoint(self, page: WebPage) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler that answers requests for one page."""

        async def answer(request: Request) -> Response:
            return await run_in_threadpool(self._answer, page, request)

        return answer

    def _answer(self, page: WebPage, request: Request) -> Response:
        params = {key: str(value) for key, value in request.path_params.items()}
        query = tuple(request.query_params.multi_items())
        reader = None
        if page.of_project:
            reader = self._site.reader(params.pop("project"))
            if reader is None:
                return error_page(404, "No such project", "It may have been moved or removed; go back to the list.")
        role = request.state.role
        key = (role, page.name, reader.found.key if reader else "", tuple(params.items()), query)
        context = Context(
            site=self._site, links=LINKS, now=time.time(), params=params, query=query, reader=reader,
            csrf=csrf_of(self._site.settings.token_of(role)), acts=may_act(self._site.settings, role),
        )  # fmt: skip
        with self._lock:
            stored, turn = self._kept.get(key), self._writing.setdefault(key, threading.Lock())
        if stored is not None and stored.state == self._state(reader):
            return stored.response
        if stored is not None and time.monotonic() - stored.written_at < STALE_SECONDS:
            if not turn.locked():
                self._writers.submit(self._renew, key, turn, page, context)
            return stored.response
        return self._renew(key, turn, page, context)

    def _state(self, reader: ProjectReader | None) -> object:
        """Return the key of a page's content; another key needs another page."""
        return self._site.version(reader), int(time.time() / SAME_SECONDS)

    def _renew(self, key: object, turn: threading.Lock, page: WebPage, context: Context) -> Response:
        """The page, written by one thread at a time."""
        with turn:
            state = self._state(context.reader)
            with self._lock:
                stored = self._kept.get(key)
            if stored is not None and stored.state == state:
                return stored.response
            response = self._write(page, context)
            with self._lock:
                self._kept.pop(key, None)
                self._kept[key] = StoredPage(state, time.monotonic(), response)
                while len(self._kept) > KEPT_PAGES:
                    old, _ = self._kept.popitem(last=False)
                    self._writing.pop(old, None)
            return response

    def _write(self, page: WebPage, context: Context) -> Response:
        version = self._site.version(context.reader)  # before what it shows is read: never newer than that
        try:
            view = page.build(context)
        except NoSuchPageError as error:
            return error_page(404, "Not found", str(error))
        except CharterError as error:
            return error_page(500, "This page could not be made", str(error))
        text = render_page(page, context, view, pages=PAGES, version=version)
        return HTMLResponse(text, status_code=view.status)


async def asset(request: Request) -> Response:
    """A style or a script, by a name of the list."""
    name = request.path_params["name"]
    if name not in ASSET_FILES:
        raise HTTPException(404)
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(asset_bytes(name), media_type=media_type, headers={"cache-control": "no-cache"})


def asset_bytes(name: str) -> bytes:
    """The content of an asset."""
    if name == CHART_LIBRARY:
        return files(CHARTS).joinpath(name).read_bytes()
    return files("charter.dashboard").joinpath("static", name).read_bytes()


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


MARK = "charter-export.txt"
_WORDS = "Pages written by `charter ui --export`; the next export into this directory replaces them.\n"


def export_pages(settings: Settings, out: Path) -> int:
    """Write every page of every project into a directory; returns how many. An earlier export there is replaced."""
    check_place(out)
    site, links = ProjectSite(settings), StaticLinks()
    readers = site.readers()
    if not readers:
        places = ", ".join(str(root) for root in settings.roots)
        raise UsageError(f"there is no project below {places}; `charter init --template cai-tiny DIR` writes one")
    durable.make_dir(out / "assets")
    durable.write_file(out / MARK, _WORDS)
    for name in ASSET_FILES:
        durable.write_file(out / links.asset(name), asset_bytes(name))
    written: set[str] = set()
    for name, text in pages_of(site, readers, time.time()):
        durable.write_file(out / name, text)
        written.add(name)
    for old in out.glob("*.html"):
        if old.name not in written:
            old.unlink()
    return len(written)


def check_place(out: Path) -> None:
    """UsageError for a directory that holds something else than an earlier export."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--export {out}: is a file; give a directory")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise UsageError(f"--export {out}: holds other files; give an empty or a new directory")


def pages_of(site: ProjectSite, readers: tuple[ProjectReader, ...], now: float) -> Iterator[tuple[str, str]]:
    """File name and text of every page."""
    links = StaticLinks()
    for page in PAGES:
        if not page.of_project:
            context = Context(site=site, links=links, now=now)
            yield links.page(page.name), render_page(page, context, page.build(context), pages=PAGES)
            continue
        for reader in readers:
            for params in page.each(reader.snapshot()):
                name = links.page(page.name, query=None, project=reader.found.key, **params)
                context = Context(site=site, links=links, now=now, params=params, reader=reader)
                yield name, render_page(page, context, page.build(context), pages=PAGES)


def serve(settings: Settings, tell: Callable[[str], None]) -> None:
    """Serve the dashboard until the process is asked to end; `tell` gets the address with its token, once."""
    check_settings(settings)
    try:
        import uvicorn
    except ImportError as error:
        raise missing_extra(error) from error
    with open_socket(settings) as listening:
        port = listening.getsockname()[1]
        stopping: list[uvicorn.Server] = []
        config = uvicorn.Config(
            build_app(settings, port, ending=lambda: any(one.should_exit for one in stopping)),
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            h11_max_incomplete_event_size=32 * 1024,
            limit_concurrency=512,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            ssl_certfile=str(settings.certificate) if settings.certificate else None,
            ssl_keyfile=str(settings.key) if settings.key else None,
        )
        server = uvicorn.Server(config)
        stopping.append(server)
        tell(address(settings, port))
        server.run(sockets=[listening])


def address(settings: Settings, port: int) -> str:
    """The address with the token that lets its reader in."""
    host = settings.names[0] if settings.names else settings.host
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"{settings.scheme}://{shown}:{port}/?token={quote(settings.token, safe='')}"


def open_socket(settings: Settings) -> socket.socket:
    """A listening socket at the asked address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {why}; give another --port (0 takes a free one)"
        ) from None
    return listener
