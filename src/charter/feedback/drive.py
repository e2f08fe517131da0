"""Drives the making of batches: hands each batch's questions to whoever answers, and the answers back.

One thread: models of this process compute in it; endpoints answer from theirs, so that many batches can be under way.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol, TypeVar

from charter.feedback.asks import Ask, Reply

Made = TypeVar("Made")
Making = Generator[Sequence[Ask], list[Reply], Made]
"""Yields questions, is sent the replies in their order, returns what was made of them."""

WAIT_SECONDS = 0.5


class Answerer(Protocol):
    """Whoever answers the questions of a stage."""

    @property
    def batches_at_once(self) -> int:
        """How many batches may be under way; 1 where everything is computed in this process."""

    def submit(self, asks: Sequence[Ask]) -> "Future[list[Reply]]":
        """The replies, in the order of the questions; already there for a model of this process.

        The future raises DataError or StageError when they cannot be had.
        """

    def close(self) -> None:
        """Give back connections and threads; what was asked and not yet answered is stored as unknown."""


def answered(making: "Making[Made]", answerer: Answerer) -> Made:
    """One making from beginning to end."""
    for _, made in drive([(0, making)], answerer):
        return made
    raise AssertionError("a making ends with what it made")


def drive(
    makings: Iterable[tuple[int, "Making[Made]"]],
    answerer: Answerer,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    tell: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Made]]:
    """Every making's number and result as it is ready, in any order.

    `tell` is called at every sign of progress. Once `should_stop` says so, no making is begun and no new question is
    asked: what is answered already is finished if it can be, the rest is given up (stored answers are found again).
    """
    waiting = iter(makings)
    under_way: dict[Future[list[Reply]], tuple[int, Making[Made]]] = {}
    while not should_stop():
        while len(under_way) < answerer.batches_at_once and not should_stop():
            begun = next(waiting, None)
            if begun is None:
                break
            yield from _advance(*begun, None, answerer, under_way)
            tell()
        if not under_way:
            return
        ready, _ = wait(under_way, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        for future in [] if should_stop() else ready:
            number, making = under_way.pop(future)
            tell()
            yield from _advance(number, making, future.result(), answerer, under_way)
    for future, (number, making) in under_way.items():
        if future.done():
            yield from _ended(number, making, future.result())


def _ended(number: int, making: "Making[Made]", replies: list[Reply]) -> Iterator[tuple[int, Made]]:
    """The result, where these replies were the last that were wanted."""
    try:
        making.send(replies)
    except StopIteration as end:
        yield number, end.value


def _advance(
    number: int,
    making: "Making[Made]",
    replies: list[Reply] | None,
    answerer: Answerer,
    under_way: dict["Future[list[Reply]]", tuple[int, "Making[Made]"]],
) -> Iterator[tuple[int, Made]]:
    try:
        asks = next(making) if replies is None else making.send(replies)
    except StopIteration as end:
        yield number, end.value
    else:
        under_way[answerer.submit(asks)] = (number, making)
