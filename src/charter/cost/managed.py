"""What a managed training service adds to the price of the machines under it."""

from dataclasses import dataclass

from charter.errors import UsageError


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
    found = SERVICES[service]
    if cloud != found.cloud:
        return 1.0
    return found.multiplier_older if accelerator.startswith(OLDER) else found.multiplier
