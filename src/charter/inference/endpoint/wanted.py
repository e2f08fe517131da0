"""Requests of a pool that have no answer yet."""

from asyncio import Task
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future

from charter.inference.endpoint.call import CallReply, CallRequest


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
