"""Place and manner of serving a model, as the command line hands it to the serving process: plain values, no torch."""

import ipaddress
import json
from dataclasses import asdict, dataclass

from charter.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Everything that a server is told."""

    directory: str
    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""
    name: str | None = None
    """How clients call the model; the name of its directory unless given."""
    token: str | None = None
    """Where the token is, `env:NAME` or `file:PATH`; never the token itself."""
    threads: int = 1
    device: str = "cpu"
    batch: int = 16
    """Requests of one batch. With 1 every answer is computed alone: the same request gives the same bits."""
    waiting: int = 1024
    """Requests that wait; further ones are told to come back (429)."""

    def to_json(self) -> str:
        """As one argument of a process."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "ServeOptions":
        """Read the options from the text of `to_json`."""
        return ServeOptions(**json.loads(text))


def check_address(options: ServeOptions) -> None:
    """Refuse an address that others can reach without a token."""
    if options.token is None and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host} can be reached from other machines, and no token protects the server\n"
            "  give --token env:NAME or --token file:PATH, or serve on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return True if an address is reached from this machine only; a name other than `localhost` is not trusted to be.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("node7")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
