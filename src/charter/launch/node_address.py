"""Addresses at which the nodes of a job reach one another, and the place where their processes meet."""

import contextlib
import socket
import time
from dataclasses import dataclass

from charter.artifacts.job_files import JobFiles, NodeRecord
from charter.artifacts.lease import host_id
from charter.errors import StageError

LOOPBACK = "127.0.0.1"
MEETING_SECONDS = 300.0
"""Nodes of one job start at different times: so long the first one is waited for."""
_LOOK_SECONDS = 0.1
_SOMEWHERE = ("192.0.2.1", 9)
"""TEST-NET-1 (RFC 5737): a UDP socket that is connected to it says the address of our route, and sends nothing."""


@dataclass(frozen=True, kw_only=True)
class MeetingPlace:
    """Address and port of the node of rank 0."""

    address: str
    port: int


def route_address() -> str:
    """The address by which this machine reaches others; its host name where there is no route."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_SOMEWHERE)
        return str(probe.getsockname()[0])
    return socket.gethostname()


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def meeting_place(
    files: JobFiles, mine: NodeRecord, *, first: int = 0, seconds: float = MEETING_SECONDS
) -> MeetingPlace:
    """Wait for the record of the node of rank 0; nodes of one machine meet on its loopback."""
    deadline = time.monotonic() + seconds
    while True:
        record = files.read_node(mine.restart, first)
        if record is not None and record.port:
            break
        if time.monotonic() > deadline:
            raise StageError(f"node {first} of the job has not started within {seconds:g} s of node {mine.place}")
        time.sleep(_LOOK_SECONDS)
    return MeetingPlace(address=LOOPBACK if record.host_id == host_id() else record.address, port=record.port)
