"""Opens the socket, says the address, serves until Ctrl-C."""

import socket
from collections.abc import Callable
from urllib.parse import quote

from charter.dashboard.site import Settings, check_settings
from charter.errors import MissingExtraError, UsageError, how_to_install


def serve(settings: Settings, tell: Callable[[str], None]) -> None:
    """Serve the dashboard until the process is asked to end; `tell` gets the address with its token, once."""
    check_settings(settings)
    try:
        import uvicorn

        from charter.dashboard.app import build_app
    except ImportError as error:
        raise missing_extra(error) from error
    with open_socket(settings) as listening:
        port = listening.getsockname()[1]
        stopping: list[uvicorn.Server] = []
        config = uvicorn.Config(
            build_app(settings, port, ending=lambda: any(one.should_exit for one in stopping)),
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            h11_max_incomplete_event_size=32 * 1024,
            limit_concurrency=512,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            ssl_certfile=str(settings.certificate) if settings.certificate else None,
            ssl_keyfile=str(settings.key) if settings.key else None,
        )
        server = uvicorn.Server(config)
        stopping.append(server)
        tell(address(settings, port))
        server.run(sockets=[listening])


def address(settings: Settings, port: int) -> str:
    """The address with the token that lets its reader in."""
    host = settings.names[0] if settings.names else settings.host
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"{settings.scheme}://{shown}:{port}/?token={quote(settings.token, safe='')}"


def open_socket(settings: Settings) -> socket.socket:
    """A listening socket at the asked address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {why}; give another --port (0 takes a free one)"
        ) from None
    return listener


def missing_extra(error: ImportError) -> MissingExtraError:
    """Return the error that names the extra to install; raise the given error where a module of ours is missing."""
    if (error.name or "charter").partition(".")[0] == "charter":
        raise error
    return MissingExtraError(f"the dashboard needs {error.name}, which is not installed: {how_to_install('ui')}")
