"""Allowance of a stage: the most that its calls to servers may have cost in all. A run says it, pools keep to it.

What a run says has a number, and pools say which number they keep to. Until they have, the highest bound since then
counts: what is taken from one stage is given to no other before it has let go of it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.stage_state import read_json_or_empty

ALLOWANCE = "allowance.json"
_TAKEN = "allowance-taken-{rank}.json"


@dataclass(frozen=True, kw_only=True)
class CallAllowance:
    """Bound of what all calls of a stage may have cost."""

    micro_usd: int | None = None
    """None where no budget bounds them."""
    number: int = 0
    limit: str = ""
    """The limit that leaves no more, as charter.yaml calls it: `budget.owners.ann`."""


@dataclass(frozen=True, kw_only=True)
class TakenAllowance:
    """Bound that the processes of a stage keep to."""

    number: int
    claimed_micro_usd: int
    """Spent and in flight, at its most, when they took it."""


def allow(directory: Path, allowed: CallAllowance) -> None:
    """Write what all calls of a stage may have cost at most."""
    durable.write_hint(directory / ALLOWANCE, asdict(allowed))


def allowance(directory: Path) -> CallAllowance:
    """Read what all calls of a stage may have cost at most."""
    content = read_json_or_empty(directory / ALLOWANCE)
    micro_usd, number = content.get("micro_usd"), content.get("number")
    return CallAllowance(
        micro_usd=micro_usd if isinstance(micro_usd, int) else None,
        number=number if isinstance(number, int) else 0,
        limit=str(content.get("limit") or ""),
    )


def take(directory: Path, *, rank: int, processes: int, number: int, before: int, own: int) -> None:
    """Say that this process keeps to a number: what the stage had cost before it began, and its own, in micro-USD."""
    content = {"number": number, "processes": processes, "before_micro_usd": before, "own_micro_usd": own}
    durable.write_hint(directory / _TAKEN.format(rank=rank), content)


def taken(directory: Path) -> TakenAllowance | None:
    """Return what all processes of a stage keep to; None while one of them has not said so."""
    said = [read_json_or_empty(path) for path in sorted(directory.glob(_TAKEN.format(rank="*")))]
    try:
        if not said or len(said) < max(int(item["processes"]) for item in said):
            return None
        return TakenAllowance(
            number=min(int(item["number"]) for item in said),
            claimed_micro_usd=min(int(item["before_micro_usd"]) for item in said)
            + sum(int(item["own_micro_usd"]) for item in said),
        )
    except (KeyError, TypeError, ValueError):
        return None


def forget_taken(directory: Path) -> None:
    """Forget what earlier processes kept to, which have ended."""
    for path in directory.glob(_TAKEN.format(rank="*")):
        path.unlink(missing_ok=True)
