"""The process that serves: loads the model, listens, says where, and ends cleanly on SIGTERM or Ctrl-C.

    python -m charter.inference.serve.server OPTIONS

OPTIONS is the JSON of `ServeOptions`. A process of its own, because the command line never imports torch.
"""

import asyncio
import hashlib
import hmac
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers.utils.logging import disable_progress_bar

from charter.errors import CharterError, DataError, UsageError
from charter.inference.endpoint.secrets import ApiKey, read_key
from charter.inference.serve.engine import Batcher, ServableModel
from charter.inference.serve.options import ServeOptions, check_address
from charter.inference.serve.protocol import (
    RequestError,
    chat_reply,
    error_reply,
    models_reply,
    read_request,
    text_reply,
)
from charter.models.language_model import load_language_model
from charter.models.preference import HEAD_FILE
from charter.models.runtime import configure

LARGEST_BODY_BYTES = 4 * 2**20
"""Of a request; a context of a million characters in UTF-8."""
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(model: ServableModel, batcher: Batcher, *, token: ApiKey | None = None) -> web.Application:
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
    """Guard the server by an API key, where there is one."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is None and _host_name(request.headers.get("Host", "")) not in OWN_NAMES:
            raise RequestError(f"this server answers under {', '.join(OWN_NAMES)} only", status=403)
        if token is not None and request.path != "/health":
            authorization = request.headers.get("Authorization", "")
            if not hmac.compare_digest(authorization.encode(), token.header()["Authorization"].encode()):
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


LAST_SECONDS = 5.0
"""How long connections may take to end once the server stops."""


def serve(options: ServeOptions) -> None:
    """Serve a model until SIGTERM or Ctrl-C; the address is printed once it answers."""
    check_address(options)
    directory = Path(options.directory)
    if (directory / HEAD_FILE).exists():
        raise DataError(f"{directory} is a preference model, which gives scores, not text; serve a language model")
    device = configure({"threads": options.threads, "device": options.device})
    disable_progress_bar()
    language_model = load_language_model(directory)
    language_model.model.to(device).eval()
    asyncio.run(_serve(ServableModel(language_model, name=options.name or directory.resolve().name), options))


async def _serve(model: ServableModel, options: ServeOptions) -> None:
    batcher, stop = Batcher(model, batch=options.batch, waiting=options.waiting), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    token = None if options.token is None else read_key(options.token, of="this server")
    app = make_app(model, batcher, token=token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_SECONDS, handler_cancellation=True)
    await runner.setup()
    try:
        batcher.start()
        await _listen(runner, options)
        host, port = runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"Serving {model.name} at http://{shown}:{port}/v1", flush=True)
        await stop.wait()
    finally:
        await batcher.close()
        await runner.cleanup()


async def _listen(runner: web.AppRunner, options: ServeOptions) -> None:
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}\n"
            "  give another --port (0 takes any that is free) or --host"
        ) from None


def main() -> None:
    """Serve as the only argument says; errors end as they do on the command line."""
    try:
        serve(ServeOptions.from_json(sys.argv[1]))
    except CharterError as error:
        print(f"error[{error.label}]: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
