"""Whether the kernel kills processes for memory: the counters of this control group, or of the whole machine."""

from collections.abc import Iterator
from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes the kernel has killed for memory in this process's control group (v2 or v1).

    The group's counter also has the victims that it lost when the whole machine ran out. Where no group counts, it is
    the machine's counter.
    """
    for path in _counters(root):
        try:
            lines = path.read_text(encoding="ascii", errors="replace").split("\n")
        except OSError:
            continue
        for name, _, count in (line.partition(" ") for line in lines):
            if name == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return 0


def _counters(root: Path) -> Iterator[Path]:
    """The files to look into, the nearest first; a container often sees its own group as the root."""
    mounts = {"": "sys/fs/cgroup", "memory": "sys/fs/cgroup/memory"}
    names = {"": "memory.events", "memory": "memory.oom_control"}
    for kind in ("", "memory"):
        if group := _group(root, kind):
            yield root / mounts[kind] / group.lstrip("/") / names[kind]
        yield root / mounts[kind] / names[kind]
    yield root / "proc/vmstat"


def _group(root: Path, kind: str) -> str:
    """This process's control group of one kind (`/proc/self/cgroup`: number, kinds, path)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return next((path for _, kinds, path in found if kind in kinds.split(",") and (kind or not kinds)), "")
