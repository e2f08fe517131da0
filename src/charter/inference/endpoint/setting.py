"""Settings of a server pool."""

from collections.abc import Callable
from dataclasses import dataclass

from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.identity import Canaries
from charter.spec.project import Serving


@dataclass(frozen=True, kw_only=True)
class ServerSetting:
    """One served model of a project."""

    name: str
    """The model's name in the project."""
    serving: Serving
    endpoints: tuple[str, ...]
    """Addresses of all servers that answer for it."""
    tell: Callable[[], None]
    """Called when answers come."""
    canaries: Canaries | None = None
    """Fixed questions that show when a server has another model; None asks none."""
    gate: SpendingGate | None = None
    """Of the stage's money; None lets every request pass."""
