"""The HTTP side: routes, who may ask, and how large a request may be.

A server on this machine alone is protected against web pages that a browser here has open: only JSON is taken (which
a page of another origin cannot send without asking first), and only under the names of this machine (so that no other
name can be pointed here). Any other address needs a token.
"""

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from charter.inference.endpoint.secrets import ApiKey
from charter.inference.serve.batcher import Batcher
from charter.inference.serve.engine import ServedModel
from charter.inference.serve.replies import chat_reply, error_reply, models_reply, text_reply
from charter.inference.serve.request import RequestError, read_request

LARGEST_BODY_BYTES = 4 * 2**20
"""Of a request; a context of a million characters in UTF-8."""
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(model: ServedModel, batcher: Batcher, *, token: ApiKey | None = None) -> web.Application:
    """The application; with a token every request but `/health` must carry it."""
    app = web.Application(client_max_size=LARGEST_BODY_BYTES, middlewares=[_errors, _guard(token)])

    async def health(_: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def models(_: web.Request) -> web.Response:
        return _json(models_reply(model.name, context_tokens=model.context_tokens))

    async def complete(request: web.Request) -> web.Response:
        is_chat = request.path.endswith("/chat/completions")
        if request.content_type != "application/json":
            raise RequestError("the Content-Type must be application/json", status=415)
        body = await request.read()
        completion = await batcher.ask(model.encode(read_request(body, is_chat=is_chat, model=model.name)))
        number = hashlib.sha256(body).hexdigest()[:24]
        reply = (chat_reply if is_chat else text_reply)(completion, model=model.name, number=number)
        return _json(reply)

    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_post("/v1/completions", complete)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error in the layout of the API, never a traceback."""
    try:
        return await handler(request)
    except RequestError as error:
        return _json(error_reply(error), status=error.status)
    except web.HTTPException as error:
        wrong = RequestError(error.reason, status=error.status)
        return _json(error_reply(wrong), status=error.status)


def _guard(token: ApiKey | None) -> Any:
    """Who may ask."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None and _host_name(request.headers.get("Host", "")) not in OWN_NAMES:
            raise RequestError(f"this server answers under {', '.join(OWN_NAMES)} only", status=403)
        if token is not None and request.path != "/health":
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), token.header()["Authorization"].encode()):
                raise RequestError("a valid `Authorization: Bearer TOKEN` is needed", status=401)
        return await handler(request)

    return guard


def _host_name(header: str) -> str:
    """The name in a Host header, without its port.

    >>> _host_name("127.0.0.1:8000"), _host_name("[::1]:80"), _host_name("localhost")
    ('127.0.0.1', '[::1]', 'localhost')
    """
    end = header.find("]")
    return header[: end + 1] if end >= 0 else header.partition(":")[0].lower()


def _json(value: dict[str, Any], *, status: int = 200) -> web.Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return web.Response(text=text, status=status, content_type="application/json")
