"""The process that serves: loads the model, listens, says where, and ends cleanly on SIGTERM or Ctrl-C.

    python -m charter.inference.serve.server OPTIONS

OPTIONS is the JSON of `ServeOptions`. A process of its own, because the command line never imports torch. A batch of
requests becomes one call of `generate`, watched token by token.

Legend: L answers not yet finished, V vocabulary, K alternatives.
"""

import asyncio
import hashlib
import hmac
import json
import signal
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from charter.artifacts.draws import draw_seed
from charter.errors import CharterError, DataError, UsageError
from charter.inference.endpoint.transport import ApiKey, read_key
from charter.inference.generate import SamplingSettings, generate
from charter.inference.serve.protocol import (
    AnswerRequest,
    Completion,
    RequestError,
    ServedToken,
    ServeOptions,
    chat_reply,
    check_address,
    error_reply,
    models_reply,
    read_request,
    text_reply,
)
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel, load_language_model
from charter.models.preference import HEAD_FILE
from charter.models.runtime import configure


@dataclass(frozen=True, kw_only=True)
class EncodedRequest:
    """A request with its prompt as tokens, and everything that decides the draw."""

    wanted: AnswerRequest
    ids: tuple[int, ...]
    settings: SamplingSettings
    seed: int


class ServableModel:
    """A language model and how it is asked; not for several threads at once."""

    def __init__(self, language_model: LanguageModel, *, name: str) -> None:
        self.name = name
        self._model = language_model
        limit = getattr(language_model.model.config, "max_position_embeddings", None)
        self.context_tokens = int(limit) if limit is not None else 2**31

    def encode(self, wanted: AnswerRequest) -> EncodedRequest:
        """The request as tokens; refused where it does not fit the model's context."""
        ids, room = self._ids(wanted), self.context_tokens
        limit = room - len(ids) if wanted.max_new_tokens is None else wanted.max_new_tokens
        if not ids or limit < 1 or len(ids) + limit > room:
            raise RequestError(
                f"the model's context has {room} tokens; the prompt has {len(ids)}, and {max(limit, 1)} more are "
                "asked for: shorten the prompt or lower max_tokens",
                parameter="messages" if wanted.is_chat else "prompt",
            )
        if wanted.min_new_tokens > limit:
            raise RequestError(f"is above max_tokens, {limit}", parameter="min_tokens")
        settings = SamplingSettings(limit, wanted.min_new_tokens, wanted.temperature, wanted.top_p)
        return EncodedRequest(wanted=wanted, ids=tuple(ids), settings=settings, seed=_seed(wanted, ids))

    def _ids(self, wanted: AnswerRequest) -> list[int]:
        tokenizer = self._model.tokenizer
        ids = encode_prompt(tokenizer, wanted.turns) if wanted.is_chat else []
        if text := wanted.prefill if wanted.is_chat else wanted.prompt:
            ids = ids + tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def answer(self, batch: Sequence[EncodedRequest], *, tell: Callable[[], None] = lambda: None) -> list[Completion]:
        """The answers to requests of equal settings; `tell` is called at every token and may stop it by raising."""
        watch = _Watch(self._model, batch)
        generate(
            self._model,
            [list(item.ids) for item in batch],
            seeds=[item.seed for item in batch],
            settings=batch[0].settings,
            tell=tell,
            watch=watch,
        )
        return [watch.completion(row) for row in range(len(batch))]


def _seed(wanted: AnswerRequest, ids: Sequence[int]) -> int:
    """Equal requests draw alike: without a seed of its own a request is its own seed."""
    if wanted.seed is not None:
        return wanted.seed % 2**63
    return draw_seed(0, "served answer", *ids, str(wanted.temperature), str(wanted.top_p))


@dataclass
class _Row:
    """One answer as it grows."""

    ids: list[int] = field(default_factory=list)
    tokens: list[ServedToken] = field(default_factory=list)
    text: str = ""
    is_ended: bool = False


