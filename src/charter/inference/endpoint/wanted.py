"""Requests of a pool that have no answer yet, and counts of its work so far."""

from asyncio import Task
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

from charter.inference.endpoint.call import CallReply, CallRequest, Usage


class Batch:
    """Requests that are answered together: one `submit`."""

    def __init__(
        self, requests: Sequence[CallRequest], future: "Future[list[CallReply]]", when_over: "Callable[[Batch], None]"
    ) -> None:
        self.requests = requests
        self.is_over = False
        self._future = future
        future.set_running_or_notify_cancel()
        self._when_over = when_over
        self._replies: list[CallReply | None] = [None] * len(requests)
        self._missing = len(requests)

    def put(self, index: int, reply: CallReply) -> None:
        """One answer; with the last of them the batch is over."""
        if self.is_over:
            return
        self._replies[index] = reply
        self._missing -= 1
        if self._missing == 0:
            self._end()
            self._future.set_result([reply for reply in self._replies if reply is not None])

    def fail(self, error: BaseException) -> None:
        """It cannot be answered."""
        if self.is_over:
            return
        self._end()
        self._future.set_exception(error)

    def cancel(self) -> None:
        """Nobody will answer it any more."""
        self.fail(CancelledError())

    def _end(self) -> None:
        self.is_over = True
        self._when_over(self)


class PendingQuestion:
    """One question, whoever waits for it: equal requests are asked once."""

    __slots__ = ("attempts", "is_answered", "owners", "request", "running", "troubles")

    def __init__(self, request: CallRequest) -> None:
        self.request = request
        self.attempts = 0
        """HTTP requests sent for it."""
        self.owners: list[tuple[Batch, int]] = []
        self.running: dict[Task[None], float] = {}
        """Requests under way, with the time each was sent."""
        self.is_answered = False
        self.troubles: Counter[str] = Counter()

    @property
    def is_of_use(self) -> bool:
        """Return True if somebody still waits for it."""
        return any(not batch.is_over for batch, _ in self.owners)

    def answer(self, reply: CallReply) -> None:
        """Hand the answer to all who wait."""
        self.is_answered = True
        for batch, index in self.owners:
            batch.put(index, reply)

    def fail(self, error: BaseException) -> None:
        """Tell all who wait that there is none."""
        for batch, _ in self.owners:
            batch.fail(error)


REMEMBERED_LATENCIES = 1024
"""The last so many describe the server as it is now; quantiles of 1,024 draws are within 1.4 % in rank (p95, 95 %)."""


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """Figures of a pool; of this process alone, where the ledger has those of all."""

    requests: int
    """HTTP requests sent."""
    answers: int
    """Questions answered by a server."""
    stored: int
    """Questions answered from the store, without a request."""
    retries: Mapping[str, int]
    """Further tries by cause."""
    invalid: int
    """Replies that were no valid answer."""
    hedges: int
    """Second requests for slow ones."""
    latency_p50_seconds: float | None
    latency_p95_seconds: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    micro_usd: int
    unpriced: int
    """Replies whose price is not known."""
    disputed: int
    """Replies that report more tokens than their requests allow."""
    highest_at_once: int


@dataclass(kw_only=True)
class Counts:
    """The same while it is counted."""

    requests: int = 0
    answers: int = 0
    stored: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    hedges: int = 0
    latencies: deque[float] = field(default_factory=deque)
    """Seconds of the last answers, in their order."""
    ordered_latencies: list[float] = field(default_factory=list)
    """The same, the shortest first: they are looked at far more often than one comes."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    micro_usd: int = 0
    unpriced: int = 0
    disputed: int = 0
    highest_at_once: int = 0

    def answered(self, seconds: float) -> None:
        """A question has its answer."""
        self.answers += 1
        if len(self.latencies) == REMEMBERED_LATENCIES:
            del self.ordered_latencies[bisect_left(self.ordered_latencies, self.latencies.popleft())]
        self.latencies.append(seconds)
        insort(self.ordered_latencies, seconds)

    def billed(self, usage: Usage, micro_usd: int | None) -> None:
        """A reply is billed, valid or not."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens
        self.micro_usd += micro_usd or 0
        self.unpriced += micro_usd is None

    def latency(self, share: float) -> float | None:
        """A quantile of the last latencies, in seconds."""
        ordered = self.ordered_latencies
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    def snapshot(self) -> PoolStats:
        """The figures now."""
        return PoolStats(
            requests=self.requests,
            answers=self.answers,
            stored=self.stored,
            retries=dict(self.retries),
            invalid=self.retries["invalid"],
            hedges=self.hedges,
            latency_p50_seconds=self.latency(0.5),
            latency_p95_seconds=self.latency(0.95),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            micro_usd=self.micro_usd,
            unpriced=self.unpriced,
            disputed=self.disputed,
            highest_at_once=self.highest_at_once,
        )
