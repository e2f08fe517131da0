"""What a project costs beside accelerators and storage: the section `costs:` of `charter.yaml`.

It never changes what is computed. With no such section nothing is added, and a project costs the sum of its stages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import Count, Usd
from charter.spec.ranges import AT_LEAST_ONE, NOT_NEGATIVE, SHARE_BELOW_ONE, check_ranges

FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class HumanLabels:
    """Preference pairs that people label."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    pairs: Count
    usd_per_pair: Usd = 0.67
    """Default from Lee et al. 2023 (arXiv:2309.00267), from memory: verify; quotes differ by ten times."""


@dataclass(frozen=True, kw_only=True)
class Staff:
    """People, for as long as the project runs."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    fte: float
    """Full-time equivalents."""
    usd_per_month: Usd
    """Of one, with everything; there is no default."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints are kept, for how long, and in which class of object storage."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    keep_last: Count | None = None
    """Full checkpoints that exist together; `storage.keep_last` unless given."""
    weights_every: int = 0
    """Keep the weights alone of every so many checkpoints; 0: only the final weights stay."""
    days: float = 30.0
    """Days that weights and records stay after their stage. Judgement."""
    tier: Literal["standard", "infrequent", "archive"] = "standard"
    """Class of storage for what stays: its minimum duration is billed, reading it back is not counted."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What is paid beside accelerators; nothing by default, so that every amount here was asked for."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    rework: float = 0.0
    """Accelerator time of reruns, sweeps and abandoned runs over planned time: 0.3 is usual, 0 to 1 (judgement)."""
    idle_share: float = 0.0
    """Share of the time paid for in which nothing runs: 0.05 to 0.25 is usual (judgement)."""
    managed_service: Literal["sagemaker", "vertex", "azure_ml"] | None = None
    """Its premium is added to stages on its own cloud."""
    provider: Literal["planned", "open"] = "planned"
    """`open`: the price range spans every bundled on-demand offer of the accelerator, not the planned one alone."""
    disk_gb_per_node: float = 0.0
    """Network disk attached to each rented node, beside the disks that come with it."""
    download_results: bool = False
    """Weights and records leave the cloud once, at internet prices."""
    fixed_usd_per_month: Mapping[str, Usd] = field(default_factory=dict)
    """Head node, tracking server, NAT, addresses: name -> usd per month, for as long as the project runs."""
    human_labels: HumanLabels | None = None
    """Preference labels that are bought."""
    staff: Staff | None = None
    """People; left out unless given."""
    retention: Retention = field(default_factory=Retention)
    """What is kept, and for how long."""
    contingency: float = 0.0
    """Share of everything else, added on top."""


def check_costs(costs: Costs) -> Iterator[Problem]:
    """Problems of the section: shares and negative amounts."""
    not_negative = ("rework", "disk_gb_per_node", "contingency")
    yield from check_ranges(costs, "costs", [(name, NOT_NEGATIVE) for name in not_negative])
    yield from check_ranges(costs, "costs", [("idle_share", SHARE_BELOW_ONE)])
    retention = [("keep_last", AT_LEAST_ONE), ("weights_every", NOT_NEGATIVE), ("days", NOT_NEGATIVE)]
    yield from check_ranges(costs.retention, "costs.retention", retention)
    if costs.staff is not None:
        yield from check_ranges(costs.staff, "costs.staff", [("fte", NOT_NEGATIVE)])
