"""A node agent at work: it waits for its processes, hears what is asked of it, and tells how they ended."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT
from charter.launch.agent_task import Task
from charter.launch.group import CAUSE_SECONDS, GroupHandle
from charter.launch.job_files import Control, Failure, JobFiles, StoppedBy
from charter.launch.node_processes import NodeProcesses

LOOK_SECONDS = 0.05
ASK_SECONDS = 0.5
"""How often the files of the job are looked at; on a shared disk every look is a request."""
CLEAN = (0, INTERRUPTED_EXIT)
ASKED_EARLY = -int(signal.SIGTERM)
"""Of a process that was asked to stop while it started, before it could hear."""


class StopRequest:
    """Remembers SIGTERM, and SIGUSR1 as a wish for stacks."""

    def __init__(self) -> None:
        self.wanted = False
        self.dumps = 0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGUSR1, self._dump)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True

    def _dump(self, number: int, frame: FrameType | None) -> None:
        self.dumps += 1


class NodeWatch:
    """One start on one node, from its first process to its last."""

    def __init__(
        self,
        task: Task,
        files: JobFiles,
        processes: NodeProcesses,
        stop: StopRequest,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._files, self._processes, self._stop = task, files, processes, stop
        self._sleep, self._clock = sleep, clock
        self._parent = os.getppid()
        self._stopped_by: StoppedBy = ""
        self._control = Control()
        self._dumps = 0
        self._started = self._asked_at = clock()

    def run(self) -> int:
        """Start the processes and wait for their end; returns their exit code, minus the number of a signal."""
        if self._files.asked().stop or self._stop.wanted:
            return self._end(INTERRUPTED_EXIT, 0, "signal" if self._stop.wanted else "supervisor")
        group = self._processes.start()
        self._files.tell(self._processes.record)
        while (code := group.poll()) is None:
            self._heed(group)
            self._sleep(LOOK_SECONDS)
        return self._ended(code, group.failed_rank)

    def _heed(self, group: GroupHandle) -> None:
        """Do what is asked of this node, by signals, by the clock and by the files of the job."""
        if self._stop.wanted:
            self._ask_to_stop(group, "signal")
        if self._stop.dumps != self._dumps:
            self._dumps = self._stop.dumps
            group.dump_stacks()
        now = self._clock()
        limit = self._task.time_limit_seconds
        if limit is not None and now - self._started >= max(0.0, limit - self._task.stop_before_seconds):
            self._ask_to_stop(group, "time_limit")
        if now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        if self._processes.seen(group.pid):
            self._files.tell(self._processes.record)
        if self._task.with_parent and os.getppid() != self._parent:
            self._kill(group, "parent")
        restart = self._processes.record.restart
        if self._task.nodes > 1 and self._files.failed(restart).exists():
            self._kill(group, "peer")
        asked = self._files.asked()
        if asked.kill:
            self._kill(group, "supervisor")
        if asked.stop:
            self._ask_to_stop(group, "supervisor")
        if asked.dumps != self._control.dumps:
            group.dump_stacks()
        self._control = asked

    def _ask_to_stop(self, group: GroupHandle, by: StoppedBy) -> None:
        if not self._stopped_by:
            self._stopped_by = by
            group.stop()

    def _kill(self, group: GroupHandle, by: StoppedBy) -> None:
        self._stopped_by = by
        group.kill()

    def _ended(self, code: int, failed: int) -> int:
        """Tell the other nodes of a failure that is this node's own, and everybody how it ended."""
        record = self._processes.record
        rank = record.first_rank + failed
        if code == ASKED_EARLY and self._stopped_by and self._task.nodes == 1:
            # It has done nothing yet that could be lost. Beside other nodes it is a failure, which they must hear of.
            code = INTERRUPTED_EXIT
        if self._task.nodes > 1 and code not in CLEAN and self._stopped_by not in ("peer", "supervisor", "parent"):
            waited = 0.0
            while code == PEER_EXIT and waited < CAUSE_SECONDS and not self._files.failed(record.restart).exists():
                self._sleep(ASK_SECONDS)
                waited += ASK_SECONDS
            self._files.fail(record.restart, Failure(exit_code=code, rank=rank, host=record.host))
        return self._end(code, rank, self._stopped_by)

    def _end(self, code: int, rank: int, by: StoppedBy) -> int:
        record = replace(self._processes.record, ended_at=time.time(), exit_code=code, failed_rank=rank, stopped_by=by)
        self._files.tell(record)
        return code
