"""Programs that a model wrote, run in a sandbox of bubblewrap, and the reward of one for its tests.

A program has no network, and sees of this machine a read-only Python with its standard library and an empty directory
in memory, as a user without rights in namespaces of its own; it cannot start another process, and ends with the one
that started it. Where bubblewrap cannot do that, nothing is run.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.spec.rewards import PROGRAM_SECONDS

BWRAP = "bwrap"
INSTALL = "install bubblewrap (`apt-get install bubblewrap`), where the kernel allows user namespaces"
SCRATCH_BYTES = 16 * 2**20
"""Of the directory in memory, which is all that a program can write to."""
OUTPUT_BYTES = 2**20
"""Longest output and file; the kernel refuses more."""
TRIAL_SECONDS = 20.0
CLONE_THREAD = 0x10000
FORKS = {"x86_64": (0xC000003E, 56, (57, 58)), "aarch64": (0xC00000B7, 220, ())}
"""By machine: its number in seccomp(2), that of clone, and those of fork and vfork."""
CLONE_3 = 435
LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Operations of a filter: load a word; jump where it is a value, at least one, or has one of some bits; end."""
ALLOW, NOT_ALLOWED, NOT_THERE, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
"""Ends of a filter: run the call, fail with EPERM, fail with ENOSYS, end the process."""
PROGRAM, NOBODY = "/tmp/written", "65534"


@dataclass(frozen=True)
class Ended:
    """End of a program."""

    code: int | None
    """Exit code, the number of a signal and 128; None where it was ended, as its time was over."""
    output: str


class SandboxError(Exception):
    """The sandbox itself did not run the program, so nothing is known of it."""


def run_program(text: str, entered: str = "", *, seconds: float, memory_bytes: int, with_errors: bool = False) -> Ended:
    """Run Python text with `entered` as its standard input, for at most so many seconds of wall clock.

    What it writes to its standard error is part of the output only where that is wanted. Raises `SandboxError` where
    bubblewrap did not start it.
    """
    with tempfile.TemporaryDirectory(prefix="charter-program-") as name:
        directory = Path(name)
        (directory / "written").write_text(text, encoding="utf-8", errors="surrogatepass")
        (directory / "entered").write_text(entered, encoding="utf-8")
        (directory / "filter").write_bytes(no_processes(platform.machine()))
        with (
            (directory / "entered").open("rb") as stdin,
            (directory / "output").open("wb") as stdout,
            (directory / "filter").open("rb") as rules,
            (directory / "status").open("wb") as status,
        ):
            try:
                process = subprocess.Popen(
                    _command(directory / "written", status.fileno(), rules.fileno()),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
                    pass_fds=(status.fileno(), rules.fileno()),
                    env={},
                    preexec_fn=functools.partial(_limit, seconds, memory_bytes),
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"{BWRAP} did not start: {error}") from None
            in_time = _waited(process, seconds)
        output = (directory / "output").read_bytes().decode("utf-8", errors="replace")
        if not in_time:
            return Ended(None, output)
        return Ended(_exit_code((directory / "status").read_text(), process.returncode), output)


@functools.cache
def sandbox_problem() -> str:
    """Return why no program can be run here; empty where one can."""
    if shutil.which(BWRAP) is None:
        return f"programs of a model run only in a sandbox, and {BWRAP} is not installed: {INSTALL}"
    try:
        ended = run_program("print(6 * 7)", seconds=TRIAL_SECONDS, memory_bytes=2**29)
    except SandboxError as error:
        return f"programs of a model run only in a sandbox, and there is none here: {error}; {INSTALL}"
    if ended.output.strip() != "42":
        return f"programs of a model run only in a sandbox, and Python does not start in it here (exit {ended.code})"
    return ""


def _command(program: Path, status: int, rules: int) -> list[str]:
    """Return the command: system and Python read-only, everything else empty or away."""
    if (bwrap := shutil.which(BWRAP)) is None:
        raise SandboxError(f"{BWRAP} is not installed")
    base = os.path.realpath(sys.base_prefix)
    interpreter = os.path.realpath(sys.executable)
    words = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox", "--json-status-fd", str(status)]
    words += ["--seccomp", str(rules)]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "bin"):
        words += ["--symlink", f"usr/{name}", f"/{name}"]
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind", base, base, "--dev", "/dev"]
    words += ["--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp", "--ro-bind", str(program), PROGRAM, "--chdir", "/tmp"]
    words += ["--setenv", "PATH", "/usr/bin:/bin", "--setenv", "PYTHONHASHSEED", "0"]
    return [*words, interpreter, "-I", "-S", "-B", PROGRAM]


