"""Adapter of an engine for a hosted stage: where its checkpoints are, when one is whole, how it is resumed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from charter.data.dataset import Turn
from charter.data.rows import messages
from charter.engines.common.request import Handover


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


ROW = "charter"
"""Column of a prompt's row, or the label, with what its rewards read: `{"row": ..., "turns": ...}` as JSON text."""


@dataclass(frozen=True, kw_only=True)
class EngineCheckpoint:
    """One checkpoint that an engine has written whole."""

    step: int
    path: Path


class EngineAdapter(Protocol):
    """One engine while it computes a stage in the directory `work`; it may be killed at any moment."""

    @property
    def saves_on_sigterm(self) -> bool:
        """Return True if SIGTERM to all its processes makes it write a whole checkpoint of its present step, and end.

        Where it does not, a stop waits for the engine's next checkpoint and ends it then.
        """

    @property
    def adapter_output(self) -> str | None:
        """Return the directory below `work` where the engine leaves a low-rank adapter as peft writes it.

        Charter merges it into the model then, in place of `convert`; None where `convert` writes complete weights.
        """

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """The checkpoints that are whole by the engine's own order of writing, oldest first; the rest are not told.

        One that vanishes meanwhile, since the engine keeps only so many, is left out.
        """

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Charter has taken a checkpoint over, by hard links where it can.

        Where the engine may write into the same files again they have to be moved out of its way.
        """

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Put a verified copy of a checkpoint where the engine looks for it; returns `HandoverPaths.resume_from`.

        Called once before a start that goes on from it; before a start from the beginning it is not called.
        """

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """The steps that the engine has logged since it was started, in order; `log` holds its stdout and stderr."""

    def final_step(self, work: Path) -> int | None:
        """The step that the final weights in `work` belong to, by the engine's own files; None where there are none.

        That of the newest whole checkpoint, unless an engine says more: it saves one when it ends.
        """
        return max((item.step for item in self.checkpoints(work)), default=None)

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """Write the final weights as a Hugging Face directory of safetensors that later stages can load.

        Returns what is worth recording of it: versions, the command that converted.
        """

    def prompt_row(
        self, turns: Sequence[Turn], *, kind: str, index: int, carried: str | None = None
    ) -> Mapping[str, object]:
        """Return a prompt of a stage of this kind as the engine reads it; `index` counts its rows.

        `carried` is what a list of rewards may read of the row, as text (`reward_file.row_text`).
        """
        return {"prompt": messages(turns), **({} if carried is None else {ROW: carried})}

    def pair_row(self, pair: Mapping[str, Any]) -> dict[str, Any]:
        """Return a pair of answers as the engine reads it, from `prompt`, `chosen` and `rejected` as messages."""
        return dict(pair)
