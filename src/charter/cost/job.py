"""Cost of a job: accelerators, hours and the market they are bought on."""

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class ManagedService:
    """A premium on the price of machines, and a fee per month."""

    name: str
    cloud: str
    """Its premium holds on this cloud only."""
    multiplier: float
    """Usual premium: on the newer training accelerators."""
    multiplier_older: float
    """On the older or smaller ones in `OLDER`."""
    usd_per_month: float
    confidence: str


OLDER = ("V100", "T4", "A10G", "L4", "L40S", "K80", "P100")
"""Name prefixes of the p3, g4, g5 and g6 families."""

SERVICES = {
    "sagemaker": ManagedService(
        name="Amazon SageMaker training",
        cloud="aws",
        multiplier=1.15,
        multiplier_older=1.30,
        usd_per_month=0.0,
        confidence="from memory, verify: +15 % on p4d and p5, +25 to +40 % on p3 and g5",
    ),
    "vertex": ManagedService(
        name="Vertex AI custom training",
        cloud="gcp",
        multiplier=1.15,
        multiplier_older=1.15,
        usd_per_month=0.0,
        confidence="from memory, verify: about +15 % on accelerators and processors",
    ),
    "azure_ml": ManagedService(
        name="Azure Machine Learning",
        cloud="azure",
        multiplier=1.0,
        multiplier_older=1.0,
        usd_per_month=0.0,
        confidence="from memory, verify: machines at their own price",
    ),
}


def managed_multiplier(service: str, *, cloud: str, accelerator: str) -> float:
    """Price under a managed service over the price of the machine; 1 on another cloud than its own.

    >>> managed_multiplier("sagemaker", cloud="aws", accelerator="H100-SXM-80GB")
    1.15
    >>> managed_multiplier("sagemaker", cloud="gcp", accelerator="H100-SXM-80GB")
    1.0
    """
    if service not in SERVICES:
        raise UsageError(f"there is no managed service {service!r}; known are {', '.join(SERVICES)}")
    prices = SERVICES[service]
    if cloud != prices.cloud:
        return 1.0
    return prices.multiplier_older if accelerator.startswith(OLDER) else prices.multiplier
