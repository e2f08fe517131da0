"""Ports for servers of tests that are nobody else's, also while the server is down."""

import socket


def held_port() -> int:
    """A port of the loopback, kept for this process.

    It stays bound, which a server that reuses addresses does not mind (and all servers here do), while the kernel
    gives it to nobody else: neither to another test that asks for a port nor to a connection that goes out. So a
    server can be killed and brought back, and where no server is started nobody listens.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = int(holder.getsockname()[1])
    holder.detach()  # open as long as the process lives
    return port
