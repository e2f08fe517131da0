"""What is measured beside the metrics of stages, and what counts as idle: `metering:` and `idle:` of `charter.yaml`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import Count, Seconds

FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}
LEAST_EVERY_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Metering:
    """Sampling of processors, memory, disks, network and accelerators on every node of a run."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    every: Seconds = 10.0
    """Time between two samples; 0 samples nothing."""
    prometheus_port: Count | None = None
    """Serve the last sample of this machine at `http://127.0.0.1:PORT/metrics` while a run lasts."""
    power_usage_effectiveness: float = 1.0
    """What the data centre draws over what the machines draw; multiplies the energy that is reported."""


@dataclass(frozen=True, kw_only=True)
class IdlePolicy:
    """When an allocation counts as idle, and what happens then."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    window: Seconds = 1800.0
    """No progress for so long, and accelerators below `utilisation`, or no process at all, is idle."""
    utilisation: float = 0.05
    """Share of the time in which an accelerator did anything (SM activity), over all of an attempt's accelerators."""
    action: Literal["warn", "release"] = "warn"
    """`release`: the stage is asked to stop at a checkpoint and its machines are given back."""


def check_metering(metering: Metering) -> Iterator[Problem]:
    """Values of `metering:` outside their range."""
    if metering.every < 0 or 0 < metering.every < LEAST_EVERY_SECONDS:
        message = f"must be 0 (off) or at least {LEAST_EVERY_SECONDS:g} s; found {metering.every:g}"
        yield Problem(message=message, path="metering.every")
    if metering.prometheus_port is not None and not 0 <= metering.prometheus_port < 65536:
        message = f"must be from 0 (any free one) to 65535; found {metering.prometheus_port}"
        yield Problem(message=message, path="metering.prometheus_port")
    if not 1.0 <= metering.power_usage_effectiveness <= 10.0:
        message = f"must be from 1 to 10; found {metering.power_usage_effectiveness:g}"
        yield Problem(message=message, path="metering.power_usage_effectiveness")
