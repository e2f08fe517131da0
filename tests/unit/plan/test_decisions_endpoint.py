"""What an endpoint charges: tokens that are read and tokens that are written, at their own prices."""

import pytest

from charter.plan.api_judge import ApiPrice
from charter.plan.endpoint_use import endpoint_terms, endpoint_usd
from charter.plan.phase import Counters, RolePhase, Workload

PRICE = ApiPrice(input_usd_per_million=3.0, output_usd_per_million=15.0)


def work(kind, **changes):
    """1,000 requests of 200 tokens to an endpoint."""
    fields = {"steps": 10.0, "batch": 100, "prompt_tokens": 200.0, "longest_tokens": 1200.0, **changes}
    phase = RolePhase(name="ask", work=kind, role="judge", **fields)
    return Workload(roles=(), phases=(phase,), counters=Counters(), remote=("judge",), endpoints={"judge": PRICE})


@pytest.mark.parametrize(
    ("kind", "changes", "written"),
    [
        ("generate", {"new_tokens": 1000.0}, 1000),
        ("generate", {"new_tokens": 1000.0, "mean_new_tokens": 400.0}, 400),
        ("score", {}, 1),
    ],
)
def test_what_is_written_is_paid_for_at_its_own_price(kind, changes, written):
    asked = work(kind, **changes)
    assert endpoint_usd(asked) == pytest.approx(1000 * (200 * 3 + written * 15) / 1e6)
    (term,) = endpoint_terms(asked)
    assert term.value > 0


def test_what_runs_here_is_not_charged():
    asked = work("generate", new_tokens=1000.0)
    assert endpoint_usd(Workload(roles=(), phases=asked.phases, counters=Counters(), endpoints=asked.endpoints)) == 0.0
