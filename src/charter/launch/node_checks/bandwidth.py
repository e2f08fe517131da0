"""How fast each node sends to the first one: a plain TCP stream, for comparison between nodes."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from charter.artifacts import durable

SENT_BYTES = 8 * 1024**2
REPEATS = 2
WAIT_SECONDS = 20.0
"""How long a node waits for the first one's address; without it, it is compared by its other speeds only."""
STREAM_SECONDS = 10.0
"""Longest stream; at 8 MiB a slower link than 7 Mbit/s counts as none."""
_CHUNK = 256 * 1024


@contextlib.contextmanager
def receiving(stage_dir: Path, start: str) -> Iterator[None]:
    """Take streams of the other nodes meanwhile, on a port that the stage directory names."""
    with socket.create_server(("", 0), backlog=64) as server:
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(server, over), name="bandwidth", daemon=True)
        thread.start()
        place = {"host": socket.gethostname(), "port": server.getsockname()[1]}
        durable.write_hint(_place(stage_dir, start), place)
        try:
            yield
        finally:
            over.set()
            thread.join()


def sending_rate(
    stage_dir: Path,
    start: str,
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, float]:
    """Bytes per second from this node to the first one, the best of two; empty where that one cannot be reached.

    One TCP stream: an adapter that is faster than one stream can fill is not measured at its full speed, which does
    not matter for a comparison between nodes. A first node that is slow itself makes all others equally slow.
    """
    deadline = now() + WAIT_SECONDS
    while not _place(stage_dir, start).exists():
        if now() > deadline:
            return {}
        pause(0.1)
    try:
        place = json.loads(_place(stage_dir, start).read_text(encoding="utf-8"))
        rates = [_stream(str(place["host"]), int(place["port"])) for _ in range(REPEATS)]
    except (OSError, ValueError, KeyError):
        return {}
    return {"network_bytes_per_second": max(rates)}


def _stream(host: str, port: int) -> float:
    chunk = bytes(_CHUNK)
    with socket.create_connection((host, port), timeout=STREAM_SECONDS) as connection:
        start = time.perf_counter()
        for _ in range(SENT_BYTES // _CHUNK):
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"k":
            raise ConnectionError("the stream was not acknowledged")
        return SENT_BYTES / max(time.perf_counter() - start, 1e-9)


def _serve(server: socket.socket, over: threading.Event) -> None:
    server.settimeout(0.1)
    while not over.is_set():
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        with connection, contextlib.suppress(OSError):
            connection.settimeout(STREAM_SECONDS)
            while connection.recv(_CHUNK):
                pass
            connection.sendall(b"k")


def _place(stage_dir: Path, start: str) -> Path:
    return stage_dir / f"sink-{start}.json"
