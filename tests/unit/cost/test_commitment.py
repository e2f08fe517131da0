import pytest
from charter.cost.commitment import MarketPrices, committed_base, layers
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.job import commitment_break_even_utilisation
from charter.errors import UsageError

# Google Cloud A100, us-central1, 2026-08-20: on demand, one year, three years, spot (reference on cost, 4.6).
ON_DEMAND, ONE_YEAR, THREE_YEARS, SPOT = 3.673, 2.314, 1.286, 2.121
DEMAND = st.lists(st.integers(0, 64), min_size=1, max_size=40)


@pytest.mark.parametrize(("committed", "share"), [(ONE_YEAR, 0.63), (THREE_YEARS, 0.35)])
def test_an_accelerator_used_above_the_break_even_share_is_committed(committed, share):
    even = commitment_break_even_utilisation(committed_usd_per_hour=committed, on_demand_usd_per_hour=ON_DEMAND)
    assert even == pytest.approx(share, abs=0.005)
    busy = round(100 * share) + 1
    assert committed_base([8] * busy + [0] * (100 - busy), break_even_utilisation=even) == 8
    rare = round(100 * share) - 1
    assert committed_base([8] * rare + [0] * (100 - rare), break_even_utilisation=even) == 0


@given(demand=DEMAND, committed=st.floats(0.1, 3.6))
def test_no_other_commitment_is_cheaper(demand, committed):
    best = layers(demand, MarketPrices(committed=committed, on_demand=ON_DEMAND)).total_usd
    for base in range(max(demand) + 2):
        usd = base * len(demand) * committed + sum(max(0, hour - base) for hour in demand) * ON_DEMAND
        assert best <= usd + 1e-6


@given(demand=DEMAND, flexible=DEMAND, spot=st.floats(0.1, 5), rework=st.floats(1, 2))
def test_every_accelerator_hour_is_bought_once(demand, flexible, spot, rework):
    prices = MarketPrices(committed=ONE_YEAR, on_demand=ON_DEMAND, spot=spot, spot_rework=rework)
    found = layers(demand, prices, preemptible=flexible)
    on_spot = spot * rework < ON_DEMAND
    hours = found.committed_used_usd / ONE_YEAR + found.on_demand_usd / ON_DEMAND
    assert hours == pytest.approx(sum(demand) + (0 if on_spot else sum(flexible)))
    assert found.spot_usd == pytest.approx(sum(flexible) * spot * rework if on_spot else 0)


def test_an_unused_commitment_is_a_line_of_its_own():
    found = layers([8, 8, 8, 0], MarketPrices(committed=ONE_YEAR, on_demand=ON_DEMAND))
    assert found.committed_accelerators == 8
    assert found.committed_unused_usd == pytest.approx(8 * ONE_YEAR)
    assert found.total_usd == pytest.approx(32 * ONE_YEAR)


def test_three_year_commitment_beats_spot_one_year_nearly_ties():
    # Reference on cost, conclusion 3: at 7 to 20 % of spot rework.
    for rework in (1.07, 1.20):
        assert SPOT * rework > THREE_YEARS
        assert pytest.approx(SPOT * rework, rel=0.10) == ONE_YEAR


@pytest.mark.parametrize("demand", [[], [4, -1]])
def test_refuses_a_demand_that_cannot_be(demand):
    with pytest.raises(UsageError, match="demand"):
        committed_base(demand, break_even_utilisation=0.5)
