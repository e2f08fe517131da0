"""Pieces of a page that a child process works out: put in at once where they are known, else asked for by script.

A request waits for the child as long as its browser does."""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from charter.dashboard.render import Context, environment
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot
from charter.dashboard.work.pool import Workers

Json = Mapping[str, Any]
LOOK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Messages of a process within the time that a request may take."""

    found: Json | None = None
    """The answer: `found` or `error`; None while it works."""
    progress: Json
    gone: bool = False
    """The browser no longer waits."""


async def hear(
    request: Request,
    workers: Workers,
    job: str,
    arguments: Json,
    state: Hashable,
    *,
    hold_seconds: float,
    linger_seconds: float = 0.0,
) -> Heard:
    """Ask, and wait until there is an answer, the time is over or the browser has gone.

    Work that nobody waits for `linger_seconds` after this is ended: cancelling a request cancels its work.
    """
    job_request = workers.ask(job, arguments, state)
    loop, gone = asyncio.get_running_loop(), False
    until = loop.time() + hold_seconds
    try:
        while not job_request.answer.done() and loop.time() < until:
            if gone := await request.is_disconnected():
                break
            await asyncio.sleep(min(LOOK_SECONDS, 0.02 + (until - loop.time()) / 100))
        done = job_request.answer.done() and not job_request.answer.cancelled()
        return Heard(
            found=job_request.answer.result() if done else None, progress=dict(job_request.progress), gone=gone
        )
    finally:
        workers.leave(job_request, linger_seconds=linger_seconds)


HOLD_SECONDS = 1.0
"""How long one request waits before it says how far the work is."""
LINGER_SECONDS = 20.0
"""How long work goes on for a page that may ask again."""
EXPORT_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class PieceJob:
    """Job of a child process for one piece of a page."""

    job: str
    arguments: Json
    state: Hashable
    template: str
    more: Json = field(default_factory=dict)
    """What the template gets beside the answer."""
    charts: Callable[[Json], Json] = lambda _: {}
    """What of the answer charts draw, by the names of the page's sources."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece as the page holds it."""

    state: str
    """`ready`, `loading` or `error`."""
    html: Markup
    address: str
    """Where a script asks for it again; empty when there is no need."""
    charts: Json = field(default_factory=dict)


def piece(context: Context, question: PieceJob, address: str) -> Piece:
    """The piece as far as it is known; an export waits for it, and so does a reader without scripts (`wait`)."""
    request = (question.job, question.arguments, question.state)
    waits = context.links.static or context.asked("wait") != ""
    work = context.site.work
    answer = work.wait(*request, seconds=EXPORT_SECONDS) if waits else work.known(*request)
    drawn = _made(question, answer, {})
    return Piece(
        state=drawn["state"],
        html=Markup(drawn["html"]),  # of our own template, which has escaped what it was given
        address=address if drawn["state"] == "loading" else "",
        charts=drawn.get("charts") or {},
    )


async def answer_piece(request: Request, question: PieceJob) -> Response:
    """The piece for a script: `loading` with how far it is, until it is there."""
    site: ProjectSite = request.app.state.site
    heard = await hear(
        request,
        site.work,
        question.job,
        question.arguments,
        question.state,
        hold_seconds=HOLD_SECONDS,
        linger_seconds=LINGER_SECONDS,
    )
    return JSONResponse(_made(question, heard.found, heard.progress))


def piece_route(path: str, job_of: Callable[[ProjectSite, Request], PieceJob | None], gone: str) -> Route:
    """`GET` of a piece; `gone` is said where there is nothing to make it from."""

    async def answer(request: Request) -> Response:
        job = job_of(request.app.state.site, request)
        if job is None:
            return JSONResponse({"state": "error", "html": f"<p>{gone}</p>"}, 404)
        return await answer_piece(request, job)

    return Route(path, answer, methods=["GET"])


def project_piece(path: str, job_of: Callable[[Snapshot], PieceJob]) -> Route:
    """`GET` of a piece of a page that belongs to a project."""

    def of_project(site: ProjectSite, request: Request) -> PieceJob | None:
        reader = site.reader(request.path_params["project"])
        return None if reader is None else job_of(reader.snapshot())

    return piece_route(path, of_project, "There is no such project any more.")


def _made(question: PieceJob, found: Json | None, told: Json) -> dict[str, Any]:
    state = "loading" if found is None else "error" if "error" in found else "ready"
    result = found["found"] if found is not None and state == "ready" else None
    html = (
        environment()
        .get_template(question.template)
        .render(
            state=state,
            result=result,
            told=told,
            error="" if found is None else found.get("error", ""),
            **question.more,
        )
    )
    return {"state": state, "html": html, "charts": question.charts(result) if result is not None else None}
