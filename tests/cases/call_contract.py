"""What the store of calls promises, on any database. A test module gives the fixture `where` and imports all of it."""

import threading

import pytest
from call_checks import checked_totals, unsettled

from charter.ledger.call import CallSums
from charter.ledger.calls import CallBooks, CallStore, NewCall, Settlement

SCOPE = dict(run="demo", stage="label", fingerprint="f" * 64)


@pytest.fixture
def store(where):
    with CallStore.open(where, **SCOPE) as opened:
        yield opened


def call(number, **changed):
    """A call that costs 100 micro-USD at most."""
    values = dict(call_id=f"call-{number}", key=f"key-{number}", model="m", endpoint="http://a/v1", attempt=1)
    return NewCall(**{**values, "at": 1000.0 + number, "most_micro_usd": 100, **changed})


def answered(number, **changed):
    """Its answer, which cost 40."""
    values = dict(call_id=f"call-{number}", outcome="answered", at=2000.0 + number, answer=f'{{"text": "{number}"}}')
    money = dict(prompt_tokens=30, cached_tokens=20, completion_tokens=5, micro_usd=40)
    return Settlement(**{**values, **money, **changed})


def test_an_answer_comes_back_with_its_money(store, where):
    store.intend([call(1), call(2)])
    store.settle([answered(1)])
    store.close()
    with CallStore.open(where, **SCOPE) as again:
        assert again.answers(["key-1", "key-2", "key-3"]) == {"key-1": '{"text": "1"}'}
        assert [found.call_id for found in unsettled(again)] == ["call-2"]
        assert again.totals() == checked_totals(again)
        assert again.totals().sums == CallSums(
            requests=2,
            answered=1,
            unknown=1,
            prompt_tokens=30,
            cached_tokens=20,
            completion_tokens=5,
            settled_micro_usd=40,
            unknown_micro_usd=100,
        )


def test_a_second_answer_is_billed_and_never_replaces_the_first(store):
    store.intend([call(1), call(2, key="key-1", attempt=2)])
    store.settle([answered(1)])
    store.settle([answered(2, answer='{"text": "another"}')])
    assert store.answers(["key-1"]) == {"key-1": '{"text": "1"}'}
    assert store.totals().settled_micro_usd == 80


def test_writing_twice_counts_once(store):
    for _ in range(2):
        store.intend([call(1)])
        store.settle([answered(1)])
    store.settle([answered(1, micro_usd=9999, answer="{}")])
    assert store.totals().sums.requests == 1
    assert store.totals().settled_micro_usd == 40
    assert store.answers(["key-1"]) == {"key-1": '{"text": "1"}'}


def test_a_refusal_costs_nothing_and_an_unknown_call_is_bounded(store):
    store.intend([call(1), call(2), call(3, most_micro_usd=None), call(4)])
    store.settle([Settlement(call_id="call-1", outcome="refused", at=1.0, note="429")])
    store.settle([Settlement(call_id="call-2", outcome="unknown", at=1.0, note="timed out")])
    store.settle([answered(4, micro_usd=None)])
    sums = store.totals().sums
    assert (sums.refused, sums.unknown, sums.unpriced) == (1, 2, 2)
    assert (sums.settled_micro_usd, sums.unknown_micro_usd) == (0, 100)
    assert [found.call_id for found in unsettled(store)] == ["call-3"]
    assert store.totals() == checked_totals(store)


def test_the_last_correction_counts_and_nothing_before_it(store, where):
    store.intend([call(1), call(2)])
    store.settle([answered(1), Settlement(call_id="call-2", outcome="unknown", at=1.0, note="timed out")])
    for micro_usd in (70, 65):
        with CallBooks.open(where) as books:
            books.correct(
                [
                    (scope, found, Settlement(call_id=found.call_id, outcome="billed", at=3000.0, micro_usd=micro_usd))
                    for scope, found in list(books.calls(run=SCOPE["run"]))
                ]
            )
        sums = store.totals().sums
        assert (sums.requests, sums.answered, sums.unknown) == (2, 2, 0)
        assert (sums.settled_micro_usd, sums.unknown_micro_usd) == (2 * micro_usd, 0)
        assert store.totals() == checked_totals(store)
    assert store.answers(["key-1"]) == {"key-1": '{"text": "1"}'}


def test_totals_are_kept_by_server_and_model(store):
    store.intend([call(1), call(2, endpoint="http://b/v1"), call(3, model="n")])
    store.settle([answered(number) for number in (1, 2, 3)])
    routes = store.totals().routes
    assert [(route.endpoint, route.model) for route in routes] == [
        ("http://a/v1", "m"),
        ("http://a/v1", "n"),
        ("http://b/v1", "m"),
    ]
    assert sum(route.sums.settled_micro_usd for route in routes) == store.totals().settled_micro_usd == 120
    assert (routes[0].first_at, routes[0].last_at) == (1001.0, 2001.0)


def test_another_stage_or_fingerprint_has_answers_of_its_own(store, where):
    store.intend([call(1)])
    store.settle([answered(1)])
    for other in ({"stage": "critique"}, {"fingerprint": "0" * 64}):
        with CallStore.open(where, **{**SCOPE, **other}) as apart:
            assert apart.answers(["key-1"]) == {}
            assert apart.totals().sums == CallSums()


def test_text_of_every_kind_survives(store):
    texts = {
        f"key-{index}": text
        for index, text in enumerate(['"é漢😀"', '"\\u0000\\ud800"', '"%s ? :a %(b)s"', '"\'; --"'])
    }
    store.intend([call(index, key=key) for index, key in enumerate(texts)])
    store.settle([answered(index, answer=text, note=text) for index, text in enumerate(texts.values())])
    assert store.answers(list(texts)) == texts
    assert store.totals() == checked_totals(store)


def test_more_questions_than_one_statement_takes(store):
    store.intend([call(number) for number in range(1300)])
    store.settle([answered(number) for number in range(1300)])
    assert len(store.answers([f"key-{number}" for number in range(1300)])) == 1300


def test_threads_share_a_store(store):
    def work(first):
        for number in range(first, first + 20):
            store.intend([call(number)])
            store.settle([answered(number)])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 80, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checked_totals(store).sums.answered == 80


def test_a_changed_answer_is_forgotten_and_its_money_stays(store):
    store.intend([call(1)])
    store.settle([answered(1)])
    change(store, 'UPDATE call_answers SET answer = \'{"text": "7"}\'')
    assert store.answers(["key-1"]) == {}
    assert store.damaged_answers == 1
    store.intend([call(2, key="key-1", attempt=2)])
    store.settle([answered(2)])
    assert store.answers(["key-1"]) == {"key-1": '{"text": "2"}'}
    assert store.totals().settled_micro_usd == 80


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE call_intents SET most_micro_usd = 1 WHERE call_id = 'call-2'",
        "UPDATE call_intents SET model = 'cheap' WHERE call_id = 'call-1'",
        "UPDATE call_settlements SET micro_usd = 1",
        "UPDATE call_settlements SET outcome = 'refused'",
        "DELETE FROM call_intents WHERE call_id = 'call-1'",
    ],
)
def test_changed_money_is_noticed(store, statement):
    from charter.errors import DataError

    store.intend([call(1), call(2)])
    store.settle([answered(1)])
    change(store, statement)
    with pytest.raises(DataError, match="damaged"):
        checked_totals(store)


def change(store, statement):
    """Change the database behind the store's back."""
    with store._database.transaction() as connection:
        connection.exec_driver_sql(statement)
