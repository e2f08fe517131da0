"""The processes of one stage as one: they end together, and the first cause is what counts."""

import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from charter.artifacts import faults
from charter.artifacts.group import rank_environment
from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT
from charter.launch.launcher import ProcessHandle, StageStart

GRACE_SECONDS = 0.3
"""After a process failed, the others may say what they have to say; they are waiting for it in a collective."""
CAUSE_SECONDS = 5.0
"""A process that lost another one says nothing about why: so long the cause itself is waited for."""
_CLEAN = (0, INTERRUPTED_EXIT)


def rank_environments(request: StageStart) -> Iterator[dict[str, str]]:
    """The environment of every process of a stage; the name of the group is new at every start."""
    group = f"{request.attempt}-{secrets.token_hex(6)}"
    for rank in range(request.processes):
        place = rank_environment(rank, processes=request.processes, group=group)
        yield {**request.environment, faults.ATTEMPT: str(request.attempt), **place}


class GroupHandle:
    """All processes of a stage; when one fails, the others are ended."""

    def __init__(
        self,
        members: Sequence[ProcessHandle],
        *,
        clock: Callable[[], float] = time.monotonic,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._members = tuple(members)
        self._at_end: Callable[[], None] | None = at_end
        self._clock = clock
        self._codes: list[int | None] = [None] * len(self._members)
        self._cause: tuple[int, int] | None = None
        """Rank and exit code of the process that failed first."""
        self._noticed_at = 0.0
        self._ended_the_rest = False

    @property
    def pid(self) -> int | None:
        """Process id of rank 0."""
        return self._members[0].pid

    @property
    def processes(self) -> int:
        """Return the number of its processes."""
        return len(self._members)

    @property
    def failed_rank(self) -> int:
        """The process that failed first."""
        return self._cause[0] if self._cause else 0

    @property
    def job(self) -> None:
        """They are processes of this machine."""

    @property
    def where(self) -> str:
        """Here."""
        return ""

    @property
    def waits(self) -> bool:
        """They start at once."""
        return False

    @property
    def cause(self) -> str:
        """Nobody ends them but this machine."""
        return ""

    @property
    def note(self) -> str:
        """Nothing to add."""
        return ""

    @property
    def watched(self) -> Sequence[int]:
        """All of them."""
        return range(len(self._members))

    def poll(self) -> int | None:
        """The exit code of the group, None while any process runs."""
        before = list(self._codes)
        self._codes = [member.poll() for member in self._members]
        self._notice([rank for rank, code in enumerate(before) if code is None and self._codes[rank] is not None])
        if None in self._codes:
            self._end_the_rest()
            return None
        if self._at_end is not None:
            self._at_end()
            self._at_end = None
        if self._cause is not None:
            return self._cause[1]
        return next((code for code in self._codes if code), 0)

    def stop(self) -> None:
        """SIGTERM to all."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all."""
        self._send(signal.SIGKILL)

    def dump_stacks(self) -> None:
        """SIGUSR1 to all."""
        self._send(signal.SIGUSR1)

    def _send(self, number: signal.Signals) -> None:
        for member, code in zip(self._members, self._codes, strict=True):
            if code is None:
                member.send(number)

    def _notice(self, ended: Sequence[int]) -> None:
        """Remember the first cause; of several that are seen at once, the one that cannot be the effect of another."""
        failed = [(rank, code) for rank in ended if (code := self._codes[rank]) is not None and code not in _CLEAN]
        if not failed or self._ended_the_rest:
            return
        best = min(failed, key=lambda item: (item[1] == PEER_EXIT, item[1] >= 0, item[0]))
        if self._cause is None or self._cause[1] == PEER_EXIT != best[1]:
            self._cause, self._noticed_at = best, self._clock()

    def _end_the_rest(self) -> None:
        if self._cause is None or self._ended_the_rest:
            return
        wait = CAUSE_SECONDS if self._cause[1] == PEER_EXIT else GRACE_SECONDS
        if self._clock() - self._noticed_at >= wait:
            self._ended_the_rest = True
            self.kill()
