"""One step as another engine has logged it, under Charter's names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """A finished step: optimizer step, or rollout with its updates."""

    step: int
    """From 1: so many steps are finished."""
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """`loss`, `learning_rate`, `grad_norm`, `kl`, `reward`, `accuracy`, where the engine tells them; others by its own
    names."""
    tokens: int | None = None
    """Of this step, where the engine counts them."""
    seconds: float | None = None
    """Of this step, where the engine tells it."""
    time: float | None = None
    """Unix seconds of its end, where the engine tells it."""
