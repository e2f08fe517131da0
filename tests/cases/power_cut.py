"""Waits until all that a killed run has left behind has ended.

A fault that ends in `:all` kills the supervisor first and the stage last, as it must: who kills cannot be dead. Whoever
waits for the supervisor alone looks too early, and may still find the stage at work.
"""

from collections.abc import Mapping
from pathlib import Path

from charter.artifacts.lease import LEASE, ends_within, read_holder

MEMBERS = "member-*.json"
"""Of the processes beside rank 0."""
HANGS_AFTER_SECONDS = 120.0


def is_power_cut(environment: Mapping[str, str]) -> bool:
    """Whether a run with these variables is killed with all its processes."""
    return environment.get("CHARTER_KILL", "").endswith(":all")


def wait_until_all_ended(root: Path) -> None:
    """Wait for the end of every process that has named itself as one of a stage, whoever it belonged to."""
    stages = root / "run" / "stages"
    for path in [*stages.glob(f"*/{LEASE}"), *stages.glob(f"*/{MEMBERS}")]:
        holder = read_holder(path)
        assert holder is None or ends_within(holder, HANGS_AFTER_SECONDS), f"{holder} still works in {path.parent}"
