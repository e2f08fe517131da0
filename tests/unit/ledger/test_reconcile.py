"""Reconciling: afterwards the calls cost what the log says, to the last micro-USD, and every difference is named."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from charter.ledger.call import Call
from charter.ledger.reconcile import BilledRow, reconcile


def call(call_id, outcome=None, micro_usd=None, most=100):
    return Call(
        call_id=call_id, key=call_id, model="m", endpoint="e", attempt=1, at=1.0, most_micro_usd=most, outcome=outcome,
        micro_usd=micro_usd, revision=-1 if outcome is None else 0, settled_at=None if outcome is None else 2.0,
    )  # fmt: skip


def billed(call_id, micro_usd=None, prompt=None, completion=None):
    money = None if micro_usd is None else Decimal(micro_usd)
    return BilledRow(
        request_id=call_id, micro_usd=money, prompt_tokens=prompt, cached_tokens=None, completion_tokens=completion
    )


def compared(calls, rows, price=lambda *_: None):
    return reconcile(calls, rows, price=price, at=9.0, source="log.csv")


def kinds(found):
    return {item.kind: item.count for item in found.differences}


def corrected(calls, found):
    """The calls after their corrections."""
    after = {item.call_id: item for item in calls}
    for old, new in found.corrections:
        after[old.call_id] = Call(
            call_id=old.call_id, key=old.key, model="m", endpoint="e", attempt=1, at=1.0, most_micro_usd=100,
            outcome=new.outcome, settled_at=new.at, micro_usd=new.micro_usd, note=new.note, revision=old.revision + 1,
        )  # fmt: skip
    return list(after.values())


def test_every_way_to_differ_is_named():
    calls = [
        call("same", "answered", 40),
        call("lost answer"),
        call("never arrived"),
        call("timed out", "unknown"),
        call("dearer", "answered", 40),
        call("twice", "answered", 40),
        call("refused", "refused", 0),
        call("refused but billed", "refused", 0),
        call("free after all", "answered", 40),
    ]
    rows = [
        billed("same", 40), billed("lost answer", 33), billed("timed out", 9), billed("dearer", 50),
        billed("twice", 40), billed("twice", 40), billed("refused but billed", 5), billed("somebody else's", 77),
    ]  # fmt: skip
    found = compared(calls, rows)
    assert kinds(found) == {
        "agrees": 2,
        "unknown_billed": 2,
        "unknown_not_billed": 1,
        "cost_differs": 1,
        "billed_more_than_once": 1,
        "refused_but_billed": 1,
        "answered_not_billed": 1,
        "not_ours": 1,
    }
    after = corrected(calls, found)
    assert not any(item.is_unknown for item in after)
    assert sum(item.micro_usd or 0 for item in after) == 40 + 33 + 9 + 50 + 80 + 5
    assert {item.call_id: item.outcome for item in after}["never arrived"] == "void"


def test_tokens_are_priced_where_the_log_has_no_cost():
    calls = [call("a", "answered", 40), call("b", "answered", None)]
    rows = [billed("a", prompt=10, completion=5), billed("b", prompt=1, completion=1)]
    found = compared(calls, rows, price=lambda _endpoint, prompt, _cached, out: Decimal(prompt * 2 + out * 3))
    assert [(new.micro_usd, new.prompt_tokens) for _, new in found.corrections] == [(35, 10), (5, 1)]
    assert compared(calls, rows).unpriced == 2


CALLS = st.lists(
    st.tuples(
        st.sampled_from([None, "answered", "refused", "unknown"]), st.integers(0, 200),
        st.none() | st.decimals(0, 300, places=4),
    ),
    max_size=30,
)  # fmt: skip


@given(CALLS)
def test_reconciled_sum_is_the_logs_and_repeats_change_nothing(drawn):
    calls = [
        call(f"{index:03}", outcome, {"answered": cost, "refused": 0}.get(outcome))
        for index, (outcome, cost, _) in enumerate(drawn)
    ]
    rows = [billed(f"{index:03}", cost) for index, (_, _, cost) in enumerate(drawn) if cost is not None]
    after = corrected(calls, compared(calls, rows))
    exact = sum((row.micro_usd for row in rows), Decimal(0))
    assert abs(sum(item.micro_usd or 0 for item in after) - exact) <= Decimal("0.5")
    assert not any(item.is_unknown for item in after)
    again = compared(after, rows)
    assert not again.corrections
    assert set(kinds(again)) <= {"agrees"}


def test_fractions_are_carried_on_so_that_the_sum_is_the_logs():
    calls = [call("a", "answered", 1), call("b", "answered", 1)]
    found = compared(calls, [billed("a", "0.6"), billed("b", "0.6")])
    assert sum(item.micro_usd for item in corrected(calls, found)) == 1
    assert kinds(found) == {"agrees": 2}


def test_a_whole_micro_usd_apart_is_another_cost():
    assert kinds(compared([call("a", "answered", 40)], [billed("a", 41)])) == {"cost_differs": 1}


def test_a_call_whose_row_has_no_price_keeps_what_it_had():
    found = compared([call("a", "answered", 40)], [billed("a", prompt=7, completion=3)])
    assert (found.unpriced, found.corrections, found.differences) == (1, (), ())


def test_a_log_without_tokens_leaves_ours():
    ours = replace(call("a", "answered", 40), prompt_tokens=7, cached_tokens=2, completion_tokens=3)
    ((_, new),) = compared([ours], [billed("a", 50)]).corrections
    assert (new.prompt_tokens, new.cached_tokens, new.completion_tokens) == (7, 2, 3)
