import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog.facts import onprem_assumptions
from charter.cost.own_hardware import (
    B200_MID,
    H100_MID,
    SCENARIOS,
    SERVERS,
    own_or_rent,
    owned_server,
    owned_usd_per_year,
)
from charter.errors import UsageError

RENTS = st.floats(0.5, 15)
USES = st.floats(0.01, 1)


@pytest.mark.parametrize(("rent", "share"), [(6.88, 0.31), (3.99, 0.53), (2.95, 0.72), (2.35, 0.90)])
def test_h100_break_even_of_the_reference(rent, share):
    found = own_or_rent(H100_MID, rent_usd_per_hour=rent, utilisation=0.6)
    assert found.break_even_utilisation == pytest.approx(share, abs=0.0055)
    assert found.owning_is_cheaper is (share < 0.6)


@pytest.mark.parametrize(("rent", "share"), [(4.89, 0.62), (5.50, 0.55), (6.69, 0.45), (14.24, 0.21)])
def test_b200_break_even_of_the_reference(rent, share):
    found = own_or_rent(B200_MID, rent_usd_per_hour=rent, utilisation=0.5)
    assert found.break_even_utilisation == pytest.approx(share, abs=0.0055)


def test_a_payback_of_14_to_18_months_needs_the_rent_of_a_large_cloud():
    # Reference on cost, 4.7: a stored page's claim, consistent only with the rents of hyperscalers.
    large = own_or_rent(H100_MID, rent_usd_per_hour=6.88, utilisation=0.75).crossover_months
    small = own_or_rent(H100_MID, rent_usd_per_hour=2.95, utilisation=0.75).crossover_months
    assert 14 <= large <= 18
    assert small > 36


@given(rent=RENTS, utilisation=USES)
def test_at_the_crossover_the_rent_saved_has_paid_for_the_server(rent, utilisation):
    found = own_or_rent(H100_MID, rent_usd_per_hour=rent, utilisation=utilisation)
    running = sum(usd for part, usd in owned_usd_per_year(H100_MID).items() if part != "capital")
    saved = (rent * utilisation * 8760 * 0.97 * 8 - running) / 12
    rate = 1.08 ** (1 / 12) - 1
    if found.crossover_months == math.inf:
        assert saved <= found.capital_usd * rate
        return
    months = found.crossover_months
    assert saved * (1 - (1 + rate) ** -months) / rate == pytest.approx(found.capital_usd, rel=1e-6)


@given(rent=RENTS, utilisation=st.floats(0.01, 0.9))
def test_more_use_never_pays_back_later(rent, utilisation):
    less, more = (
        own_or_rent(H100_MID, rent_usd_per_hour=rent, utilisation=u) for u in (utilisation, utilisation + 0.1)
    )
    assert more.crossover_months <= less.crossover_months
    assert more.owned_usd_per_used_hour < less.owned_usd_per_used_hour


ROWS = {
    "network+storage+cabling adder": "network_adder",
    "average load factor": "load_factor",
    "electricity": "usd_per_kwh",
    "colocation space": "colocation_usd_per_kw_month",
    "depreciation": "years",
    "residual value at end of life": "residual_share",
    "support/maintenance": "maintenance_share_per_year",
    "availability": "availability",
    "staff": "staff_usd_per_accelerator_year",
    "cost of capital": "cost_of_capital",
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_servers_are_the_assumptions_of_the_catalog(scenario):
    table = {item.parameter: getattr(item, scenario) for item in onprem_assumptions()}
    for accelerator, row in (("H100-SXM-80GB", "8xH100"), ("B200-SXM-180GB", "8xB200")):
        server = SERVERS[accelerator][scenario]
        capital = next(value for name, value in table.items() if name.startswith(row) and "capex" in name)
        assert server.server_usd == capital
        assert server.power_kw == table[f"node power {row}"]
        for parameter, field in ROWS.items():
            assert getattr(server, field) == table[parameter], field
    assert {name for name in ROWS.values()} <= {item.name for item in fields(H100_MID)}


def test_an_own_quote_replaces_the_scenario():
    assert owned_server("MI300X-192GB", server_usd=250_000, power_kw=9).staff_usd_per_accelerator_year == 1500
    with pytest.raises(UsageError, match="--server-usd"):
        owned_server("MI300X-192GB", server_usd=250_000)
    with pytest.raises(UsageError, match="cheap, mid, costly"):
        owned_server("H100-SXM-80GB", "fair")


@pytest.mark.parametrize(("rent", "utilisation"), [(0, 0.5), (3, 0), (3, 1.2)])
def test_refuses_impossible_rents_and_uses(rent, utilisation):
    with pytest.raises(UsageError, match="utilisation lies above 0"):
        own_or_rent(H100_MID, rent_usd_per_hour=rent, utilisation=utilisation)