def no_processes(machine: str) -> bytes:
    """Return the filter of system calls that lets a program start threads and no process.

    Limits of a user's processes do not hold for root, and a control group is not everybody's to make. clone3 hides its
    flags in memory, so it is said to be missing, and the C library takes clone.

    >>> len(no_processes("x86_64")) // 8, len(no_processes("aarch64")) // 8
    (17, 13)
    """
    if machine not in FORKS:
        raise SandboxError(f"no filter of system calls is known for {machine}")
    number, clone, forks = FORKS[machine]
    checks = [*((fork, NOT_ALLOWED) for fork in forks), (CLONE_3, NOT_THERE)]
    rules = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, number), (RETURN, 0, 0, KILL)]
    rules += [(LOAD, 0, 0, 0), (AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]
    for call, end in checks:
        rules += [(EQUAL, 0, 1, call), (RETURN, 0, 0, end)]
    rules += [(EQUAL, 0, 2, clone), (LOAD, 0, 0, 16), (ANY_OF, 0, 1, CLONE_THREAD)]
    rules += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_ALLOWED)]
    return b"".join(struct.pack("<HBBI", *rule) for rule in rules)


def _limit(seconds: float, memory_bytes: int) -> None:
    """Hold what is started to its limits, as the user whose rights it has: bubblewrap goes by the real one."""
    os.setresuid(os.geteuid(), -1, -1)
    processor = int(seconds) + 1
    for name, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, processor),
        (resource.RLIMIT_FSIZE, OUTPUT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(name, (most, most))


def _waited(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end; False where the time was over, and the sandbox was ended with all in it."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True


def _exit_code(status: str, own: int) -> int:
    """Return the program's exit code, which bubblewrap reports; without a report its own says how it failed."""
    for line in status.splitlines():
        with contextlib.suppress(ValueError):
            if "exit-code" in (said := json.loads(line)):
                return int(said["exit-code"])
    raise SandboxError(f"{BWRAP} ended with {own} before the program began")


# -------- The reward of the program that an answer holds, the tests of its row that it passes; and a tool.

FENCED = re.compile(r"```([^\n`]*)\n(.*?)```", flags=re.DOTALL)
"""What is between fences, as chat models write it, and the language that stands after the first."""
PYTHON = ("", "py", "python", "python3")
"""Languages of a block that is run; one without a language may be Python."""
MEMORY_MIB = 512


def program(
    answer: str,
    row: Mapping[str, Any],
    seconds: float = PROGRAM_SECONDS,
    memory_mib: int = MEMORY_MIB,
    partial: bool = False,
    column: str = "tests",
) -> float | None:
    """1 where the answer's program passes all tests of its row, else 0; with `partial` the share that it passes.

    The program is the last fenced block of Python, or of no language; an answer without one gets 0. The row's tests are
    a list of `{stdin, stdout}`, whose output is compared apart from space at the ends of lines, or Python text that is
    run after the program and reaches its end: a program that leaves before does not pass, but one that reads its own
    file sees these tests. None where the row has none. All tests of an answer have `seconds` together: those that are
    left over when they are gone are not passed.
    """
    tests = row.get(column)
    if tests is None:
        return None
    cases = _cases(tests)
    blocks = [text for language, text in FENCED.findall(answer) if language.strip().lower() in PYTHON]
    if not blocks:
        return 0.0
    until, passed = time.monotonic() + seconds, 0
    for entered, after, wanted in cases:
        left = until - time.monotonic()
        if left <= 0:
            break
        ended = run_program(blocks[-1] + after, entered, seconds=left, memory_bytes=memory_mib * 2**20)
        passed += (passes := _passes(ended, wanted, last_line=bool(after)))
        if not passes and not partial:
            break
    return passed / len(cases) if partial else float(passed == len(cases))


def python(code: str) -> str:
    """Return what a program prints, and how it failed: the tool by which a policy computes."""
    ended = run_program(code, seconds=PROGRAM_SECONDS, memory_bytes=MEMORY_MIB * 2**20, with_errors=True)
    if ended.code is None:
        return f"{ended.output}\nended after {PROGRAM_SECONDS:g} s".strip()
    return ended.output.strip() or ("it printed nothing" if ended.code == 0 else f"ended with {ended.code}")


def _cases(tests: object) -> list[tuple[str, str, str]]:
    """Return what each test enters, what runs after the program, and the output, or its last line, that it wants."""
    if isinstance(tests, str):
        reached = hashlib.sha256(tests.encode("utf-8", errors="surrogatepass")).hexdigest()
        return [("", f"\n\n{tests}\nprint('\\n{reached}')\n", reached)]
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"the row's tests are {type(tests).__name__}; text, or a list of {{stdin, stdout}}, is needed")
    cases: list[tuple[str, str, str]] = []
    for test in tests:
        if not isinstance(test, Mapping) or not {"stdin", "stdout"} >= set(test) or "stdout" not in test:
            raise ValueError(f"a test of the row is {test!r}; {{stdin: text, stdout: text}} is needed")
        cases.append((str(test.get("stdin", "")), "", str(test["stdout"])))
    return cases


def _passes(ended: Ended, wanted: str, *, last_line: bool) -> bool:
    if ended.code != 0:
        return False
    return _lines(ended.output)[-1:] == [wanted] if last_line else _lines(ended.output) == _lines(wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
