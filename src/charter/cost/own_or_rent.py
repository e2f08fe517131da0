"""Buy or rent: from which use, and after how many months, an owned accelerator is cheaper."""

import math
from dataclasses import dataclass

from charter.cost.onprem import (
    HOURS_PER_YEAR,
    OwnedServer,
    break_even_utilisation,
    owned_usd_per_accelerator_hour,
    owned_usd_per_year,
)
from charter.errors import UsageError

MONTHS_PER_YEAR = 12.0


@dataclass(frozen=True, kw_only=True)
class OwnOrRent:
    """One accelerator at one rent and one utilisation."""

    rent_usd_per_hour: float
    utilisation: float
    """Share of the hours in which a machine is available that it works."""
    owned_usd_per_available_hour: float
    owned_usd_per_used_hour: float
    break_even_utilisation: float
    """Above 1 renting is cheaper at any use."""
    crossover_months: float
    """Until rent saved has paid for the server; infinite when it never does."""
    lifetime_months: float
    capital_usd: float
    """Of one server with its network."""

    @property
    def owning_is_cheaper(self) -> bool:
        """Over the whole life of the machine, its residual value included."""
        return self.utilisation > self.break_even_utilisation

    @property
    def pays_back_in_life(self) -> bool:
        """Whether the rent saved pays for the server before it is written off, without its residual value."""
        return self.crossover_months <= self.lifetime_months


def own_or_rent(server: OwnedServer, *, rent_usd_per_hour: float, utilisation: float) -> OwnOrRent:
    """Compare owning one accelerator of `server` with renting one by the hour, only while it works.

    The break-even utilisation is `owned / rent`. The crossover month t solves `C = s (1 - (1+r)^-t) / r`, with C the
    server and its network, s the rent saved in a month less the running costs (power, colocation, maintenance, staff)
    and r the monthly cost of capital. Rent that falls, delivery time and residual value (for the crossover) are left
    out: owning looks quicker to pay when rents fall, and slower because a residual value is ignored.

    >>> from charter.cost.onprem import H100_MID
    >>> found = own_or_rent(H100_MID, rent_usd_per_hour=3.99, utilisation=0.6)
    >>> round(found.break_even_utilisation, 2), found.owning_is_cheaper
    (0.53, True)
    """
    if not 0 < utilisation <= 1 or rent_usd_per_hour <= 0:
        raise UsageError(
            f"a utilisation lies above 0 and at most at 1, and a rent is above 0; "
            f"got {utilisation:g} and ${rent_usd_per_hour:g} per hour"
        )
    owned = owned_usd_per_accelerator_hour(server)
    capital = server.server_usd * (1 + server.network_adder)
    return OwnOrRent(
        rent_usd_per_hour=rent_usd_per_hour,
        utilisation=utilisation,
        owned_usd_per_available_hour=owned,
        owned_usd_per_used_hour=owned / utilisation,
        break_even_utilisation=break_even_utilisation(server, rent_usd_per_accelerator_hour=rent_usd_per_hour),
        crossover_months=_crossover_months(server, capital, rent_usd_per_hour * utilisation),
        lifetime_months=server.years * MONTHS_PER_YEAR,
        capital_usd=capital,
    )


def _crossover_months(server: OwnedServer, capital_usd: float, rent_usd_per_available_hour: float) -> float:
    running = sum(usd for part, usd in owned_usd_per_year(server).items() if part != "capital")
    hours = HOURS_PER_YEAR * server.availability * server.accelerators
    saved = (rent_usd_per_available_hour * hours - running) / MONTHS_PER_YEAR
    rate = (1 + server.cost_of_capital) ** (1 / MONTHS_PER_YEAR) - 1
    if saved <= capital_usd * rate:
        return math.inf
    if rate == 0:
        return capital_usd / saved
    return -math.log(1 - rate * capital_usd / saved) / math.log(1 + rate)
