"""Keeps one job of the scheduler `subprocess`: `python -m charter.launch.subprocess_keeper DIRECTORY`.

It waits for free accelerators, starts the job's agents (one per node, or the tasks of an array, some at a time), and
writes down how they end. SIGTERM cancels the job; SIGUSR1 preempts it: it is stopped at a checkpoint and started again.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

from charter.artifacts import durable
from charter.artifacts.lease import this_process
from charter.launch.job import ENGINE_JOB, NODE_RANK, RESTART, SHARD, StageJob
from charter.launch.machine import visible_gpus
from charter.launch.scheduler import (
    JOB,
    KEEPER,
    LOCKS,
    STATE,
    Cause,
    JobAttempt,
    JobState,
    job_from_json,
    state_to_json,
)
from charter.plan.machine import usable_cores


class DeviceLocks:
    """Accelerators of this machine that are held by a lock each, until they are given back or their holder ends."""

    def __init__(self, names: Sequence[str], locks: Sequence[Any]) -> None:
        self.names, self._locks = tuple(names), list(locks)

    @property
    def visible(self) -> str:
        """As CUDA wants to be told."""
        return ",".join(self.names)

    def give_back(self) -> None:
        """Let others have them."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()


def take_devices(wanted: int, locks: Path) -> DeviceLocks | None:
    """So many accelerators of this machine, or None while they are not free; what does not exist is not waited for."""
    from filelock import FileLock, Timeout

    here = visible_gpus()
    wanted = min(wanted, len(here))
    file_locks: list[Any] = []
    names: list[str] = []
    durable.make_dir(locks)
    for name in here:
        if len(names) == wanted:
            break
        # A part of a GPU may have a name with slashes (MIG-GPU-.../1/0).
        lock = FileLock(locks / f"gpu-{quote(name, safe='')}.lock", timeout=0, is_singleton=False, thread_local=False)
        with contextlib.suppress(Timeout):
            lock.acquire()
            file_locks.append(lock)
            names.append(name)
    devices = DeviceLocks(names, file_locks)
    if len(names) < wanted:
        devices.give_back()
        return None
    return devices


