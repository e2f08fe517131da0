"""Few processes for many pages: the same question is computed once, and given up when nobody waits for it."""

import json
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

# -------- Few processes for many pages: the same question is computed once, and given up when nobody waits for it.


Json = Mapping[str, Any]


# -------- One child process, seen from the server: asked one thing at a time, killed when nobody waits any more.


class Stopped(Exception):
    """The process was killed, or ended by itself, before it had answered."""


class Child:
    """Started with the first question, and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, job: str, arguments: Json, hear: Callable[[Json], None]) -> Json:
        """The last line of the answer; `hear` gets those before it. Stopped when the process is gone."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"job": job, "arguments": arguments}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer: Json = json.loads(line)
                if "progress" not in answer:
                    return answer
                hear(answer["progress"])
        except (OSError, ValueError):
            pass
        self.kill()
        raise Stopped

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    _close(stream)

    def _running(self) -> "subprocess.Popen[str]":
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "charter.dashboard.work.child"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    encoding="utf-8",
                    start_new_session=True,
                )
            return self._process


def _close(stream: Any) -> None:
    with suppress(OSError):  # what was still to be written has nobody to read it
        stream.close()


LANES: Mapping[str, tuple[str, ...]] = {"plans": ("plan",), "files": ("count", "find", "compare", "accuracy", "sweeps")}
"""Which jobs share processes: a plan never waits for a large file."""
PER_LANE = 2
KEPT_ANSWERS = 128
IDLE_SECONDS = 300.0
"""A process that nobody asks for so long is ended."""
ERROR_SECONDS = 10.0
"""How long an error is the answer: what it speaks of, say a server that is away, may be mended and no file changes."""
LONGEST_SECONDS = 1800.0


@dataclass
class JobRequest:
    """One question on its way."""

    job: str
    arguments: Json
    key: Hashable
    answer: "Future[Json]" = field(default_factory=Future)
    progress: dict[str, Any] = field(default_factory=dict)
    """What the process has said so far."""
    waiting: int = 0
    """How many wait for it."""
    child: Child | None = None
    """The process that works on it."""
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """An answer, and when it was given by the monotonic clock."""

    answer: Json
    at: float


class Workers:
    """Answers questions in child processes. Thread-safe; nothing is started before the first question."""

    def __init__(self, per_lane: int = PER_LANE, *, child: Callable[[], Child] = Child) -> None:
        self._per_lane, self._child = per_lane, child
        self._lock = threading.Lock()
        self._asked: dict[Hashable, JobRequest] = {}
        self._answers: OrderedDict[Hashable, StoredAnswer] = OrderedDict()
        self._queues: dict[str, SimpleQueue[JobRequest | None]] = {lane: SimpleQueue() for lane in LANES}
        self._threads: dict[str, list[threading.Thread]] = {lane: [] for lane in LANES}
        self._children: set[Child] = set()
        self._closed = False

    def known(self, job: str, arguments: Json, state: Hashable) -> Json | None:
        """The answer, where it is there already; `state` says of which files, so that a change asks anew."""
        with self._lock:
            return self._kept(_key(job, arguments, state))

    def ask(self, job: str, arguments: Json, state: Hashable) -> JobRequest:
        """Ask, or join those who have asked the same. Every caller must `leave` in the end."""
        key = _key(job, arguments, state)
        with self._lock:
            request = self._asked.get(key)
            if request is None:
                request = JobRequest(job=job, arguments=arguments, key=key)
                if (answer := self._kept(key)) is not None:
                    request.answer.set_result(answer)
                elif self._closed:
                    request.answer.set_result({"error": "the dashboard is ending"})
                else:
                    self._asked[key] = request
                    self._start(request)
            request.waiting += 1
            return request

    def _kept(self, key: Hashable) -> Json | None:
        """An answer that still holds; for whoever has the lock."""
        answer = self._answers.get(key)
        if answer is None or ("error" in answer.answer and time.monotonic() - answer.at > ERROR_SECONDS):
            return None
        return answer.answer

    def leave(self, asked: JobRequest, *, linger_seconds: float = 0.0) -> None:
        """No longer wait for an answer; the last one to leave ends the work on it, unless somebody soon asks again."""
        if linger_seconds and not asked.answer.done():
            later = threading.Timer(linger_seconds, self.leave, (asked,))
            later.daemon = True
            later.start()
            return
        with self._lock:
            asked.waiting -= 1
            given_up = asked.waiting <= 0 and not asked.answer.done() and self._asked.pop(asked.key, None) is asked
            child = asked.child if given_up else None
            if given_up:
                asked.answer.cancel()
        if child is not None:
            child.kill()

    def wait(self, job: str, arguments: Json, state: Hashable, *, seconds: float = LONGEST_SECONDS) -> Json:
        """The answer, waited for; an error in its place after `seconds`."""
        request = self.ask(job, arguments, state)
        try:
            return request.answer.result(timeout=seconds)
        except TimeoutError:
            return {"error": f"no answer within {seconds:.0f} s"}
        finally:
            self.leave(request)

    def close(self) -> None:
        """End all processes and threads."""
        with self._lock:
            self._closed = True
            children, threads = (
                list(self._children),
                [item for lane_threads in self._threads.values() for item in lane_threads],
            )
            waiting, self._asked = list(self._asked.values()), {}
        for lane, queue in self._queues.items():
            for _ in self._threads[lane]:
                queue.put(None)
        for request in waiting:
            request.answer.cancel()
        for child in children:
            child.kill()
        for thread in threads:
            thread.join(timeout=5)

    def _start(self, asked: JobRequest) -> None:
        lane = next(name for name, jobs in LANES.items() if asked.job in jobs)
        alive = [thread for thread in self._threads[lane] if thread.is_alive()]
        if len(alive) < self._per_lane:
            alive.append(threading.Thread(target=self._serve, args=(lane,), daemon=True, name=f"charter-{lane}"))
            alive[-1].start()
        self._threads[lane] = alive
        self._queues[lane].put(asked)

    def _serve(self, lane: str) -> None:
        child = self._child()
        with self._lock:
            self._children.add(child)
        try:
            while True:
                try:
                    request = self._queues[lane].get(timeout=IDLE_SECONDS)
                except Empty:
                    child.kill()
                    continue
                if request is None:
                    return
                self._answer(child, request)
        finally:
            child.kill()
            with self._lock:
                self._children.discard(child)

    def _answer(self, child: Child, asked: JobRequest) -> None:
        with self._lock:
            if asked.answer.cancelled():
                return
            asked.child = child
        answer = self._asked_twice(child, asked)
        with self._lock:
            asked.child = None
            self._asked.pop(asked.key, None)
            if asked.answer.cancelled():
                return
            if "stopped" not in answer:
                self._answers[asked.key] = StoredAnswer(answer=answer, at=time.monotonic())
                while len(self._answers) > KEPT_ANSWERS:
                    self._answers.popitem(last=False)
            asked.answer.set_result(answer)

    @staticmethod
    def _asked_twice(child: Child, asked: JobRequest) -> Json:
        """Once more where the process was killed: for want of memory, or for a question just given up before this."""
        for _ in range(2):
            try:
                return child.ask(asked.job, asked.arguments, asked.progress.update)
            except Stopped:
                if asked.answer.cancelled():
                    break
        return {"error": "the process that worked on it was killed, twice; memory may be short", "stopped": True}


def _key(job: str, arguments: Json, state: Hashable) -> Hashable:
    return job, json.dumps(arguments, sort_keys=True), state