class _Watch:
    """Takes down every token of a batch with its log-probabilities, and ends answers at their stop sequences."""

    def __init__(self, language_model: LanguageModel, batch: Sequence[EncodedRequest]) -> None:
        self._model, self._batch = language_model, batch
        self._rows = [_Row() for _ in batch]
        wanted = [item.wanted.top_log_probabilities for item in batch]
        self._alternatives = max((count for count in wanted if count is not None), default=None)

    def __call__(self, row_L: Tensor, logits_LV: Tensor, token_L: Tensor) -> Tensor:
        """Take down one step; which answers have met a stop sequence."""
        own, top = self._log_probabilities(logits_LV, token_L)
        stopped = []
        for place, (index, token) in enumerate(zip(row_L.tolist(), token_L.tolist(), strict=True)):
            row = self._rows[index]
            if not row.is_ended:
                self._add(index, token, own[place], top[place])
            stopped.append(row.is_ended)
        return torch.tensor(stopped, device=token_L.device)

    def _log_probabilities(
        self, logits_LV: Tensor, token_L: Tensor
    ) -> tuple[list[float], list[tuple[list[int], list[float]]]]:
        """Of the chosen tokens and of the likeliest ones, at temperature 1 as OpenAI and vLLM give them."""
        if self._alternatives is None:
            return [0.0] * len(token_L), [([], [])] * len(token_L)
        all_LV = torch.log_softmax(logits_LV.float(), -1)
        own_L = all_LV.gather(1, token_L[:, None]).squeeze(1)
        value_LK, token_LK = all_LV.topk(min(self._alternatives, all_LV.shape[1]), dim=-1)
        return own_L.tolist(), list(zip(token_LK.tolist(), value_LK.tolist(), strict=True))

    def _add(self, index: int, token: int, own: float, top: tuple[list[int], list[float]]) -> None:
        row, wanted = self._rows[index], self._batch[index].wanted
        row.ids.append(token)
        if wanted.top_log_probabilities is not None:
            pairs = list(zip(*top, strict=True))[: wanted.top_log_probabilities]
            row.tokens.append(
                ServedToken(
                    text=self._text_of(token),
                    log_probability=own,
                    top=tuple((self._text_of(other), value) for other, value in pairs),
                )
            )
        row.is_ended = token == self._model.end_id
        if not row.is_ended and wanted.stop:
            row.text = self._text(row.ids)
            row.is_ended = any(item in row.text for item in wanted.stop)

    def completion(self, index: int) -> Completion:
        """Return the completion of an answer as it ended."""
        row, item = self._rows[index], self._batch[index]
        text = self._text(row.ids)
        ends = [place for stop in item.wanted.stop if (place := text.find(stop)) >= 0]
        return Completion(
            text=text[: min(ends, default=len(text))],
            tokens=tuple(row.tokens),
            finish_reason="stop" if row.is_ended else "length",
            prompt_tokens=len(item.ids),
            completion_tokens=len(row.ids),
        )

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._model.tokenizer.decode(ids, skip_special_tokens=True))

    def _text_of(self, token: int) -> str:
        return str(self._model.tokenizer.decode([token]))


WINDOW_SECONDS = 0.003
"""How long a first request waits for others: a tenth of a token's time on one core (a model of 100 million weights)."""


class _NotWanted(Exception):
    """Nobody waits for a batch any more, or the server ends, while it is computed."""


class Batcher:
    """The queue before one model. `ask` is for one event loop; `start` and `close` once each."""

    def __init__(self, model: ServableModel, *, batch: int, waiting: int) -> None:
        self._model, self._most_at_once, self._most_waiting = model, batch, waiting
        self._waiting: deque[tuple[EncodedRequest, asyncio.Future[Completion]]] = deque()
        self._arrived = asyncio.Event()
        self._is_stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to compute, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End at the next token; whoever still waits is told so."""
        self._is_stopping.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, future in self._waiting:
            _fail(future, RequestError("the server is stopping", status=503))
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    async def ask(self, item: EncodedRequest) -> Completion:
        """The answer to one request."""
        if self._is_stopping.is_set():
            raise RequestError("the server is stopping", status=503)
        if len(self._waiting) >= self._most_waiting:
            raise RequestError(f"{self._most_waiting} requests are waiting already; try again", status=429)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._arrived.set()
        return await future

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if len(self._waiting) < self._most_at_once > 1:
                await asyncio.sleep(WINDOW_SECONDS)
            batch = self._next_batch()
            if not self._waiting:
                self._arrived.clear()
            if batch:
                await self._compute(batch)

    def _next_batch(self) -> "list[tuple[EncodedRequest, asyncio.Future[Completion]]]":
        """The first that waits, and others that are drawn in the same way; who has gone away is left out."""
        waiting = [(item, future) for item, future in self._waiting if not future.done()]
        alike = [pair for pair in waiting if pair[0].settings == waiting[0][0].settings] if waiting else []
        batch = alike[: self._most_at_once]
        batched = {id(future) for _, future in batch}
        self._waiting = deque(pair for pair in waiting if id(pair[1]) not in batched)
        return batch

    async def _compute(self, batch: "list[tuple[EncodedRequest, asyncio.Future[Completion]]]") -> None:
        items, tell = [item for item, _ in batch], self._check_stop(batch)
        try:
            answers = await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._model.answer(items, tell=tell)
            )
        except (_NotWanted, asyncio.CancelledError) as error:
            for _, future in batch:
                _fail(future, RequestError("the server is stopping", status=503))
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        except Exception as error:
            for _, future in batch:
                _fail(future, RequestError(f"the model failed: {type(error).__name__}: {error}", status=500))
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def _check_stop(self, batch: "list[tuple[EncodedRequest, asyncio.Future[Completion]]]") -> Callable[[], None]:
        """Ends a batch when the server stops, or when nobody waits for it any more."""

        def check() -> None:
            if self._is_stopping.is_set() or all(future.done() for _, future in batch):
                raise _NotWanted

        return check


def _fail(future: "asyncio.Future[Completion]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


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
