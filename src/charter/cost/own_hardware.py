"""Machines one owns: what an accelerator-hour costs on them, and from which use buying is cheaper than renting."""

import math
from dataclasses import dataclass, replace
from functools import cache

from charter.catalog.rows import onprem_assumptions
from charter.errors import UsageError
from charter.units import HOURS_PER_YEAR


@dataclass(frozen=True, kw_only=True)
class OwnedServer:
    """One server and what it takes to run it."""

    server_usd: float
    network_adder: float
    """Network, storage and cabling, as a share of the server's price."""
    accelerators: int = 8
    power_kw: float
    load_factor: float
    power_usage_effectiveness: float
    usd_per_kwh: float
    """Zero when the colocation price includes electricity."""
    colocation_usd_per_kw_month: float
    years: float
    residual_share: float
    maintenance_share_per_year: float
    """Of the bare server's price."""
    availability: float
    staff_usd_per_accelerator_year: float
    cost_of_capital: float


def capital_recovery_factor(*, rate: float, years: float) -> float:
    """Yearly payment per unit of capital: `r (1+r)^Y / ((1+r)^Y - 1)`; `1/Y` without interest.

    >>> round(capital_recovery_factor(rate=0.08, years=4), 4)
    0.3019
    """
    if rate == 0:
        return 1 / years
    growth = math.pow(1 + rate, years)
    return rate * growth / (growth - 1)


def owned_usd_per_year(server: OwnedServer) -> dict[str, float]:
    """Yearly cost of one server by part: capital, power, colocation, maintenance, staff.

    Capital is `(C - S/(1+r)^Y) x CRF(r, Y)` with C the server and its network adder and S the residual value.

    >>> sum(owned_usd_per_year(listed_server("H100-SXM-80GB")).values()) > 140_000
    True
    """
    capital = server.server_usd * (1 + server.network_adder)
    discounted_residual = server.residual_share * capital / (1 + server.cost_of_capital) ** server.years
    recovery = capital_recovery_factor(rate=server.cost_of_capital, years=server.years)
    drawn_kw = server.power_kw * server.load_factor * server.power_usage_effectiveness
    return {
        "capital": (capital - discounted_residual) * recovery,
        "power": drawn_kw * server.usd_per_kwh * HOURS_PER_YEAR,
        "colocation": server.power_kw * server.colocation_usd_per_kw_month * 12,
        "maintenance": server.maintenance_share_per_year * server.server_usd,
        "staff": server.staff_usd_per_accelerator_year * server.accelerators,
    }


def owned_usd_per_accelerator_hour(server: OwnedServer) -> float:
    """Usd per accelerator-hour of a server in constant use: yearly cost over `8760 x availability x accelerators`.

    >>> round(owned_usd_per_accelerator_hour(listed_server("H100-SXM-80GB")), 2)
    2.12
    """
    hours = HOURS_PER_YEAR * server.availability * server.accelerators
    return sum(owned_usd_per_year(server).values()) / hours


def break_even_utilisation(server: OwnedServer, *, rent_usd_per_accelerator_hour: float) -> float:
    """Share of the year an owned accelerator must work to beat renting; above 1, renting always wins.

    >>> round(break_even_utilisation(listed_server("H100-SXM-80GB"), rent_usd_per_accelerator_hour=3.99), 2)
    0.53
    """
    return owned_usd_per_accelerator_hour(server) / rent_usd_per_accelerator_hour


SCENARIOS = ("cheap", "mid", "costly")
SERVERS = {"H100-SXM-80GB": "8xH100", "B200-SXM-180GB": "8xB200"}
"""Accelerator -> its server of eight, as rows of `onprem_assumptions.csv` call it."""
ASSUMPTIONS = {
    "network_adder": "network+storage+cabling adder",
    "load_factor": "average load factor",
    "power_usage_effectiveness": "PUE",
    "usd_per_kwh": "electricity",
    "colocation_usd_per_kw_month": "colocation space",
    "years": "depreciation",
    "residual_share": "residual value at end of life",
    "maintenance_share_per_year": "support/maintenance",
    "availability": "availability",
    "staff_usd_per_accelerator_year": "staff",
    "cost_of_capital": "cost of capital",
}
"""Field of a server -> its row of the table; a row that also names the server goes first ("PUE 8xB200")."""


@cache
def listed_server(accelerator: str, scenario: str = "mid") -> OwnedServer:
    """Return the server of eight of a scenario, 2025-26, as the catalog's table of assumptions has it.

    Prices of servers and colocation were read on public pages that disagree by up to 4x; load, maintenance, staff and
    capital are assumptions. Replace them with your own quotes.

    >>> listed_server("H100-SXM-80GB").server_usd, listed_server("B200-SXM-180GB").power_usage_effectiveness
    (300000.0, 1.25)
    """
    server = SERVERS[accelerator]
    table = {row.parameter: getattr(row, scenario) for row in onprem_assumptions()}
    price = next(value for name, value in table.items() if name.startswith(server) and name.endswith("capex"))
    inputs = {field: table.get(f"{row} {server}", table[row]) for field, row in ASSUMPTIONS.items()}
    return OwnedServer(server_usd=price, power_kw=table[f"node power {server}"], **inputs)


def owned_server(
    accelerator: str, scenario: str = "mid", *, server_usd: float | None = None, power_kw: float | None = None
) -> OwnedServer:
    """A server of a scenario, with your own quotes in place of its price and power.

    For an accelerator without a table both quotes are needed; the rest comes from the H100's scenario.

    >>> owned_server("B200-SXM-180GB", server_usd=500_000).server_usd
    500000
    """
    if scenario not in SCENARIOS:
        raise UsageError(f"there is no scenario {scenario!r}; known are {', '.join(SCENARIOS)}")
    if accelerator not in SERVERS and (server_usd is None or power_kw is None):
        raise UsageError(
            f"nothing is known of what a server of {accelerator} costs to own\n"
            f"  give its price and its power (--server-usd, --power-kw); known are {', '.join(SERVERS)}"
        )
    server = listed_server(accelerator if accelerator in SERVERS else "H100-SXM-80GB", scenario)
    return replace(
        server,
        server_usd=server.server_usd if server_usd is None else server_usd,
        power_kw=server.power_kw if power_kw is None else power_kw,
    )


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
        """Return True if the rent saved pays for the server before it is written off, without its residual value."""
        return self.crossover_months <= self.lifetime_months


def own_or_rent(server: OwnedServer, *, rent_usd_per_hour: float, utilisation: float) -> OwnOrRent:
    """Compare owning one accelerator of `server` with renting one by the hour, only while it works.

    The break-even utilisation is `owned / rent`. The crossover month t solves `C = s (1 - (1+r)^-t) / r`, with C the
    server and its network, s the rent saved in a month less the running costs (power, colocation, maintenance, staff)
    and r the monthly cost of capital. Rent that falls, delivery time and residual value (for the crossover) are left
    out: owning looks quicker to pay when rents fall, and slower because a residual value is ignored.

    >>> found = own_or_rent(listed_server("H100-SXM-80GB"), rent_usd_per_hour=3.99, utilisation=0.6)
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
