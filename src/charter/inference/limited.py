"""Python that is not trusted to end, to be quiet or to be modest, in a process of its own with limits.

Both sides of the pipe: `serve` is what the process does, `LimitedProcess` starts it, asks, and ends it. The process
limits itself first, then answers requests, one line of JSON each. The first line that it reads says what to load and
the limits; it answers with what holds. What the code prints goes nowhere.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import resource
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from charter.data.sandbox import FORKS, no_processes
from charter.errors import StageError

START_SECONDS = 60.0
"""Longest time until a process has loaded its code."""
END_SECONDS = 5.0
"""Longest time for the end of a process that has closed its pipe, and for one that nobody ends at its time limit."""
FILE_BYTES = 64 * 2**20
"""Largest file that the code may write."""
OPEN_FILES = 256
"""Files that the code may have open."""
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
"""Flags of unshare(2): CLONE_NEWUSER, CLONE_NEWNET."""
MOST_THREADS = 64
"""Processes and threads of the code, itself counted, where its namespace counts them apart from the user's others."""
NOBODY = 65534
"""The real user of a process of root, whose processes the kernel counts by their real user, and root's not at all."""
NO_NEW_PRIVILEGES, SET_FILTER, FILTER = 38, 22, 2
"""Words of prctl(2): PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER."""
ERROR_CHARACTERS = 300

Request = Mapping[str, Any]
Service = Callable[[Request], dict[str, Any]]
"""Answers a request."""


@dataclass(frozen=True)
class Failed:
    """A call that gave no result, and why; never taken for a number."""

    reason: str


@dataclass(frozen=True)
class ProcessLimits:
    """Most that the code of a process may use."""

    timeout_seconds: float
    memory_bytes: int
    file_bytes: int
    open_files: int
    processes: int
    network: bool
    """True for code that asks a server."""
    sandboxes: bool
    """True for code that starts sandboxes for programs, which have limits of their own."""

    def hold(self) -> bool:
        """Hold this process to its limits; True if it also has no network (a namespace of its own, where allowed).

        In a namespace the code has at most `processes`; where none is allowed it has this one alone.
        """
        for name, most in (
            (resource.RLIMIT_AS, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_CORE, 0),
        ):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(name, (most, most))
        user, group = os.geteuid(), os.getegid()
        if user == 0:
            os.setresuid(NOBODY, -1, -1)
        if not _unshared(NEW_USER if self.network else NEW_USER | NEW_NETWORK):
            os.setresuid(user, -1, -1)
            if not self.sandboxes:
                _start_no_process()
            return False
        _keep_names(user, group)
        resource.setrlimit(resource.RLIMIT_NPROC, (self.processes, self.processes))
        return not self.network


def _unshared(flags: int) -> bool:
    """Move this process into namespaces of its own; False where it may not."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).unshare(flags) == 0)
    except (AttributeError, OSError):
        return False


def _start_no_process() -> None:
    """Let this process start threads and no process, where its system calls can be filtered."""
    if platform.machine() not in FORKS or not sys.platform.startswith("linux"):
        return
    rules = no_processes(platform.machine())
    content = ctypes.create_string_buffer(rules, len(rules))
    program = struct.pack("@HP", len(rules) // 8, ctypes.addressof(content))
    call = ctypes.CDLL(None, use_errno=True).prctl
    call(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(SET_FILTER, FILTER, program, 0, 0)


def _keep_names(user: int, group: int) -> None:
    """Give this process its own user in its namespace; without one it may not open another, as a sandbox has to."""
    for name, content in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError):
            Path("/proc/self", name).write_text(content)


def load_attribute(path: str, name: str) -> Any:
    """A function or class of a Python file."""
    return getattr(load_file(path), name)


def load_file(path: str) -> ModuleType:
    """A Python file as a module, loaded once; it is called by its content."""
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    spec = importlib.util.spec_from_file_location(f"own_{digest[:16]}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules.get(spec.name)
    if module is None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def serve(open_service: Callable[[Request], tuple[Service, dict[str, Any]]]) -> None:
    """Serve until the pipe closes; `open_service` loads what the settings say, and what the other side learns of it."""
    sys.path[:] = [item for item in sys.path if item and Path(item) != Path.cwd()]
    requests, replies = _pipes()
    settings = json.loads(requests.readline())
    limits = ProcessLimits(**settings["limits"])
    is_alone = limits.hold()
    try:
        service, facts = open_service(settings)
    except BaseException as error:  # whatever user code raises while it is imported
        _reply(replies, {"error": _words(error)})
        return
    _reply(replies, {**facts, "isolated": is_alone})
    try:
        _answer(service, requests, replies, limits.timeout_seconds + END_SECONDS)
    finally:  # nobody else does it once whoever asked was killed
        shutil.rmtree(settings["directory"], ignore_errors=True)


def _answer(service: Service, requests: TextIO, replies: TextIO, most_seconds: float) -> None:
    """Answer each request, and end at the one that takes too long."""
    for line in requests:
        _end_after(most_seconds)
        try:
            reply = service(json.loads(line))
        except Exception as error:  # whatever user code raises is its failure, which the other side counts
            reply = {"error": _words(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, reply)


def _end_after(seconds: float) -> None:
    """Let the kernel end a call that nobody waits for any longer, since whoever asked was killed.

    A timer ends this process even inside of C code; processor time also ends what it has forked.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time() + seconds) + 1, most))


