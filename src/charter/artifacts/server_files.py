"""Addresses of the servers of a stage's pools: files in a directory of its job, by keepers for the stage."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.errors import DataError, StageError

SERVERS = "CHARTER_SERVERS"
"""Variable of a stage whose job has pools: their directory."""
SERVERS_DIR = "servers"
KEY_FILE = "key"
WAIT_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class ServerNow:
    """One replica, as its keeper last wrote it."""

    model: str
    replica: int
    url: str
    state: str
    """`starting`, `ready`, or `failed` for good."""
    starts: int = 0
    why: str = ""
    """Why it is not ready."""
    pid: int = 0
    host: str = ""
    meeting: str = ""
    """Where the parts of a replica over several nodes meet."""
    at: float = 0.0


def server_file(directory: Path, model: str, replica: int) -> Path:
    """Return the file of one replica."""
    return directory / f"{model}-{replica}.json"


def read_servers(directory: Path, model: str, replicas: int) -> list[ServerNow]:
    """Return the replicas of a model that have said where they listen, in their order."""
    servers = []
    for number in range(replicas):
        try:
            servers.append(ServerNow(**durable.read_json(server_file(directory, model, number))))
        except (DataError, TypeError):
            continue
    return servers


def await_servers(
    directory: Path, model: str, replicas: int, *, alive: Callable[[], None], should_stop: Callable[[], bool]
) -> list[ServerNow]:
    """Return all replicas of a model once each has an address and one of them answers; fewer where a stop is wanted.

    Raises StageError when all of them have failed for good.
    """
    while True:
        servers = read_servers(directory, model, replicas)
        if len(servers) == replicas:
            if all(server.state == "failed" for server in servers):
                why = "; ".join(dict.fromkeys(server.why for server in servers))
                raise StageError(f"no server of {model!r} has come up: {why}")
            if any(server.state == "ready" for server in servers):
                return servers
        if should_stop():
            return servers
        alive()
        time.sleep(WAIT_SECONDS)
