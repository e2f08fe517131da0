"""Makings are handed their replies in order, as many at once as whoever answers can take, and given up on request."""

from concurrent.futures import Future

import pytest

from charter.feedback.records import answered, drive


class Later:
    """Answers only when a test says so."""

    def __init__(self, at_once):
        self.batches_at_once, self.futures = at_once, []

    def submit(self, asks):
        self.futures.append((Future(), list(asks)))
        return self.futures[-1][0]

    def confirm(self):
        """Nothing to look at."""

    def close(self):
        pass


class Now(Later):
    """Answers at once, as a model of this process does."""

    def __init__(self, at_once=1):
        super().__init__(at_once)

    def submit(self, asks):
        future = super().submit(asks)
        future.set_result([f"re {ask}" for ask in asks])
        return future


def making(name, rounds=2):
    heard = []
    for number in range(rounds):
        heard += yield [f"{name}{number}"]
    return heard


def test_replies_come_back_in_the_order_of_the_questions():
    assert answered(making("a"), Now()) == ["re a0", "re a1"]
    assert answered(making("b", rounds=0), Now()) == []


def test_one_at_a_time_is_finished_before_the_next_begins():
    answerer = Now()
    assert [number for number, _ in drive([(1, making("a")), (2, making("b"))], answerer)] == [1, 2]
    assert [asks for _, asks in answerer.futures] == [["a0"], ["a1"], ["b0"], ["b1"]]


def test_as_many_are_under_way_as_the_answerer_takes_and_no_more():
    answerer, begun = Later(2), []

    def noted():
        for name in "abc":
            begun.append(name)
            yield name, making(name, rounds=1)

    running = drive(noted(), answerer, tell=lambda: answer_last(answerer) if len(begun) == 2 else None)
    assert next(running) == ("b", ["re b0"])
    assert begun == ["a", "b"]


def answer_last(answerer):
    future, asks = answerer.futures[-1]
    if not future.done() and len(answerer.futures) == 2:
        future.set_result([f"re {ask}" for ask in asks])


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize(("rounds", "finished"), [(1, [("a", ["re a0"])]), (2, [])])
def test_a_stop_finishes_what_is_answered_and_asks_nothing_more(rounds, finished, at_once):
    answerer = Now(at_once)
    asked = [("a", making("a", rounds)), ("b", making("b", rounds))]
    assert list(drive(asked, answerer, should_stop=lambda: bool(answerer.futures))) == finished
    assert len(answerer.futures) == 1


def test_the_answerers_error_is_the_drives():
    answerer = Later(1)

    def fail():
        if answerer.futures and not answerer.futures[-1][0].done():
            answerer.futures[-1][0].set_exception(OSError("gone"))

    with pytest.raises(OSError, match="gone"):
        list(drive([(1, making("a"))], answerer, tell=fail))