def _pipes() -> tuple[TextIO, TextIO]:
    """The pipes of requests and replies, moved away from where functions print and read."""
    requests, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    return requests, replies


def _reply(replies: TextIO, content: Mapping[str, Any]) -> None:
    replies.write(json.dumps(content) + "\n")
    replies.flush()


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]


@dataclass
class LimitedProcess:
    """A module that calls `serve`, in a process that is started when first needed, and again after it died."""

    module: str
    name: str
    """For messages: `reward function charter:exact`."""
    settings: Mapping[str, Any]
    """Of the code to load; the limits come on top."""
    timeout_seconds: float
    memory_bytes: int
    has_network: bool = False
    starts_sandboxes: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict, init=False)
    """Facts about what was loaded; empty before the first start."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _rest: bytes = field(default=b"", init=False)
    _directory: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    @property
    def is_isolated(self) -> bool | None:
        """True if it has no network; None before the first start."""
        return bool(self.facts["isolated"]) if self.facts else None

    def ask(self, request: Request) -> dict[str, Any] | Failed:
        """The reply to one request, which may say `error`; a process that gave none in time is ended."""
        self.start()
        reply = self._exchange(request, self.timeout_seconds)
        return Failed(self._end()) if reply is None else reply

    def close(self) -> None:
        """End the process and all that it started."""
        self._end()

    def start(self) -> None:
        """Start the process where it is not running; a StageError where its code cannot be loaded."""
        if self._process is not None:
            return
        self._directory = tempfile.TemporaryDirectory(prefix="charter-limited-")
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._directory.name,
            env=_environment(self._directory.name),
            start_new_session=True,
        )
        limits = ProcessLimits(
            self.timeout_seconds,
            self.memory_bytes,
            FILE_BYTES,
            OPEN_FILES,
            MOST_THREADS,
            self.has_network,
            self.starts_sandboxes,
        )
        given = {**self.settings, "limits": vars(limits), "directory": self._directory.name}
        facts = self._exchange(given, START_SECONDS)
        if facts is None or "error" in facts:
            why = self._end() if facts is None else str(facts["error"])
            self.close()
            raise StageError(f"the {self.name} cannot be loaded: {why}")
        self.facts = facts

    def _exchange(self, content: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a line and wait for the one that answers it; None where none came in time."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(content).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    self._wait_for_end()
                    return None
                self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            return None
        return reply if isinstance(reply, dict) else None

    def _wait_for_end(self) -> None:
        """Let a process that has closed its pipe end by itself, so that its exit code is its own."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    def _end(self) -> str:
        """End the process group and remove its directory; how the process had ended, or that it had not."""
        process, self._process = self._process, None
        if process is None:
            return "it was not running"
        code = process.poll()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of a request that a dead process has never read
                    pipe.close()
        if self._directory is not None:
            self._directory.cleanup()
        return f"no answer within {self.timeout_seconds:g} s" if code is None else f"its process ended with {code}"


def _environment(directory: str) -> dict[str, str]:
    """Variables of the process: none of the caller's secrets, no accelerator, the same hashes each time."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    source = str(Path(__file__).parents[2])
    return {
        **inherited,
        "HOME": directory,
        "TMPDIR": directory,
        "PYTHONPATH": source,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
