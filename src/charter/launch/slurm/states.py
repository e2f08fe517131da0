"""Meaning of Slurm's words for a job."""

import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from charter.errors import ExitCode
from charter.launch.scheduler import Cause, Phase

QUEUED = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "UPDATE_DB", "EXPEDITING"}
)
CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        "BOOT_FAIL": "node_lost",
        "CANCELLED": "cancelled",
        "COMPLETED": "done",
        "DEADLINE": "failed",
        "FAILED": "failed",
        "LAUNCH_FAILED": "failed",
        "NODE_FAIL": "node_lost",
        "OUT_OF_MEMORY": "out_of_memory",
        "PREEMPTED": "preempted",
        "RECONFIG_FAIL": "node_lost",
        "REQUEUED": "preempted",
        "REVOKED": "cancelled",
        "TIMEOUT": "time_limit",
    }
)
"""States of a start that has ended (`man squeue`, JOB STATE CODES; `man sacct`).

`REQUEUED` is what the accounts call a start that somebody put back into the queue: it gave its place back unharmed.
"""
INTERRUPTED_EXIT = ExitCode.INTERRUPTED
"""Of an agent whose stage has stopped at a checkpoint (`InterruptedRunError`)."""
_SIGNALS = range(129, 129 + 64)


def phase_of(state: str) -> Phase:
    """The phase that a state belongs to; what sacct appends to it (`CANCELLED by 0`) does not matter.

    >>> phase_of("CANCELLED by 1000"), phase_of("COMPLETING"), phase_of("REQUEUE_HOLD"), phase_of("?")
    ('ended', 'running', 'queued', 'unknown')
    """
    word = plain_state(state)
    if word in QUEUED:
        return "queued"
    if word in RUNNING:
        return "running"
    return "ended" if word in CAUSES else "unknown"


def cause_of(state: str, *, exit_code: int | None = None) -> Cause:
    """Return why a start with this state has ended; empty for one that has not.

    Slurm calls it a failure, too, when a job ends because it was asked to: its exit code says that it stopped at a
    checkpoint, and the place it gave up was wanted by somebody else.

    >>> cause_of("NODE_FAIL"), cause_of("FAILED", exit_code=1), cause_of("FAILED", exit_code=INTERRUPTED_EXIT)
    ('node_lost', 'failed', 'preempted')
    """
    cause = CAUSES.get(plain_state(state), "")
    return "preempted" if cause == "failed" and exit_code == INTERRUPTED_EXIT else cause


def plain_state(state: str) -> str:
    """The state without what is appended to it.

    >>> plain_state("CANCELLED by 1000"), plain_state("COMPLETED+")
    ('CANCELLED', 'COMPLETED')
    """
    return state.split(" ")[0].rstrip("+") if state else ""


def exit_code_of(text: str) -> int | None:
    """An exit code, minus the number of a signal, from what Slurm writes: a wait status (squeue) or `code:signal`.

    A shell's 128 + n is signal n, too: batch scripts end with what their step ended with.

    >>> [exit_code_of(text) for text in ("0", "768", "9", "0:9", "6:0", "137:0", "")]
    [0, 3, -9, -9, 6, -9, None]
    """
    code, colon, number = text.strip().partition(":")
    if not code.isdecimal():
        return None
    if not colon:
        return _unshell(os.waitstatus_to_exitcode(int(code)))
    return -int(number) if number.isdecimal() and int(number) else _unshell(int(code))


def _unshell(code: int) -> int:
    return 128 - code if code in _SIGNALS else code


_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")
NOBODY = ("", "(null)", "None assigned", "Unknown", "N/A")


def expand_hosts(text: str) -> tuple[str, ...]:
    """The nodes of a list; `(null)` and the like are none.

    Source: `man scontrol`, "show hostlist": leading zeros are kept.

    >>> expand_hosts("n[1-2,08-10],login")
    ('n1', 'n2', 'n08', 'n09', 'n10', 'login')
    >>> expand_hosts("r[0-1]n[5-6]-ib")
    ('r0n5-ib', 'r0n6-ib', 'r1n5-ib', 'r1n6-ib')
    >>> expand_hosts("None assigned")
    ()
    """
    return () if text.strip() in NOBODY else tuple(host for part in _parts(text.strip()) for host in _expand(part))


def _parts(text: str) -> Iterator[str]:
    """Split at commas that stand in no bracket."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, after = rest.partition("]")
    for item in inside.split(","):
        for number in _numbers(item):
            for tail in _expand(after):
                yield f"{before}{number}{tail}"


def _numbers(item: str) -> Iterator[str]:
    """The numbers of `7` or `08-10`, as wide as the first is written.

    >>> list(_numbers("08-10"))
    ['08', '09', '10']
    """
    match = _RANGE.match(item)
    if match is None:
        yield item
        return
    first, last = match[1], match[2] or match[1]
    yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
