"""Puts requests that arrive together into one batch, and computes batch after batch in one thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from charter.inference.serve.completion import Completion
from charter.inference.serve.engine import Encoded, ServedModel
from charter.inference.serve.request import RequestError

WINDOW_SECONDS = 0.003
"""How long a first request waits for others: a tenth of a token's time on one core (a model of 100 million weights)."""


class _NotWanted(Exception):
    """Nobody waits for a batch any more, or the server ends, while it is computed."""


class Batcher:
    """The queue before one model. `ask` is for one event loop; `start` and `close` once each."""

    def __init__(self, model: ServedModel, *, batch: int, waiting: int) -> None:
        self._model, self._most_at_once, self._most_waiting = model, batch, waiting
        self._waiting: deque[tuple[Encoded, asyncio.Future[Completion]]] = deque()
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

    async def ask(self, item: Encoded) -> Completion:
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

    def _next_batch(self) -> "list[tuple[Encoded, asyncio.Future[Completion]]]":
        """The first that waits, and others that are drawn in the same way; who has gone away is left out."""
        waiting = [(item, future) for item, future in self._waiting if not future.done()]
        alike = [pair for pair in waiting if pair[0].settings == waiting[0][0].settings] if waiting else []
        batch = alike[: self._most_at_once]
        taken = {id(future) for _, future in batch}
        self._waiting = deque(pair for pair in waiting if id(pair[1]) not in taken)
        return batch

    async def _compute(self, batch: "list[tuple[Encoded, asyncio.Future[Completion]]]") -> None:
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

    def _check_stop(self, batch: "list[tuple[Encoded, asyncio.Future[Completion]]]") -> Callable[[], None]:
        """Ends a batch when the server stops, or when nobody waits for it any more."""

        def check() -> None:
            if self._is_stopping.is_set() or all(future.done() for _, future in batch):
                raise _NotWanted

        return check


def _fail(future: "asyncio.Future[Completion]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