LOOK_SECONDS = 0.05
GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL of a job that is cancelled or preempted."""
WAIT_SECONDS = 0.5
"""Between two looks for free accelerators."""


def main() -> None:
    """Keep the job of a directory until it has ended."""
    directory = Path(sys.argv[1])
    job = job_from_json(durable.read_json(directory / JOB))
    SubprocessKeeper(directory, job).run()


@dataclass(kw_only=True)
class Running:
    """One agent that runs."""

    place: int
    restart: int
    process: "subprocess.Popen[bytes]"
    devices: DeviceLocks
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    """The same by a clock that nobody sets, which limits are counted by."""
    stopped: float | None = None
    """By that clock: when it was asked to stop."""
    why: Cause = ""
    """Why it was asked to stop."""


class SubprocessKeeper:
    """One job, from its submission to its end."""

    def __init__(self, directory: Path, job: StageJob) -> None:
        self._directory, self._job = directory, job
        self._apart = job.shards > 1
        self._places = [*range(job.shards if self._apart else job.nodes + job.spare_nodes)]
        self._waiting = list(self._places)
        self._restarts = dict.fromkeys(self._places, 0)
        self._running: dict[int, Running] = {}
        self._codes: dict[int, int] = {}
        self._cause: Cause = ""
        self._attempts: list[JobAttempt] = []
        self._cancelled = self._preempted = False
        self._written: object = None
        signal.signal(signal.SIGTERM, self._cancel)
        signal.signal(signal.SIGUSR1, self._preempt)

    def run(self) -> None:
        """Start what waits, watch what runs, until all has ended."""
        self._write()
        durable.write_hint(self._directory / KEEPER, asdict(this_process()))
        looked = float("-inf")
        while self._waiting or self._running:
            if self._cancelled:
                self._waiting.clear()
                self._stop_all("cancelled")
            elif self._preempted:
                self._preempted = False
                self._stop_all("preempted")
            if self._waiting and time.monotonic() - looked >= WAIT_SECONDS:
                looked = float("-inf") if self._start_some() else time.monotonic()
            self._look()
            self._write()
            time.sleep(LOOK_SECONDS)
        self._write()

    @property
    def _slots(self) -> int:
        """Return the number of agents that may run at a time: all nodes of a job, of an array as many as have cores."""
        return max(1, usable_cores() // max(1, self._job.cpus_per_node)) if self._apart else len(self._places)

    def _start_some(self) -> bool:
        """Start what there is room for; whether anything was started."""
        if not self._apart and self._running:
            return False
        ready = self._waiting[: max(0, self._slots - len(self._running))]
        taken = []
        for _ in ready:
            devices = take_devices(self._job.accelerators_per_node, self._directory.parent / LOCKS)
            if devices is None:
                break
            taken.append(devices)
        if not self._apart and len(taken) < len(ready):
            for devices in taken:
                devices.give_back()
            return False
        for place, devices in zip(ready, taken, strict=False):
            self._waiting.remove(place)
            self._running[place] = self._start(place, devices)
        return bool(taken)

    def _start(self, place: int, devices: DeviceLocks) -> Running:
        own = {
            SHARD if self._apart else NODE_RANK: str(place),
            RESTART: str(self._restarts[place]),
            ENGINE_JOB: self._directory.name,
        }
        own |= {"CUDA_VISIBLE_DEVICES": devices.visible} if devices.names else {}
        durable.make_dir(self._job.log.parent)
        with self._job.log.open("ab") as log:
            process = subprocess.Popen(
                self._job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._job.directory,
                env={**os.environ, **self._job.environment, **own},
                start_new_session=True,
            )
        self._codes.pop(place, None)
        return Running(place=place, restart=self._restarts[place], process=process, devices=devices)

    def _look(self) -> None:
        now = time.monotonic()
        for running in [*self._running.values()]:
            code = running.process.poll()
            if code is not None:
                self._take_end(running, code, time.time())
                continue
            limit = self._job.time_limit_seconds
            if limit is not None and now - running.began > limit:
                running.why = running.why or "time_limit"
                self._kill(running)
            elif running.stopped is not None and now - running.stopped > GRACE_SECONDS:
                self._kill(running)

    def _take_end(self, running: Running, code: int, now: float) -> None:
        running.devices.give_back()
        del self._running[running.place]
        again = running.why == "preempted" and not self._cancelled
        word = {"": "COMPLETED" if code == 0 else "FAILED"}.get(running.why, running.why.upper())
        self._attempts.append(
            JobAttempt(
                job_id=self._directory.name,
                shard=running.place if self._apart else None,
                restart=running.restart,
                state=word,
                started_at=running.started_at,
                ended_at=now,
                nodes=(socket.gethostname(),),
                accelerators=len(running.devices.names),
                cpus=self._job.cpus_per_node,
            )
        )
        self._cause = running.why or self._cause
        if again:
            self._restarts[running.place] += 1
            self._waiting.append(running.place)
            return
        self._codes[running.place] = -(code - 128) if code > 128 else code
        if code and not self._apart:
            self._stop_all(running.why or "failed")

    def _stop_all(self, why: Cause) -> None:
        for running in self._running.values():
            if running.stopped is None:
                running.stopped, running.why = time.monotonic(), why
                with contextlib.suppress(ProcessLookupError):
                    running.process.terminate()

    def _kill(self, running: Running) -> None:
        """End an agent; its processes end with it, since they asked the kernel for that."""
        with contextlib.suppress(ProcessLookupError):
            running.process.kill()

    def _state(self) -> JobState:
        tasks = {place: self._of_place(place) for place in self._places} if self._apart else None
        restarts = max(self._restarts.values())
        nodes = (socket.gethostname(),) * (1 if self._apart else len(self._places))
        if self._running:
            return JobState(phase="running", restarts=restarts, nodes=nodes, cause=self._cause, tasks=tasks)
        if self._waiting:
            return JobState(phase="queued", restarts=restarts, cause=self._cause, reason="Resources", tasks=tasks)
        bad = next((code for _, code in sorted(self._codes.items()) if code), 0)
        cause: Cause = "cancelled" if self._cancelled else ("done" if not bad else self._cause or "failed")
        exit_code = bad if self._codes else None
        word = cause.upper()
        return JobState(
            phase="ended", cause=cause, exit_code=exit_code, restarts=restarts, nodes=nodes, reason=word, tasks=tasks
        )

    def _of_place(self, place: int) -> JobState:
        restarts = self._restarts[place]
        if place in self._running:
            return JobState(phase="running", restarts=restarts)
        if place in self._waiting:
            return JobState(phase="queued", restarts=restarts)
        code = self._codes.get(place)
        cause: Cause = "cancelled" if code is None else "failed" if code else "done"
        return JobState(phase="ended", cause=cause, exit_code=code, restarts=restarts)

    def _write(self) -> None:
        state = {"state": state_to_json(self._state()), "attempts": [asdict(attempt) for attempt in self._all()]}
        if state != self._written:
            durable.write_hint(self._directory / STATE, state)
            self._written = state

    def _all(self) -> Iterator[JobAttempt]:
        """All starts, oldest first; one that runs has no end."""
        yield from self._attempts
        for running in self._running.values():
            yield JobAttempt(
                job_id=self._directory.name,
                shard=running.place if self._apart else None,
                restart=running.restart,
                state="RUNNING",
                started_at=running.started_at,
                ended_at=None,
                nodes=(socket.gethostname(),),
                accelerators=len(running.devices.names),
                cpus=self._job.cpus_per_node,
            )

    def _cancel(self, number: int, frame: FrameType | None) -> None:
        self._cancelled = True

    def _preempt(self, number: int, frame: FrameType | None) -> None:
        self._preempted = True


if __name__ == "__main__":
    main()
