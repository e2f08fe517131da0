from dataclasses import replace

import pytest

from charter.cost.own_hardware import (
    break_even_utilisation,
    capital_recovery_factor,
    listed_server,
    owned_usd_per_accelerator_hour,
    owned_usd_per_year,
)

H100, B200 = listed_server("H100-SXM-80GB"), listed_server("B200-SXM-180GB")
H100_CHEAP, H100_COSTLY = (listed_server("H100-SXM-80GB", scenario) for scenario in ("cheap", "costly"))

# Reference on cost, section 4.7: usd per available GPU-hour.
OWNED = [(H100_CHEAP, 1.21), (H100, 2.12), (H100_COSTLY, 3.93), (B200, 3.04)]


@pytest.mark.parametrize(("server", "usd_per_hour"), OWNED)
def test_matches_the_reference_scenarios(server, usd_per_hour):
    assert owned_usd_per_accelerator_hour(server) == pytest.approx(usd_per_hour, abs=0.005)


# Section 0, conclusion 6 and section 4.7: rent -> break-even utilisation.
CROSSOVER = [
    (H100, 6.88, 0.31),
    (H100, 3.99, 0.53),
    (H100, 2.95, 0.72),
    (H100, 2.35, 0.90),
    (B200, 4.89, 0.62),
    (B200, 5.50, 0.55),
    (B200, 6.69, 0.45),
    (B200, 14.24, 0.21),
]


@pytest.mark.parametrize(("server", "rent", "share"), CROSSOVER)
def test_matches_the_reference_crossovers(server, rent, share):
    assert break_even_utilisation(server, rent_usd_per_accelerator_hour=rent) == pytest.approx(share, abs=0.0055)


def test_owning_never_beats_a_rent_of_1_70():
    assert break_even_utilisation(H100, rent_usd_per_accelerator_hour=1.70) > 1


def test_mid_case_is_mostly_capital():
    parts = owned_usd_per_year(H100)
    shares = {name: round(100 * value / sum(parts.values())) for name, value in parts.items()}
    assert shares == {"capital": 64, "power": 6, "colocation": 11, "maintenance": 10, "staff": 8}


def test_half_the_availability_costs_twice_as_much():
    half = replace(H100, availability=H100.availability / 2)
    assert owned_usd_per_accelerator_hour(half) == pytest.approx(2 * owned_usd_per_accelerator_hour(H100))


def test_capital_without_interest_is_spread_evenly():
    assert capital_recovery_factor(rate=0, years=4) == 0.25
    assert capital_recovery_factor(rate=1e-9, years=4) == pytest.approx(0.25, rel=1e-6)
