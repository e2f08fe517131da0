"""Answers of a served model: a batch of requests becomes one call of `generate`, watched token by token.

Legend: L answers not yet finished, V vocabulary, K alternatives.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from charter.artifacts.draws import draw_seed
from charter.inference.generate import SamplingSettings, generate
from charter.inference.serve.protocol import AnswerRequest, Completion, RequestError, ServedToken
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class EncodedRequest:
    """A request with its prompt as tokens, and everything that decides the draw."""

    wanted: AnswerRequest
    ids: tuple[int, ...]
    settings: SamplingSettings
    seed: int


class ServableModel:
    """A language model and how it is asked; not for several threads at once."""

    def __init__(self, language_model: LanguageModel, *, name: str, dtype: str = "fp32") -> None:
        self.name = name
        self._model, self._dtype = language_model, dtype
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
        settings = SamplingSettings(limit, wanted.min_new_tokens, wanted.temperature, wanted.top_p, self._dtype)
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
