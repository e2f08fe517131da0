"""Processes of this machine and of a run, as tests look at them."""

from pathlib import Path

from charter.artifacts.lease import read_holder


def state_of(pid: int) -> str:
    """As the kernel calls it: T for a process that is frozen; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def stage_pids(project: Path) -> list[int]:
    """The living processes that hold a stage of a project."""
    found = []
    for lease in (project / "run" / "stages").glob("*/lease.json"):
        holder = read_holder(lease)
        found += [holder.pid] if holder is not None and holder.is_alive else []
    return found
