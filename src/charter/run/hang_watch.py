"""Detection of hangs: no sign of life for much longer than a stage's own pace explains. Pure but for its reader.

Time is counted by looks of the supervisor, each worth two seconds at most: while the machine sleeps, or the
supervisor itself is frozen with its stages, no time passes here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts.group import Sign, read_sign
from charter.artifacts.stage_dir import METRICS

LOOK_EVERY_SECONDS = 0.25
LONGEST_LOOK_SECONDS = 2.0
SECONDS_PER_PROCESS = 0.01
START_SECONDS = 600.0
"""Loading, compiling and the first step, saving and publishing may take so long without a sign of life."""
LEAST_SECONDS = 60.0
"""A stage of quick steps is given at least so long."""
GAPS = 10.0
"""A sign is overdue after so many times the longest time between two signs so far."""
PARTS_BEFORE_PACE = 2
"""The second beginning of a step says that the first step is done; before that there is no pace."""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A stage that gave no sign of life for too long."""

    rank: int
    silent_seconds: float
    deadline_seconds: float
    what: str
    """What that process was at, by its last sign."""

    def words(self, processes: int) -> str:
        """Return the hang in words."""
        who = f"process {self.rank} of {processes}" if processes > 1 else "its process"
        at = f" (last at {self.what})" if self.what else ""
        return (
            f"hung: {who} gave no sign of life for {self.silent_seconds:.3g} s{at}, allowed are "
            f"{self.deadline_seconds:.3g} s (hang_timeout); where it stood is in the logs of its processes"
        )


@dataclass
class _Rank:
    """Last sign of life of one process."""

    sign: tuple[Sign | None, int]
    changed_at: float
    worked: bool = False


class HangWatch:
    """Watches the processes of one attempt."""

    def __init__(self, *, limit_seconds: float | None, least_seconds: float = LEAST_SECONDS) -> None:
        self._limit_seconds = limit_seconds
        self._least_seconds = least_seconds
        self._clock = 0.0
        self._looked_at: float | None = None
        self._longest_gap = 0.0
        self._ranks: dict[int, _Rank] = {}

    def is_due(self, now: float, processes: int = 1) -> bool:
        """Return True if it is time to look again; `now` is monotonic. Many processes are looked at less often."""
        every = min(LONGEST_LOOK_SECONDS, max(LOOK_EVERY_SECONDS, SECONDS_PER_PROCESS * processes))
        return self._looked_at is None or now - self._looked_at >= every

    def look(self, now: float, signs: Mapping[int, tuple[Sign | None, int]]) -> Hang | None:
        """Take in the last sign of every process, and say whether one is overdue."""
        if not signs:
            self._looked_at = None
            return None
        if self._looked_at is not None:
            self._clock += min(max(0.0, now - self._looked_at), LONGEST_LOOK_SECONDS)
        self._looked_at = now
        for rank, sign in signs.items():
            self._take(rank, sign)
        deadline = self.deadline_seconds
        started = {rank: state for rank, state in self._ranks.items() if rank == 0 or state.sign[0] is not None}
        watched = {rank: state for rank, state in started.items() if rank in signs}
        if not watched:
            return None
        rank, state = min(watched.items(), key=lambda item: item[1].changed_at)
        silent = self._clock - state.changed_at
        if silent <= deadline:
            return None
        what = state.sign[0].what if state.sign[0] else ""
        return Hang(rank=rank, silent_seconds=silent, deadline_seconds=deadline, what=what)

    @property
    def deadline_seconds(self) -> float:
        """Return the seconds for which the stage may be silent now; processes wait for the slowest of them."""
        signs = [state.sign[0] for state in self._ranks.values()]
        has_pace = any(sign is not None and sign.parts >= PARTS_BEFORE_PACE for sign in signs)
        slow = not has_pace or any(sign is not None and sign.is_slow for sign in signs)
        own = self._limit_seconds or max(self._least_seconds, GAPS * self._longest_gap)
        return max(START_SECONDS, own) if slow else own

    def _take(self, rank: int, sign: tuple[Sign | None, int]) -> None:
        state = self._ranks.setdefault(rank, _Rank(sign=sign, changed_at=self._clock))
        if sign == state.sign:
            return
        works = sign[0] is not None and not sign[0].is_slow
        if works and state.worked:
            self._longest_gap = max(self._longest_gap, self._clock - state.changed_at)
        state.sign, state.changed_at, state.worked = sign, self._clock, works


def read_signs(stage_dir: Path, ranks: Iterable[int]) -> dict[int, tuple[Sign | None, int]]:
    """The last signs of life of processes of a stage; a line of metrics is one of rank 0."""
    try:
        metrics = (stage_dir / METRICS).stat().st_size
    except OSError:
        metrics = 0
    return {rank: (read_sign(stage_dir, rank), metrics if rank == 0 else 0) for rank in ranks}


def oom_kills(root: Path = Path("/")) -> int:
    """Return the number of processes killed for memory in this process's control group (v2 or v1).

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
    entries = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return next((path for _, kinds, path in entries if kind in kinds.split(",") and (kind or not kinds)), "")
