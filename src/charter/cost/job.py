"""What a job costs: accelerators, hours and the market they are bought on."""

from charter.errors import UsageError


def job_usd(
    *, accelerators: int, hours: float, usd_per_accelerator_hour: float, managed_multiplier: float = 1.0
) -> float:
    """Cost of a job in usd: `accelerators x hours x price x managed premium`.

    `hours` are billed hours. Linear in each factor; providers that bill by the started hour or minute cost
    a little more. A managed service (SageMaker, Vertex) is a multiplier on the machine's price.

    >>> round(job_usd(accelerators=8, hours=9, usd_per_accelerator_hour=32.77 / 8), 2)
    294.93
    """
    if min(accelerators, hours, usd_per_accelerator_hour) < 0:
        raise UsageError(
            f"a job cannot have {accelerators} accelerators, {hours} hours and ${usd_per_accelerator_hour} per hour"
        )
    return accelerators * hours * usd_per_accelerator_hour * managed_multiplier


def commitment_break_even_utilisation(*, committed_usd_per_hour: float, on_demand_usd_per_hour: float) -> float:
    """Share of hours in use above which a commitment beats on-demand: `committed / on-demand`.

    >>> share = commitment_break_even_utilisation(committed_usd_per_hour=2.314, on_demand_usd_per_hour=3.673)
    >>> round(share, 2)
    0.63
    """
    return committed_usd_per_hour / on_demand_usd_per_hour
