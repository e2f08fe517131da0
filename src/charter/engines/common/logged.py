"""Steps as another engine has logged them, under Charter's names, and the readers of its logs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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


@dataclass(frozen=True, kw_only=True)
class LogReader:
    """Readers of what one engine writes while it trains."""

    console: Callable[[Iterable[str]], Iterable[LoggedStep]]
    """Of the lines that it prints."""
    json_lines: Callable[[Path], Iterable[LoggedStep]] | None = None
    """Of a file of metrics, a JSON object per line."""
    events: Callable[[Path], Iterable[LoggedStep]] | None = None
    """Of a directory of TensorBoard events."""
