"""A reward function in a process of its own, from the side that asks: tries, and failures that are no rewards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from charter.inference.limited import Failed, LimitedProcess

TRIES = 2
"""Calls of one answer where the process died or took too long; an exception of a pure function comes again."""


@dataclass
class RewardProcess:
    """One function, and the process that calls it."""

    call: str
    arguments: Mapping[str, Any]
    timeout_seconds: float
    memory_bytes: int
    _process: LimitedProcess = field(init=False)

    def __post_init__(self) -> None:
        self._process = LimitedProcess(
            "charter.train.rewards.functions",
            f"reward function {self.call}",
            {"call": self.call, "arguments": dict(self.arguments)},
            self.timeout_seconds,
            self.memory_bytes,
        )

    @property
    def is_isolated(self) -> bool | None:
        """True if its process has no network; None before the first has started."""
        return self._process.is_isolated

    def ask(self, offered: Mapping[str, Any]) -> float | Failed | None:
        """The reward of one answer; None where it does not apply."""
        outcome: float | Failed | None = Failed("never asked")
        for _ in range(TRIES):
            reply = self._process.ask(offered)
            if not isinstance(reply, Failed):
                return Failed(str(reply["error"])) if "error" in reply else reply["reward"]
            outcome = reply
        return outcome

    def close(self) -> None:
        """End the process and all that it started."""
        self._process.close()
