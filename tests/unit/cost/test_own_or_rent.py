import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.own_hardware import (
    SCENARIOS,
    listed_server,
    own_or_rent,
    owned_server,
    owned_usd_per_year,
)
from charter.errors import UsageError

H100, B200 = listed_server("H100-SXM-80GB"), listed_server("B200-SXM-180GB")
RENTS = st.floats(0.5, 15)
USES = st.floats(0.01, 1)


@pytest.mark.parametrize(("rent", "share"), [(6.88, 0.31), (3.99, 0.53), (2.95, 0.72), (2.35, 0.90)])
def test_h100_break_even_of_the_reference(rent, share):
    found = own_or_rent(H100, rent_usd_per_hour=rent, utilisation=0.6)
    assert found.break_even_utilisation == pytest.approx(share, abs=0.0055)
    assert found.owning_is_cheaper is (share < 0.6)


@pytest.mark.parametrize(("rent", "share"), [(4.89, 0.62), (5.50, 0.55), (6.69, 0.45), (14.24, 0.21)])
def test_b200_break_even_of_the_reference(rent, share):
    found = own_or_rent(B200, rent_usd_per_hour=rent, utilisation=0.5)
    assert found.break_even_utilisation == pytest.approx(share, abs=0.0055)


def test_a_payback_of_14_to_18_months_needs_the_rent_of_a_large_cloud():
    # Reference on cost, 4.7: a stored page's claim, consistent only with the rents of hyperscalers.
    large = own_or_rent(H100, rent_usd_per_hour=6.88, utilisation=0.75).crossover_months
    small = own_or_rent(H100, rent_usd_per_hour=2.95, utilisation=0.75).crossover_months
    assert 14 <= large <= 18
    assert small > 36


@given(rent=RENTS, utilisation=USES)
def test_at_the_crossover_the_rent_saved_has_paid_for_the_server(rent, utilisation):
    found = own_or_rent(H100, rent_usd_per_hour=rent, utilisation=utilisation)
    running = sum(usd for part, usd in owned_usd_per_year(H100).items() if part != "capital")
    saved = (rent * utilisation * 8760 * 0.97 * 8 - running) / 12
    rate = 1.08 ** (1 / 12) - 1
    if found.crossover_months == math.inf:
        assert saved <= found.capital_usd * rate
        return
    months = found.crossover_months
    assert saved * (1 - (1 + rate) ** -months) / rate == pytest.approx(found.capital_usd, rel=1e-6)


@given(rent=RENTS, utilisation=st.floats(0.01, 0.9))
def test_more_use_never_pays_back_later(rent, utilisation):
    less, more = (own_or_rent(H100, rent_usd_per_hour=rent, utilisation=u) for u in (utilisation, utilisation + 0.1))
    assert more.crossover_months <= less.crossover_months
    assert more.owned_usd_per_used_hour < less.owned_usd_per_used_hour


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_listed_b200_server_differs_in_price_power_and_cooling(scenario):
    h100, b200 = listed_server("H100-SXM-80GB", scenario), listed_server("B200-SXM-180GB", scenario)
    assert (h100.power_kw, b200.power_kw) == (10.2, 14.3)
    assert h100.server_usd < b200.server_usd
    cooling = b200.power_usage_effectiveness
    assert replace(b200, server_usd=h100.server_usd, power_kw=10.2, power_usage_effectiveness=cooling) == replace(
        h100, power_usage_effectiveness=cooling
    )


def test_an_own_quote_replaces_the_scenario():
    assert owned_server("MI300X-192GB", server_usd=250_000, power_kw=9).staff_usd_per_accelerator_year == 1500
    with pytest.raises(UsageError, match="--server-usd"):
        owned_server("MI300X-192GB", server_usd=250_000)
    with pytest.raises(UsageError, match="cheap, mid, costly"):
        owned_server("H100-SXM-80GB", "fair")


@pytest.mark.parametrize(("rent", "utilisation"), [(0, 0.5), (3, 0), (3, 1.2)])
def test_refuses_impossible_rents_and_uses(rent, utilisation):
    with pytest.raises(UsageError, match="utilisation lies above 0"):
        own_or_rent(H100, rent_usd_per_hour=rent, utilisation=utilisation)
