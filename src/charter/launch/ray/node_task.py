"""The task that runs a node agent on one node of a Ray cluster, as a process of its own which dies with the task.

Used inside the cluster, where Charter may not be installed: nothing but Ray and the standard library is imported there,
and names of variables travel as texts.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from charter.launch.job import NODE_NAME

LOOK_SECONDS = 0.05
KILL_SECONDS = 10.0
LOG_TAIL_BYTES = 64 * 1024

DIES_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
except OSError as error:
    print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
    os._exit(127)
"""
"""Started in place of the command: asks the kernel (PR_SET_PDEATHSIG) to be killed with its parent, then becomes it."""


def run_agent(order: dict[str, Any], secrets: dict[str, str], keeper: Any) -> dict[str, Any]:
    """Run the command of one node or shard to its end; returns its exit code, and why where that is not its own."""
    place = {name: order[name] for name in ("name", "unit", "restart", "rank")}
    if not ray.get(keeper.started.remote(**place, **node_facts())):
        return {"exit_code": None, "cause": "cancelled"}
    directory = Path(order["directory"])
    if not directory.is_dir():
        reason = f"node {node_facts()['node']} does not see {directory}: all nodes need one file system there"
        return {"exit_code": 1, "cause": "failed", "reason": reason}
    with _noted_interrupts() as interrupts:
        process = _started(order, secrets, directory)
        try:
            return _wait(process, order, keeper, place, interrupts)
        finally:
            _end(process)


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Note interrupts, by which Ray cancels a task, and look at them now and then.

    One that was raised while the command is being started or ended would leave it running with nobody to end it.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def _started(order: dict[str, Any], secrets: dict[str, str], directory: Path) -> "subprocess.Popen[bytes]":
    with Path(order["log"]).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", DIES_WITH_PARENT, str(os.getpid()), *order["command"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=_environment(order, secrets),
            start_new_session=True,
        )


def node_facts() -> dict[str, str]:
    """The node of this process: its id, and a name that people and `exclude_nodes` can use."""
    node_id = ray.get_runtime_context().get_node_id()
    return {"node_id": node_id, "node": f"{os.uname().nodename}/{node_id[:12]}"}


def _wait(
    process: "subprocess.Popen[bytes]", order: dict[str, Any], keeper: Any, place: Any, interrupts: list[int]
) -> dict[str, Any]:
    started = time.monotonic()
    answer = keeper.orders.remote(**place)
    limit, before = order["time_limit_seconds"], order["stop_before_seconds"] or 0.0
    # An agent knows its limit and stops by its own clock, which began later than this one: it comes first.
    remind = None if limit is None else max(limit / 2, limit - before / 2)
    notified = limit_passed = False
    while (code := process.poll()) is None:
        time.sleep(LOOK_SECONDS)
        if interrupts:
            return {"exit_code": None, "cause": "cancelled"}
        now = time.monotonic()
        if limit is not None and now - started > limit:
            limit_passed = True
            _end(process)
        elif not notified and remind is not None and now - started > remind:
            notified = limit_passed = True
            process.send_signal(signal.SIGTERM)
        if not ray.wait([answer], timeout=0)[0]:
            continue
        wanted = ray.get(answer)
        if wanted == "end":
            return {"exit_code": None, "cause": "cancelled"}
        if wanted == "stop" and not notified:
            notified = True
            process.send_signal(signal.SIGTERM)
        answer = keeper.orders.remote(**place, told=notified)
    cause = "time_limit" if limit_passed and code != 0 else "done" if code == 0 else "failed"
    return {"exit_code": code, "cause": cause}


def _environment(order: dict[str, Any], secrets: dict[str, str]) -> dict[str, str]:
    """The worker's own variables, without those by which Ray would take the command for a part of this task."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name.startswith("RAY_AUTH_")
    }
    inherited["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    inherited[NODE_NAME] = node_facts()["node"]  # a host may be several nodes of Ray
    if not order["gpus"]:
        inherited["CUDA_VISIBLE_DEVICES"] = ""
    return {**inherited, **order["environment"], **secrets}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the command and what it has started in its session; a process that has gone is nothing to complain of."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=KILL_SECONDS)
