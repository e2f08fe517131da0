"""Cost of a job: money as whole micro-USD, accelerators and hours on a market, and the buckets of what is paid for."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from charter.errors import UsageError
from charter.units import MICRO_USD_PER_USD

# -------- Money inside Charter: whole micro-USD, so that parts add up to totals exactly.
#
# Rule: an amount is computed in floating point, turned into micro-USD once, rounding half to even on its
# shortest decimal form, and only added as integers from then on.


def micro_usd(usd: float) -> int:
    """Whole micro-USD of an amount, half to even.

    >>> micro_usd(12.34), micro_usd(0.0000005), micro_usd(0.0000015)
    (12340000, 0, 2)
    """
    amount = Decimal(repr(float(usd)))
    if not amount.is_finite():
        raise UsageError(f"{usd!r} is not an amount of money")
    return int((amount * MICRO_USD_PER_USD).to_integral_value(rounding=ROUND_HALF_EVEN))


def usd(micro: int) -> float:
    """US dollars of whole micro-USD.

    >>> usd(12340000)
    12.34
    """
    return micro / MICRO_USD_PER_USD


def split_micro_usd(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """`total` shared out by `weights` so that the shares add up to it: the largest remainders get the last
    units.

    >>> split_micro_usd(100, [1, 1, 1])
    (34, 33, 33)
    """
    total_weight = sum(weights)
    if total_weight <= 0 or min(weights) < 0:
        raise UsageError("a cost can only be shared by weights that are not negative and not all zero")
    exact = [total * weight / total_weight for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: (shares[index] - exact[index], index))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return tuple(shares)


# -------- Accelerator time that is paid for, in five buckets that are never merged.

BUCKETS = ("useful", "checkpoint", "lost and restart", "idle", "rework")


@dataclass(frozen=True, kw_only=True)
class ComputeBuckets:
    """One quantity (hours or usd) of accelerator time by what it was paid for."""

    useful: float
    checkpoint: float
    lost_and_restart: float
    """Work done twice after failures, restarts, and the first start of the machines."""
    idle: float

    @property
    def total(self) -> float:
        """All that is billed."""
        return self.useful + self.checkpoint + self.lost_and_restart + self.idle


def compute_buckets(
    *,
    useful: float,
    checkpoint: float,
    billed: float,
    waiting: float = 0.0,
) -> ComputeBuckets:
    """Buckets of `billed`, which is one run with its failures.

    `lost and restart = billed - useful - waiting - checkpoint`; idle is what accelerators wait for each other. Any
    unit of time or money. Source: OpenCost specification v0.1 (idle = allocated - used); Daly 2006 for the losses.

    >>> buckets = compute_buckets(useful=80, checkpoint=4, billed=100, waiting=10)
    >>> buckets.lost_and_restart, buckets.idle, buckets.total
    (6, 10, 100)
    """
    worked = useful + waiting + checkpoint
    if min(useful, waiting, checkpoint) < 0 or billed < worked * (1 - 1e-9):
        raise UsageError(f"{billed} billed cannot hold {useful} useful, {waiting} waiting, {checkpoint} of checkpoints")
    return ComputeBuckets(
        useful=useful,
        checkpoint=checkpoint,
        lost_and_restart=max(0.0, billed - worked),
        idle=waiting,
    )


# -------- Cost of a job: accelerators, hours and the market they are bought on.


def job_usd(*, accelerators: int, hours: float, usd_per_accelerator_hour: float) -> float:
    """Cost of a job in usd: `accelerators x hours x price`.

    `hours` are billed hours. Linear in each factor; providers that bill by the started hour or minute cost
    a little more.

    >>> round(job_usd(accelerators=8, hours=9, usd_per_accelerator_hour=32.77 / 8), 2)
    294.93
    """
    if min(accelerators, hours, usd_per_accelerator_hour) < 0:
        raise UsageError(
            f"a job cannot have {accelerators} accelerators, {hours} hours and ${usd_per_accelerator_hour} per hour"
        )
    return accelerators * hours * usd_per_accelerator_hour


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
