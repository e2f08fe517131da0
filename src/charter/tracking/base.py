"""The protocol of experiment tracking: what a stage says while it runs, whoever listens."""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Takes the metrics of one stage."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of one finished step; steps never go back within one attempt."""
        ...

    def finish(self) -> None:
        """Everything was logged; make it durable. No `log` may follow."""
        ...
