"""What a project knows about failures of its machines: the section `risk:` of `charter.yaml`.

It never changes what is computed. Whatever is not given is taken from published fleets, with the source in the plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import Bytes, Reads, Seconds
from charter.spec.ranges import NOT_NEGATIVE, POSITIVE, SHARE_ABOVE_ZERO, check_ranges
from charter.units import parse_seconds

DETECTIONS = ("slurm", "kubernetes", "nccl", "watchdog")


def _detection(value: object) -> object:
    if isinstance(value, str) and value in DETECTIONS:
        return value
    try:
        return parse_seconds(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither {', '.join(DETECTIONS)} nor a time like 30m") from None


DetectionDelay = Annotated[
    Literal["slurm", "kubernetes", "nccl", "watchdog"] | float,
    Reads(_detection, {"anyOf": [{"enum": list(DETECTIONS)}, {"type": "number"}, {"type": "string"}]}),
]
"""Who notices a failure, or how long that takes: `slurm`, `30m`."""


@dataclass(frozen=True, kw_only=True)
class RiskSettings:
    """How often machines fail, how soon that is noticed, and how the job comes back."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    failures_per_node_day: float | None = None
    """Unexpected interruptions per node and day; the fleet of the Llama 3 or the RSC-1 paper unless given."""
    detection: DetectionDelay | None = None
    """Who notices a failure (`slurm`, `kubernetes`, `nccl`, `watchdog`), or the delay; by place unless given."""
    restart: Seconds | None = None
    """Rescheduling, loading and warm-up after a failure."""
    save_bandwidth: Bytes | None = None
    """Bytes per second that a node writes to checkpoint storage."""
    async_saves: bool = False
    """Only the copy to host memory blocks; the write goes on beside training."""
    notice: Seconds = 0.0
    """Warning before a preemption that is used to save once more (AWS gives 2m); 0: not used."""
    spot_mean_up: Seconds | None = None
    """Mean time that a spot pool keeps all machines of a job."""
    spot_availability: float | None = None
    """Share of time in which the pool has them."""
    spares: Literal["auto"] | int = "auto"
    """Own spare nodes: `auto` says how many pay and counts no wait for repairs; a number plans that wait."""
    repair_days: float = 3.0
    """Days until a failed node of one's own is back. Judgement."""


def check_risk(risk: RiskSettings) -> Iterator[Problem]:
    """Values of `risk:` outside their range."""
    ranges = [
        ("failures_per_node_day", NOT_NEGATIVE),
        ("restart", NOT_NEGATIVE),
        ("save_bandwidth", POSITIVE),
        ("notice", NOT_NEGATIVE),
        ("spot_mean_up", POSITIVE),
        ("spot_availability", SHARE_ABOVE_ZERO),
        ("repair_days", POSITIVE),
    ]
    yield from check_ranges(risk, "risk", ranges)
    if isinstance(risk.spares, int) and not 0 <= risk.spares <= 100_000:
        yield Problem(message=f"must be auto or from 0 to 100,000; found {risk.spares}", path="risk.spares")
