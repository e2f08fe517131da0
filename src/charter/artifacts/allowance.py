"""Allowance of a stage: the most that its calls to servers may have cost in all. A run says it, pools keep to it."""

from pathlib import Path

from charter.artifacts import durable
from charter.errors import DataError

ALLOWANCE = "allowance.json"


def allow(directory: Path, micro_usd: int | None) -> None:
    """Write what all calls of a stage may have cost at most; None takes the bound away."""
    durable.write_hint(directory / ALLOWANCE, {"micro_usd": micro_usd})


def allowance(directory: Path) -> int | None:
    """Read what all calls of a stage may have cost at most; None where no budget bounds them."""
    try:
        content = durable.read_json(directory / ALLOWANCE)
    except DataError:
        return None
    micro_usd = content.get("micro_usd") if isinstance(content, dict) else None
    return micro_usd if isinstance(micro_usd, int) else None
