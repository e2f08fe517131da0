"""`charter cost buy-or-rent`: from which use an owned accelerator is cheaper than a rented one."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    from charter.cost.onprem import OwnedServer
    from charter.cost.own_or_rent import OwnOrRent


def buy_or_rent(
    accelerator: Annotated[str, typer.Argument(help="Accelerator that would be bought.")] = "H100",
    rent: Annotated[
        list[float] | None,
        typer.Option(help="Rent in usd per accelerator-hour; repeatable. Default: the bundled on-demand offers."),
    ] = None,
    utilisation: Annotated[float, typer.Option(help="Share of the hours in which it would work.")] = 0.6,
    scenario: Annotated[str, typer.Option(help="Cost of owning: cheap, mid or costly.")] = "mid",
    server_usd: Annotated[float | None, typer.Option(help="Your quote for a server of eight.")] = None,
    power_kw: Annotated[float | None, typer.Option(help="Most power that server draws.")] = None,
    json_: JsonOption = False,
) -> None:
    """Compare owning an accelerator with renting one: break-even use, and months until it has paid for itself."""
    from charter.catalog.accelerators import get
    from charter.cost.onprem import owned_server
    from charter.cost.own_or_rent import own_or_rent

    name = get(accelerator).name
    server = owned_server(name, scenario, server_usd=server_usd, power_kw=power_kw)
    rents = [("given", value) for value in rent] if rent else _offered(name)
    found = [(source, own_or_rent(server, rent_usd_per_hour=usd, utilisation=utilisation)) for source, usd in rents]
    if json_:
        print_json(_as_json(name, scenario, server, found))
    else:
        _print(name, scenario, server, found, utilisation)


def _offered(accelerator: str) -> list[tuple[str, float]]:
    """The cheapest bundled on-demand price of every cloud, dearest first."""
    from charter.catalog.prices import Market, offers
    from charter.errors import UsageError

    cheapest: dict[str, tuple[float, str]] = {}
    for offer in offers(accelerator, market=Market.ON_DEMAND):
        usd = offer.usd_per_accelerator_hour(Market.ON_DEMAND)
        if usd is not None and offer.whole_machine and usd < cheapest.get(offer.cloud, (math.inf, ""))[0]:
            cheapest[offer.cloud] = (usd, offer.provenance.as_of)
    if not cheapest:
        raise UsageError(f"no bundled offer rents out {accelerator}; give a rent with --rent 3.99")
    ranked = sorted(cheapest.items(), key=lambda item: (-item[1][0], item[0]))
    return [(f"{cloud}, {as_of.partition(' (')[0]}", usd) for cloud, (usd, as_of) in ranked]


def _as_json(name: str, scenario: str, server: "OwnedServer", found: "list[tuple[str, OwnOrRent]]") -> dict[str, Any]:
    from charter.cost.onprem import owned_usd_per_year

    rows = []
    for source, row in found:
        values = {key: None if value == math.inf else value for key, value in vars(row).items()}
        verdicts = {"owning_is_cheaper": row.owning_is_cheaper, "pays_back_in_life": row.pays_back_in_life}
        rows.append({"rent_from": source, **values, **verdicts})
    return {
        "accelerator": name,
        "scenario": scenario,
        "server": vars(server),
        "usd_per_year": owned_usd_per_year(server),
        "rents": rows,
    }


def _print(
    name: str, scenario: str, server: "OwnedServer", found: "list[tuple[str, OwnOrRent]]", utilisation: float
) -> None:
    from charter.cli.tables import console, plain_table
    from charter.cost.onprem import owned_usd_per_accelerator_hour, owned_usd_per_year

    out = console()
    owned = owned_usd_per_accelerator_hour(server)
    parts = owned_usd_per_year(server)
    shares = ", ".join(f"{part} {usd / sum(parts.values()):.0%}" for part, usd in parts.items())
    out.print(
        f"{name}, {scenario} scenario: ${owned:.2f} per available hour; ${owned / utilisation:.2f} per hour in use "
        f"at {utilisation:.0%}"
    )
    out.print(f"  of which {shares}")
    table = plain_table(
        ("rent from", "left"),
        ("usd/h", "right"),
        ("break-even use", "right"),
        ("pays back in", "right"),
        ("at this use", "left"),
    )
    for source, row in found:
        even = f"{row.break_even_utilisation:.0%}" if row.break_even_utilisation <= 1 else "never"
        months = f"{row.crossover_months:.0f} months" if row.crossover_months < math.inf else "never"
        verdict = "buy" if row.owning_is_cheaper else "rent"
        table.add_row(source, f"{row.rent_usd_per_hour:.2f}", even, months, verdict)
    out.print(table)
    out.print(
        f"Buy where the use is above the break-even; a server is written off after {server.years:g} years.\n"
        "The scenario is made of assumptions: --server-usd and --power-kw take your own quotes."
    )
