"""Live pages: a stream per browser that says when a project has changed; the page then asks for itself again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from charter.dashboard.render import json_text
from charter.dashboard.site import Site

EVERY_SECONDS = 1.0
"""How often a stream looks; the readers themselves look less often when many ask."""
NAP_SECONDS = 0.25
"""How soon a stream ends when the server does."""
ALIVE_SECONDS = 15.0
MOST_STREAMS = 128


def live_route(site: Site, ending: Callable[[], bool]) -> Route:
    """`/live` (all projects) and `/live?project=KEY`; the streams end when the server is `ending`."""
    streams = Streams(site, ending)
    return Route("/live", streams.answer, methods=["GET"])


class Streams:
    """The open streams."""

    def __init__(self, site: Site, ending: Callable[[], bool]) -> None:
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
            told, said_at = "", time.monotonic()
            yield "retry: 2000\n\n"
            while not self._ending() and not await request.is_disconnected():
                version = await run_in_threadpool(self._version, key)
                if version != told:
                    told, said_at = version, time.monotonic()
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
